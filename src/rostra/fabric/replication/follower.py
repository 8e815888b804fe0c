"""The follower's side of replication: appends, truncates and acknowledges entries; installs snapshots."""

from __future__ import annotations

from rostra.errors import PeerViolation
from rostra.fabric.api import Append, Drop, Open, Trim, Truncate
from rostra.fabric.links.messages import PartitionHeartbeat, PartitionHeartbeatReply
from rostra.fabric.replication.incoming_entry import IncomingEntry, read_entries
from rostra.fabric.replication.messages import (
    AppendEntries,
    AppendEntriesRefused,
    AppendEntriesReply,
    InstallSnapshot,
)
from rostra.fabric.replication.replica_state import ReplicaState
from rostra.model.ids import NodeId
from rostra.model.layout import CONTROL
from rostra.safeguards import Safeguard


class Follower:
    def __init__(self, copy: ReplicaState) -> None:
        self._copy = copy
        self.agreed = 0
        """Up to which offset this log agrees with that of the epoch's owner; nothing beyond is acknowledged."""
        self._match = Safeguard.LOG_MATCH not in copy.without
        self._sync_first = Safeguard.PERSIST_BEFORE_REPLY not in copy.without

    def begin_epoch(self) -> None:
        """Starts an owner epoch: only committed entries are known to be in its owner's log."""
        self.agreed = min(self._copy.commit, self._copy.log.end)

    # --- entries ---

    def append_entries(self, owner: NodeId, message: AppendEntries, payload: bytearray | None) -> None:
        copy = self._copy
        log = copy.log
        if not copy.complete and not copy.installing_snapshot:
            self._refuse(owner, message.prev_end, message.prev_epoch, empty=True)
            return
        prev_end = message.prev_end
        # Below commit every owner's log agrees with ours.
        if prev_end > log.end or (
            self._match and prev_end > copy.commit and log.epoch_at(prev_end) != message.prev_epoch
        ):
            self._refuse(owner, message.prev_end, message.prev_epoch, empty=False)
            return
        entries = read_entries(payload, copy.partition, copy.checksum_seed) if payload else []
        if self._waits_for_hard_state(owner, message, payload, entries):
            return
        self._append_new(entries)
        end = entries[-1].end if entries else prev_end
        if entries or message.at_boundary or end == log.end:
            end = min(end, log.end)
            if end > self.agreed:
                self.agreed = end
        self.learn_commit(message.commit)
        if log.first < message.log_start <= copy.commit:
            log.trim(message.log_start)
            copy.out.append(Trim(copy.partition, message.log_start))
        if message.commit_only:
            # A commit-only message needs no reply: the next heartbeat reports the commit offset.
            return
        if not entries:
            self.acknowledge(owner, probed=message.prev_end)
        elif log.synced >= self.agreed or not self._sync_first:
            self.acknowledge(owner)

    def _waits_for_hard_state(
        self, owner: NodeId, message: AppendEntries, payload: bytearray | None, entries: list[IncomingEntry]
    ) -> bool:
        """Whether control batches change hard state, which must be durable before they are appended."""
        copy = self._copy
        control = [entry for entry in entries if entry.flags & CONTROL and not self._has(entry)]
        if not control or not copy.control_batches_arrived(control):
            return False
        copy.run_after_persist(lambda: copy.receive(copy.now, owner, message, payload))
        return True

    def _has(self, entry: IncomingEntry) -> bool:
        log = self._copy.log
        if entry.end > log.end:
            return False
        probed = max(self._copy.commit, log.first)
        return entry.end <= probed or log.epoch_at(entry.end) == entry.epoch

    def _append_new(self, entries: list[IncomingEntry]) -> None:
        """Skips entries that are in the log, truncates at a conflict, appends the rest."""
        copy = self._copy
        log = copy.log
        took = False
        for entry in entries:
            if entry.end <= log.end and self._has(entry):
                continue
            if entry.base < log.end:
                self._truncate(entry.base)
            if entry.base != log.end:
                raise PeerViolation("entries", f"offset {entry.base} was sent where {log.end} belongs")
            log.append(entry.base, entry.end, entry.epoch)
            copy.out.append(Append(copy.partition, entry.batch, True))
            took = True
        if took:
            copy.entries_appended()

    def _truncate(self, offset: int) -> None:
        copy = self._copy
        if offset < copy.commit:
            raise PeerViolation("entries", f"offset {offset} is committed here and would be replaced")
        generation = copy.log.truncate(offset)
        self.agreed = min(self.agreed, offset)
        copy.out.append(Truncate(copy.partition, offset, generation))
        copy.add_log_line("info", "uncommitted entries truncated", {"offset": offset})
        copy.log_changed()

    def _refuse(self, owner: NodeId, prev_end: int, prev_epoch: int, *, empty: bool) -> None:
        copy = self._copy
        log = copy.log
        hint_end = log.find_conflict(prev_end, prev_epoch)
        copy.send(
            owner,
            AppendEntriesRefused(
                copy.partition, copy.epoch, prev_end, hint_end, log.epoch_at(hint_end), empty, copy.snapshots
            ),
        )

    def learn_commit(self, commit: int) -> None:
        copy = self._copy
        known = min(commit, self.agreed)
        if known > copy.commit:
            copy.advance_commit(known)
        if copy.installing_snapshot and self.agreed >= commit and copy.log.epoch_at(commit) == copy.epoch:
            # The owner has committed in its own epoch, so everything ever acknowledged lies below that. Entries
            # received before a restart do not count: the metadata was not built from them.
            if copy.complete_at is None:
                copy.complete_at = self.agreed
            self.finish_snapshot()

    def finish_snapshot(self) -> None:
        """Marks the copy complete once everything up to `complete_at` is on stable storage."""
        copy = self._copy
        if copy.complete_at is not None and copy.log.synced >= copy.complete_at:
            copy.add_log_line("info", "replica restored", {"end": copy.log.end})
            copy.set_complete(True)

    def acknowledge(self, owner: NodeId, *, probed: int = 0) -> None:
        copy = self._copy
        snapshots, has_readers = copy.snapshots, copy.has_readers
        reply = AppendEntriesReply(
            copy.partition, copy.epoch, self.agreed, self._durable_end(), copy.commit, probed, snapshots, has_readers
        )
        copy.send(owner, reply)

    def _durable_end(self) -> int:
        """The offset up to which this node acknowledges; an incomplete copy acknowledges nothing."""
        copy = self._copy
        if not copy.complete:
            return 0
        return min(self.agreed, copy.log.synced) if self._sync_first else self.agreed

    # --- heartbeats ---

    def heartbeat(self, owner: NodeId, heartbeat: PartitionHeartbeat) -> PartitionHeartbeatReply:
        copy = self._copy
        self.learn_commit(heartbeat.commit)
        copy.report_commit()
        if not copy.complete and not copy.installing_snapshot:
            # An owner that believes this copy complete sends no entries that could be refused.
            self._refuse(owner, copy.log.end, copy.log.last_epoch, empty=True)
        quiescent = heartbeat.quiescent and copy.commit == copy.log.end == heartbeat.commit and copy.complete
        copy.quiescent = quiescent
        return PartitionHeartbeatReply(
            copy.partition,
            copy.epoch,
            heartbeat.round,
            self.agreed,
            self._durable_end(),
            copy.commit,
            quiescent,
            copy.snapshots,
        )

    # --- snapshots ---

    def install_snapshot(self, owner: NodeId, message: InstallSnapshot) -> None:
        """Persists where the log will restart, then drops the old log.

        A complete copy stays complete: what it has beyond the owner's log start and differs was never committed.
        """
        copy = self._copy
        log = copy.log
        prev_epoch = message.epochs[-1].epoch if message.epochs else 0
        fits = log.first <= message.log_start <= log.end and log.epoch_at(message.log_start) == prev_epoch
        if (copy.complete or copy.installing_snapshot) and (fits or min(copy.commit, log.end) >= message.log_start):
            # A repeated message, or one that newer entries have overtaken.
            self.agreed = max(self.agreed, message.log_start)
            self.acknowledge(owner, probed=message.log_start)
            return
        copy.begin_snapshot(message)
        copy.run_after_persist(lambda: self._restart_log(owner, message))

    def _restart_log(self, owner: NodeId, message: InstallSnapshot) -> None:
        copy = self._copy
        if message.epoch != copy.epoch:
            return
        copy.installing_snapshot = not copy.complete
        copy.log.reset(message.log_start, message.epochs)
        copy.commit = message.log_start
        copy.unreported_commit = 0
        self.agreed = message.log_start
        copy.out += [Drop(copy.partition), Open(copy.partition, copy.segment_bytes, message.log_start)]
        copy.log_changed()
        copy.announce()
        copy.add_log_line("warning", "log restarted", {"first": message.log_start})
        self.acknowledge(owner, probed=message.log_start)
