"""The follower's side of replication: what it takes from a leader, what it cuts, and what it acknowledges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rostra.errors import BatchRejected, PeerViolation
from rostra.fabric.api import Append, Drop, Open, Trim, Truncate
from rostra.fabric.raft.consensus.hard_state import CopyStart, GroupConfigAt
from rostra.fabric.raft.consensus.membership import read_config
from rostra.fabric.raft.messages import (
    AppendEntries,
    AppendEntriesRefused,
    AppendEntriesReply,
    GroupHeartbeat,
    GroupHeartbeatReply,
    InstallSnapshot,
)
from rostra.model.batch import ARRIVED
from rostra.model.check import check_stored
from rostra.model.ids import NodeId, Partition
from rostra.model.layout import CONTROL
from rostra.safeguards import Safeguard

if TYPE_CHECKING:
    from rostra.fabric.raft.consensus.raft_group import RaftGroup


class IncomingEntry(msgspec.Struct, frozen=True):
    batch: bytearray
    base: int
    following: int
    term: int
    control: bool
    """Whether somebody other than a publisher wrote it."""


class Follower:
    def __init__(self, group: RaftGroup) -> None:
        self._group = group
        self.held = 0
        """How far this log is known to agree with that of the term's leader. Nothing beyond is acknowledged to it."""
        self._match = Safeguard.LOG_MATCH not in group.without
        self._sync_first = Safeguard.PERSIST_BEFORE_REPLY not in group.without

    def begin(self) -> None:
        """Another term: its leader has not yet said what its log holds. What is committed, every leader's holds."""
        self.held = min(self._group.commit, self._group.copy.end)

    # --- entries ---

    def receive(self, leader: NodeId, message: AppendEntries, payload: bytearray | None) -> None:
        group = self._group
        copy = group.copy
        if not group.complete and not group.refilling:
            self._refuse(leader, message.prev_end, message.prev_term, empty=True)
            return
        prev_end = message.prev_end
        # Below commit every leader's log agrees with ours.
        if prev_end > copy.end or (
            self._match and prev_end > group.commit and copy.term_at(prev_end) != message.prev_term
        ):
            self._refuse(leader, message.prev_end, message.prev_term, empty=False)
            return
        batches = _arriving(payload, group.partition) if payload else []
        if self._learns_configuration(leader, message, payload, batches):
            return
        self._take(batches)
        end = batches[-1].following if batches else prev_end
        if batches or message.whole or end == copy.end:
            self.held = max(self.held, min(end, copy.end))
        self._follow_leader(message)
        if message.news:
            # It told what is committed, and nothing more: the next heartbeat asks whether it was heard.
            return
        if not batches:
            self.acknowledge(leader, agreed=message.prev_end)
        elif copy.synced >= self.held or not self._sync_first:
            self.acknowledge(leader)

    def _learns_configuration(
        self, leader: NodeId, message: AppendEntries, payload: bytearray | None, batches: list[IncomingEntry]
    ) -> bool:
        """A configuration is in the hard state before its entry is in the log: so what the log has is always known."""
        group = self._group
        unknown = []
        for arriving in batches:
            if arriving.control and not self._has(arriving) and (config := read_config(arriving.batch)) is not None:
                row = GroupConfigAt(arriving.following, arriving.term, config)
                if row not in group.hard.configs:
                    unknown.append(row)
        if not unknown:
            return False
        group.remember_configs(unknown)
        group.retry(lambda: group.receive(group.now, leader, message, payload))
        return True

    def _has(self, arriving: IncomingEntry) -> bool:
        copy = self._group.copy
        if arriving.following > copy.end:
            return False
        agreed = max(self._group.commit, copy.first)
        return arriving.following <= agreed or copy.term_at(arriving.following) == arriving.term

    def _take(self, batches: list[IncomingEntry]) -> None:
        """Skips what is here already, cuts what contradicts it, appends the rest."""
        group = self._group
        copy = group.copy
        took = False
        for arriving in batches:
            if self._has(arriving):
                continue
            if arriving.base < copy.end:
                self._cut(arriving.base)
            if arriving.base != copy.end:
                raise PeerViolation("entries", f"offset {arriving.base} was sent where {copy.end} belongs")
            copy.appended(arriving.base, arriving.following, arriving.term)
            group.out.append(Append(group.partition, arriving.batch, True))
            took = True
        if took:
            rows = group.hard.configs
            if rows and rows[-1].end > group.config_end:
                group.configs_moved()

    def _cut(self, offset: int) -> None:
        group = self._group
        if offset < group.commit:
            raise PeerViolation("entries", f"offset {offset} is committed here and would be replaced")
        generation = group.copy.cut(offset)
        self.held = min(self.held, offset)
        group.out.append(Truncate(group.partition, offset, generation))
        group.note("info", "uncommitted end cut", {"offset": offset})
        group.configs_moved()

    def _refuse(self, leader: NodeId, prev_end: int, prev_term: int, *, empty: bool) -> None:
        group = self._group
        copy = group.copy
        hint_end = copy.before(prev_end, prev_term)
        group.send(
            leader,
            AppendEntriesRefused(
                group.partition, group.term, prev_end, hint_end, copy.term_at(hint_end), empty, group.hard.fills
            ),
        )

    def _follow_leader(self, message: AppendEntries) -> None:
        """What the leader says of its commit and its log start."""
        group = self._group
        self.learn_commit(message.commit)
        if group.copy.first < message.first <= group.commit:
            group.copy.trimmed(message.first)
            group.out.append(Trim(group.partition, message.first))

    def learn_commit(self, commit: int) -> None:
        group = self._group
        known = min(commit, self.held)
        if known > group.commit:
            group.advance_commit(known)
        if group.refilling and self.held >= commit and group.copy.term_at(commit) == group.term:
            # The leader has committed in its own term, so everything ever acknowledged lies below that. What an
            # earlier run had filled in does not count: nobody has read it, and the catalogue would lack it.
            if group.whole_at is None:
                group.whole_at = self.held
            self.mend()

    def mend(self) -> None:
        """The copy is whole again once all of that is on stable storage."""
        group = self._group
        if group.whole_at is not None and group.copy.synced >= group.whole_at:
            group.note("info", "copy refilled", {"end": group.copy.end})
            group.set_complete(True)

    def acknowledge(self, leader: NodeId, *, agreed: int = 0) -> None:
        group = self._group
        fills, readers = group.hard.fills, group.has_readers
        reply = AppendEntriesReply(
            group.partition, group.term, self.held, self._durable(), group.commit, agreed, fills, readers
        )
        group.send(leader, reply)

    def _durable(self) -> int:
        """What this node vouches for: an incomplete copy for nothing."""
        group = self._group
        if not group.complete:
            return 0
        return min(self.held, group.copy.synced) if self._sync_first else self.held

    # --- heartbeats ---

    def beat(self, leader: NodeId, beat: GroupHeartbeat) -> GroupHeartbeatReply:
        group = self._group
        self.learn_commit(beat.commit)
        group.say_commit()
        if not group.complete and not group.refilling:
            # A leader that takes this copy for a full one sends nothing that could be refused.
            self._refuse(leader, group.copy.end, group.copy.last_term, empty=True)
        quiet = beat.quiet and group.commit == group.copy.end == beat.commit and group.complete
        group.quiet = quiet
        return GroupHeartbeatReply(
            group.partition, group.term, beat.round, self.held, self._durable(), group.commit, quiet, group.hard.fills
        )

    # --- beginning anew ---

    def refill(self, leader: NodeId, message: InstallSnapshot) -> None:
        """First it is written down where the copy will begin; only then is what is left of it dropped.

        A whole copy stays whole: where it differs from the leader's log start on, nothing of it was ever committed.
        """
        group = self._group
        copy = group.copy
        prev_term = message.epochs[-1].epoch if message.epochs else 0
        fits = copy.first <= message.first <= copy.end and copy.term_at(message.first) == prev_term
        if (group.complete or group.refilling) and (fits or min(group.commit, copy.end) >= message.first):
            # Said twice, or overtaken by what came meanwhile.
            self.held = max(self.held, message.first)
            self.acknowledge(leader, agreed=message.first)
            return
        group.begin_refill(CopyStart(message.first, message.epochs), message.configs)
        group.retry(lambda: self._begin_anew(leader, message))

    def _begin_anew(self, leader: NodeId, message: InstallSnapshot) -> None:
        group = self._group
        if message.term != group.term:
            return
        group.refilling = not group.complete
        group.copy.emptied(message.first, message.epochs)
        group.commit = message.first
        group.unsaid = 0
        self.held = message.first
        group.out += [Drop(group.partition), Open(group.partition, group.segment_bytes, message.first)]
        group.configs_moved()
        group.announce()
        group.note("warning", "copy is filled anew", {"first": message.first})
        self.acknowledge(leader, agreed=message.first)


def _arriving(payload: bytearray, partition: Partition) -> list[IncomingEntry]:
    """The batches of a payload, each intact and of this partition: damage does not spread from copy to copy."""
    at = 0
    whole = len(payload)
    batches: list[IncomingEntry] = []
    while at < whole:
        try:
            length = check_stored(payload, at, partition)
        except BatchRejected as rejected:
            raise PeerViolation("entries", rejected.detail) from None
        batch = payload if length == whole else payload[at : at + length]
        base, term, delta, flags = ARRIVED.unpack_from(batch, 8)
        batches.append(IncomingEntry(batch, base, base + delta + 1, term, bool(flags & CONTROL)))
        at += length
    return batches
