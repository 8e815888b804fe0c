"""The short way of a record through its group, while nothing else happens there.

Each function does in one piece what the long way does in many, or returns None and has changed nothing: then the long
way is taken. A group says for which of them it is fit (`leads_steadily`, `follows_steadily`); what changes from record
to record is looked at here. Neither way does anything that the other would not have done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rostra.fabric.api import Accepted, Append, Committed, FabricEffect, Now, Propose, Send, Synced
from rostra.fabric.raft.consensus.group_state import COMMIT_SAID_US
from rostra.fabric.raft.consensus.progress import ProgressStage
from rostra.fabric.raft.consensus.raft_group import RaftGroup
from rostra.fabric.raft.messages import AppendEntries, AppendEntriesReply
from rostra.model.batch import stamp
from rostra.model.check import read_intact
from rostra.model.ids import NodeId
from rostra.model.layout import CONTROL

REPLICATE = ProgressStage.REPLICATE
"""To look it up in its enumeration takes as long as all else that is asked of a follower."""


def proposed(group: RaftGroup, now: Now, given: Propose) -> list[FabricEffect] | None:
    """A leader orders a batch, and every follower is sent it at once."""
    if not group.leads_steadily:
        return None
    partition, term, commit, copy, replication = (
        group.partition,
        group.term,
        group.commit,
        group.copy,
        group.replication,
    )
    base, settings, peers = copy.end, group.settings, replication.peers
    for progress in peers.values():
        if (
            progress.next != base
            or progress.stage is not REPLICATE
            or progress.in_flight_bytes >= settings.window_bytes
            or len(progress.in_flight) >= settings.window_messages
        ):
            return None
    group.now = now
    batch = given.batch
    last = stamp(batch, partition=partition, base_offset=base, owner_epoch=term, owner_flags=given.owner_flags)
    copy.end = end = last + 1
    message, payload = AppendEntries(partition, term, base, term, commit, copy.first), (batch,)
    sent, size, round_ = (end, len(batch)), len(batch), replication.round
    effects: list[FabricEffect] = [Append(partition, batch, True), Accepted(given.token, partition, base, last)]
    for peer, progress in peers.items():
        effects.append(Send(peer, message, payload))
        progress.quiet = False
        progress.whole = True
        progress.sent_round = round_
        progress.told = commit
        progress.in_flight.append(sent)
        progress.in_flight_bytes += size
        progress.next = end
    return effects


def stored(
    group: RaftGroup, now: Now, peer: NodeId, reply: AppendEntriesReply, payload: bytearray | None
) -> list[FabricEffect] | None:
    """A follower has what it was sent."""
    replication, end = group.replication, group.copy.end
    progress = replication.peers.get(peer)
    if (
        progress is None
        or not group.leads_steadily
        or progress.next != end
        or progress.stage is not REPLICATE
        or reply.fills != progress.fills
        or reply.readers
        or replication.tells
    ):
        return None
    group.now = now
    progress.heard_us = now.mono_us
    progress.readers = False
    if reply.commit > progress.commit:
        progress.commit = reply.commit
    if reply.match > progress.match:
        progress.match = reply.match
    in_flight, held = progress.in_flight, reply.held
    while in_flight and in_flight[0][0] <= held:
        progress.in_flight_bytes -= in_flight.popleft()[1]
    return _committed(group)


def synced(group: RaftGroup, now: Now, given: Synced) -> list[FabricEffect] | None:
    """The own disk has what was appended."""
    copy, offset = group.copy, given.offset
    if given.generation != copy.generation or offset <= copy.synced or offset > copy.end:
        return None
    if group.leads_steadily:
        if group.replication.tells:
            return None
        group.now = now
        copy.synced = offset
        return _committed(group)
    leader = group.leader
    if not group.follows_steadily or leader is None:
        return None
    group.now = now
    copy.synced = offset
    held = group.following.held
    durable = held if held < offset else offset
    reply = AppendEntriesReply(
        group.partition, group.term, held, durable, group.commit, 0, group.hard.fills, group.has_readers
    )
    return [Send(leader, reply)]


def _committed(group: RaftGroup) -> list[FabricEffect]:
    """What a majority has, of the leader's own term as all that is not committed yet."""
    copy, commit = group.copy, group.commit
    if commit == copy.end:
        return []
    matches = [copy.synced]
    for progress in group.replication.counted:
        matches.append(progress.match)
    matches.sort()
    agreed = matches[len(matches) - 1 >> 1]
    if agreed <= commit:
        return []
    group.commit = agreed = min(agreed, copy.end)
    return [Committed(group.partition, agreed)]


def entries(
    group: RaftGroup, now: Now, peer: NodeId, message: AppendEntries, payload: bytearray | None
) -> list[FabricEffect] | None:
    """A follower hears the batch that comes next, and nothing else."""
    copy = group.copy
    end, last_term = copy.end, copy.last_term
    if (
        payload is None
        or not group.follows_steadily
        or peer != group.leader
        or message.prev_end != end
        or message.prev_term != last_term
        or message.first > copy.first
    ):
        return None
    found = read_intact(payload, group.seed)
    if found is None:
        return None
    base, following, term, flags = found
    if base != end or flags & CONTROL:
        return None
    group.now = now
    election = group.election
    election.heard_us = now.mono_us
    group.deadline_us = now.mono_us + election.patience_us
    if term == last_term:
        copy.end = following
    else:
        copy.appended(base, following, term)
    group.following.held = following
    append = Append(group.partition, payload, True)
    commit = message.commit
    if commit > following:
        commit = following
    if commit <= group.commit:
        # It may be higher than this log is long, if the disk has refused what came before.
        return [append]
    group.commit = commit
    if not group.has_readers and now.mono_us < group.silent_until_us:
        group.unsaid = commit
        return [append]
    group.silent_until_us = now.mono_us + COMMIT_SAID_US
    group.unsaid = 0
    return [append, Committed(group.partition, commit)]


HEARD: dict[type, Callable[[RaftGroup, Now, NodeId, Any, bytearray | None], list[FabricEffect] | None]] = {
    AppendEntries: entries,
    AppendEntriesReply: stored,
}
