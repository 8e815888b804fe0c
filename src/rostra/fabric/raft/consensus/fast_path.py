"""The fast path of records through a group in which nothing else is pending.

A record causes these inputs: `Propose` and `Synced` at the leader, AppendEntries and `Synced` at each follower, and
the reply at the leader. Each has one function here that does in a few statements what `RaftGroup` does in many calls.
It returns None, and has changed nothing, when its preconditions do not hold: then `Raft` takes the full step.
Preconditions that change rarely are precomputed after every full step (`update_fast_path` sets `fast_leader` and
`fast_follower`); those that change with every record are checked here. Both paths produce the same effects;
`test_fast_path_equivalence` runs clusters both ways and compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rostra.fabric.api import Accepted, Append, Committed, FabricEffect, Now, Propose, Send, Synced
from rostra.fabric.raft.consensus.group_state import COMMIT_REPORT_US
from rostra.fabric.raft.consensus.progress import ProgressState
from rostra.fabric.raft.consensus.raft_group import RaftGroup
from rostra.fabric.raft.messages import AppendEntries, AppendEntriesReply
from rostra.model.batch import stamp
from rostra.model.check import read_intact
from rostra.model.ids import NodeId
from rostra.model.layout import CONTROL

REPLICATE = ProgressState.REPLICATE
"""A global, because looking it up in its enumeration costs as much as all other checks of a follower."""


def proposed(group: RaftGroup, now: Now, given: Propose) -> list[FabricEffect] | None:
    """The leader appends a batch and sends it to every follower."""
    if not group.fast_leader:
        return None
    partition, term, commit, log, replication = (
        group.partition,
        group.term,
        group.commit,
        group.log,
        group.replication,
    )
    base, settings, peers = log.end, group.settings, replication.progress
    for progress in peers.values():
        if (
            progress.next != base
            or progress.state is not REPLICATE
            or progress.in_flight_bytes >= settings.window_bytes
            or len(progress.in_flight) >= settings.window_messages
        ):
            return None
    group.now = now
    batch = given.batch
    last = stamp(batch, partition=partition, base_offset=base, owner_epoch=term, owner_flags=given.owner_flags)
    log.end = end = last + 1
    message, payload = AppendEntries(partition, term, base, term, commit, log.first), (batch,)
    sent, size, round_ = (end, len(batch)), len(batch), replication.heartbeat_round
    effects: list[FabricEffect] = [Append(partition, batch, True), Accepted(given.token, partition, base, last)]
    for peer, progress in peers.items():
        effects.append(Send(peer, message, payload))
        progress.quiescent = False
        progress.at_boundary = True
        progress.sent_round = round_
        progress.sent_commit = commit
        progress.in_flight.append(sent)
        progress.in_flight_bytes += size
        progress.next = end
    return effects


def append_acknowledged(
    group: RaftGroup, now: Now, peer: NodeId, reply: AppendEntriesReply, payload: bytearray | None
) -> list[FabricEffect] | None:
    """The leader counts a follower's acknowledgement."""
    replication, end = group.replication, group.log.end
    progress = replication.progress.get(peer)
    if (
        progress is None
        or not group.fast_leader
        or progress.next != end
        or progress.state is not REPLICATE
        or reply.snapshots != progress.snapshots
        or reply.has_readers
        or replication.has_follower_readers
    ):
        return None
    group.now = now
    progress.heard_us = now.mono_us
    progress.has_readers = False
    if reply.commit > progress.commit:
        progress.commit = reply.commit
    if reply.match > progress.match:
        progress.match = reply.match
    in_flight, agreed = progress.in_flight, reply.agreed
    while in_flight and in_flight[0][0] <= agreed:
        progress.in_flight_bytes -= in_flight.popleft()[1]
    return _advance_commit(group)


def synced(group: RaftGroup, now: Now, given: Synced) -> list[FabricEffect] | None:
    """The own disk has synced: the leader counts itself, a follower acknowledges."""
    log, offset = group.log, given.offset
    if given.generation != log.generation or offset <= log.synced or offset > log.end:
        return None
    if group.fast_leader:
        if group.replication.has_follower_readers:
            return None
        group.now = now
        log.synced = offset
        return _advance_commit(group)
    leader = group.leader
    if not group.fast_follower or leader is None:
        return None
    group.now = now
    log.synced = offset
    agreed = group.follower.agreed
    durable = agreed if agreed < offset else offset
    reply = AppendEntriesReply(
        group.partition, group.term, agreed, durable, group.commit, 0, group.hard_state.snapshots, group.has_readers
    )
    return [Send(leader, reply)]


def _advance_commit(group: RaftGroup) -> list[FabricEffect]:
    """Commits what a majority has; everything uncommitted is of the leader's own term here."""
    log, commit = group.log, group.commit
    if commit == log.end:
        return []
    matches = [log.synced]
    for progress in group.replication.voter_progress:
        matches.append(progress.match)
    matches.sort()
    agreed = matches[len(matches) - 1 >> 1]
    if agreed <= commit:
        return []
    group.commit = agreed = min(agreed, log.end)
    return [Committed(group.partition, agreed)]


def append_entries(
    group: RaftGroup, now: Now, peer: NodeId, message: AppendEntries, payload: bytearray | None
) -> list[FabricEffect] | None:
    """A follower appends the one batch that comes next."""
    log = group.log
    end, last_term = log.end, log.last_term
    if (
        payload is None
        or not group.fast_follower
        or peer != group.leader
        or message.prev_end != end
        or message.prev_term != last_term
        or message.log_start > log.first
    ):
        return None
    found = read_intact(payload, group.checksum_seed)
    if found is None:
        return None
    base, following, term, flags = found
    if base != end or flags & CONTROL:
        return None
    group.now = now
    election = group.election
    election.leader_heard_us = now.mono_us
    group.deadline_us = now.mono_us + election.timeout_us
    if term == last_term:
        log.end = following
    else:
        log.append(base, following, term)
    group.follower.agreed = following
    append = Append(group.partition, payload, True)
    commit = message.commit
    if commit > following:
        commit = following
    if commit <= group.commit:
        # The commit offset may exceed this log if the disk refused earlier entries.
        return [append]
    group.commit = commit
    if not group.has_readers and now.mono_us < group.commit_report_us:
        group.unreported_commit = commit
        return [append]
    group.commit_report_us = now.mono_us + COMMIT_REPORT_US
    group.unreported_commit = 0
    return [append, Committed(group.partition, commit)]


HANDLERS: dict[type, Callable[[RaftGroup, Now, NodeId, Any, bytearray | None], list[FabricEffect] | None]] = {
    AppendEntries: append_entries,
    AppendEntriesReply: append_acknowledged,
}
