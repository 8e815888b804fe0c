"""The follower's side of replication: appends, truncates and acknowledges entries; installs snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rostra.errors import BatchRejected, PeerViolation
from rostra.fabric.api import Append, Drop, Open, Trim, Truncate
from rostra.fabric.raft.consensus.hard_state import GroupConfigAt, SnapshotStart
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
    end: int
    term: int
    control: bool
    """Whether it is a control batch, not a publisher's."""


class Follower:
    def __init__(self, group: RaftGroup) -> None:
        self._group = group
        self.agreed = 0
        """Up to which offset this log agrees with that of the term's leader; nothing beyond is acknowledged."""
        self._match = Safeguard.LOG_MATCH not in group.without
        self._sync_first = Safeguard.PERSIST_BEFORE_REPLY not in group.without

    def begin_term(self) -> None:
        """Starts a term: only committed entries are known to be in its leader's log."""
        self.agreed = min(self._group.commit, self._group.log.end)

    # --- entries ---

    def append_entries(self, leader: NodeId, message: AppendEntries, payload: bytearray | None) -> None:
        group = self._group
        log = group.log
        if not group.complete and not group.installing_snapshot:
            self._refuse(leader, message.prev_end, message.prev_term, empty=True)
            return
        prev_end = message.prev_end
        # Below commit every leader's log agrees with ours.
        if prev_end > log.end or (
            self._match and prev_end > group.commit and log.term_at(prev_end) != message.prev_term
        ):
            self._refuse(leader, message.prev_end, message.prev_term, empty=False)
            return
        batches = _read_entries(payload, group.partition) if payload else []
        if self._persists_new_configs(leader, message, payload, batches):
            return
        self._append_new(batches)
        end = batches[-1].end if batches else prev_end
        if batches or message.at_boundary or end == log.end:
            self.agreed = max(self.agreed, min(end, log.end))
        self._apply_leader_offsets(message)
        if message.commit_only:
            # A commit-only message needs no reply: the next heartbeat reports the commit offset.
            return
        if not batches:
            self.acknowledge(leader, probed=message.prev_end)
        elif log.synced >= self.agreed or not self._sync_first:
            self.acknowledge(leader)

    def _persists_new_configs(
        self, leader: NodeId, message: AppendEntries, payload: bytearray | None, batches: list[IncomingEntry]
    ) -> bool:
        """Persists configurations before their entries are appended; returns whether the append must wait for that."""
        group = self._group
        unknown = []
        for entry in batches:
            if entry.control and not self._has(entry) and (config := read_config(entry.batch)) is not None:
                row = GroupConfigAt(entry.end, entry.term, config)
                if row not in group.hard_state.configs:
                    unknown.append(row)
        if not unknown:
            return False
        group.add_configs(unknown)
        group.run_after_persist(lambda: group.receive(group.now, leader, message, payload))
        return True

    def _has(self, entry: IncomingEntry) -> bool:
        log = self._group.log
        if entry.end > log.end:
            return False
        probed = max(self._group.commit, log.first)
        return entry.end <= probed or log.term_at(entry.end) == entry.term

    def _append_new(self, batches: list[IncomingEntry]) -> None:
        """Skips entries that are in the log, truncates at a conflict, appends the rest."""
        group = self._group
        log = group.log
        took = False
        for entry in batches:
            if self._has(entry):
                continue
            if entry.base < log.end:
                self._truncate(entry.base)
            if entry.base != log.end:
                raise PeerViolation("entries", f"offset {entry.base} was sent where {log.end} belongs")
            log.append(entry.base, entry.end, entry.term)
            group.out.append(Append(group.partition, entry.batch, True))
            took = True
        if took:
            rows = group.hard_state.configs
            if rows and rows[-1].end > group.config_end:
                group.update_config()

    def _truncate(self, offset: int) -> None:
        group = self._group
        if offset < group.commit:
            raise PeerViolation("entries", f"offset {offset} is committed here and would be replaced")
        generation = group.log.truncate(offset)
        self.agreed = min(self.agreed, offset)
        group.out.append(Truncate(group.partition, offset, generation))
        group.add_log_line("info", "uncommitted entries truncated", {"offset": offset})
        group.update_config()

    def _refuse(self, leader: NodeId, prev_end: int, prev_term: int, *, empty: bool) -> None:
        group = self._group
        log = group.log
        hint_end = log.find_conflict_by_term(prev_end, prev_term)
        group.send(
            leader,
            AppendEntriesRefused(
                group.partition,
                group.term,
                prev_end,
                hint_end,
                log.term_at(hint_end),
                empty,
                group.hard_state.snapshots,
            ),
        )

    def _apply_leader_offsets(self, message: AppendEntries) -> None:
        """Adopts the leader's commit offset and log start."""
        group = self._group
        self.learn_commit(message.commit)
        if group.log.first < message.log_start <= group.commit:
            group.log.trim(message.log_start)
            group.out.append(Trim(group.partition, message.log_start))

    def learn_commit(self, commit: int) -> None:
        group = self._group
        known = min(commit, self.agreed)
        if known > group.commit:
            group.advance_commit(known)
        if group.installing_snapshot and self.agreed >= commit and group.log.term_at(commit) == group.term:
            # The leader has committed in its own term, so everything ever acknowledged lies below that. Entries
            # received before a restart do not count: the metadata was not built from them.
            if group.complete_at is None:
                group.complete_at = self.agreed
            self.finish_snapshot()

    def finish_snapshot(self) -> None:
        """Marks the replica complete once everything up to `complete_at` is on stable storage."""
        group = self._group
        if group.complete_at is not None and group.log.synced >= group.complete_at:
            group.add_log_line("info", "replica restored", {"end": group.log.end})
            group.set_complete(True)

    def acknowledge(self, leader: NodeId, *, probed: int = 0) -> None:
        group = self._group
        snapshots, has_readers = group.hard_state.snapshots, group.has_readers
        reply = AppendEntriesReply(
            group.partition, group.term, self.agreed, self._durable_end(), group.commit, probed, snapshots, has_readers
        )
        group.send(leader, reply)

    def _durable_end(self) -> int:
        """The offset up to which this node acknowledges; an incomplete replica acknowledges nothing."""
        group = self._group
        if not group.complete:
            return 0
        return min(self.agreed, group.log.synced) if self._sync_first else self.agreed

    # --- heartbeats ---

    def heartbeat(self, leader: NodeId, heartbeat: GroupHeartbeat) -> GroupHeartbeatReply:
        group = self._group
        self.learn_commit(heartbeat.commit)
        group.report_commit()
        if not group.complete and not group.installing_snapshot:
            # A leader that believes this replica complete sends no entries that could be refused.
            self._refuse(leader, group.log.end, group.log.last_term, empty=True)
        quiescent = heartbeat.quiescent and group.commit == group.log.end == heartbeat.commit and group.complete
        group.quiescent = quiescent
        return GroupHeartbeatReply(
            group.partition,
            group.term,
            heartbeat.round,
            self.agreed,
            self._durable_end(),
            group.commit,
            quiescent,
            group.hard_state.snapshots,
        )

    # --- snapshots ---

    def install_snapshot(self, leader: NodeId, message: InstallSnapshot) -> None:
        """Persists where the log will restart, then drops the old log.

        A complete replica stays complete: what it has beyond the leader's log start and differs was never committed.
        """
        group = self._group
        log = group.log
        prev_term = message.epochs[-1].epoch if message.epochs else 0
        fits = log.first <= message.log_start <= log.end and log.term_at(message.log_start) == prev_term
        if (group.complete or group.installing_snapshot) and (fits or min(group.commit, log.end) >= message.log_start):
            # A repeated message, or one that newer entries have overtaken.
            self.agreed = max(self.agreed, message.log_start)
            self.acknowledge(leader, probed=message.log_start)
            return
        group.begin_snapshot(SnapshotStart(message.log_start, message.epochs), message.configs)
        group.run_after_persist(lambda: self._restart_log(leader, message))

    def _restart_log(self, leader: NodeId, message: InstallSnapshot) -> None:
        group = self._group
        if message.term != group.term:
            return
        group.installing_snapshot = not group.complete
        group.log.reset(message.log_start, message.epochs)
        group.commit = message.log_start
        group.unreported_commit = 0
        self.agreed = message.log_start
        group.out += [Drop(group.partition), Open(group.partition, group.segment_bytes, message.log_start)]
        group.update_config()
        group.announce()
        group.add_log_line("warning", "log restarted", {"first": message.log_start})
        self.acknowledge(leader, probed=message.log_start)


def _read_entries(payload: bytearray, partition: Partition) -> list[IncomingEntry]:
    """Splits a payload into batches and checks each, so that damage does not spread between replicas."""
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
