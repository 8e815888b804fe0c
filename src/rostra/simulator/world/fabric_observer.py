"""Wraps a fabric and records what it appends, truncates and commits into the history.

The observer sees effects only; the one exception is Raft's metadata group, whose commit offset is in no effect. It
keeps a shadow of every log to know which batches an offset stands for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import takewhile

from xxhash import xxh3_64_intdigest

from rostra.errors import BatchRejected, RostraError
from rostra.fabric.api import (
    AcksAll,
    Append,
    BatchOffsets,
    Committed,
    Covered,
    Drop,
    Fabric,
    FabricEffect,
    FabricInput,
    LogLine,
    Now,
    Open,
    Persist,
    Read,
    Send,
    Serving,
    SetTimer,
    Started,
    Sync,
    Synced,
    Trim,
    Truncate,
    WriteFailed,
)
from rostra.fabric.cluster.metadata_entries import METADATA_PARTITION
from rostra.fabric.consensus.raft_group import RaftGroup
from rostra.fabric.raft.machine import Raft
from rostra.fabric.status import ClusterStatus
from rostra.model.batch import HEADER_BYTES, Buffer, Flag, base_offset, batch_length, last_offset
from rostra.model.check import check_stored
from rostra.model.ids import NodeId, Partition, PartitionIndex, TopicId, parse_id
from rostra.simulator.clock import Clock
from rostra.simulator.disk.faulty_files import FaultyFiles
from rostra.simulator.history import History, StoredBatch, TruncatedCommit

MAGIC = b"RST1"
FLAGS_AT = 60
COMPACTABLE = int(Flag.KEYS | Flag.OFFSET_DELTAS)
DAMAGED = 0
IGNORED = frozenset({Send, SetTimer, Sync, Read, LogLine, Persist})
"""Frequent effects that the observer does not need."""


class ShadowLog:
    """The batches of one log, as the effects so far have left it."""

    __slots__ = ("batches", "checked")

    def __init__(self, batches: list[StoredBatch] | None = None) -> None:
        self.batches = batches or []
        self.checked = 0
        """How many of the batches are already recorded as committed."""


class FabricObserver:
    """A fabric that records what the wrapped fabric does. `logs` are the batches on disk at the start."""

    def __init__(
        self, fabric: Fabric, node: NodeId, clock: Clock, history: History, logs: dict[Partition, list[StoredBatch]]
    ) -> None:
        self.guarantees = fabric.guarantees
        self._fabric = fabric
        self._groups: dict[Partition, RaftGroup] = fabric.groups if isinstance(fabric, Raft) else {}
        self._node = node
        self._clock = clock
        self._history = history
        self._tracks_syncs = fabric.guarantees.acks_all is AcksAll.VIEW
        self._metadata_commit = 0
        """The commit offset of the metadata group at the last step."""
        self._shadows = {partition: ShadowLog(batches) for partition, batches in logs.items()}
        self._commits: dict[Partition, int] = {}

    @property
    def raft(self) -> Raft:
        assert isinstance(self._fabric, Raft)
        return self._fabric

    def status(self) -> ClusterStatus | None:
        return self._fabric.status()

    def problem(self) -> str:
        return self._fabric.problem()

    def step(self, now: Now, given: FabricInput) -> list[FabricEffect]:
        if self._tracks_syncs:
            self._track_sync(given)
        effects = self._fabric.step(now, given)
        if type(given) is WriteFailed:
            self._cut_shadow(given.partition, given.offset)
        if effects:
            self._observe(effects)
        return effects

    def propose(
        self, now: Now, partition: Partition, batch: bytearray, owner_flags: int = 0
    ) -> tuple[BatchOffsets | RostraError, list[FabricEffect]]:
        result, effects = self._fabric.propose(now, partition, batch, owner_flags)
        self._observe(effects)
        return result, effects

    def _observe(self, effects: list[FabricEffect]) -> None:
        for effect in effects:
            if type(effect) in IGNORED:
                continue
            match effect:
                case Append():
                    batch = effect.batch
                    stored = StoredBatch(base_offset(batch, 0), last_offset(batch, 0) + 1, digest_of(batch))
                    self._shadow(effect.partition).batches.append(stored)
                case Committed():
                    self._committed(effect.partition, effect.offset)
                case Truncate():
                    self._truncated(effect.partition, effect.offset)
                case Trim():
                    self._trimmed(effect.partition, effect.first)
                case Open() | Drop():
                    self._shadows.pop(effect.partition, None)
                    self._commits.pop(effect.partition, None)
                    if effect.partition == METADATA_PARTITION:
                        self._metadata_commit = 0
                    if isinstance(effect, Open) and effect.first:
                        # The log starts at the cluster's log start: below it there is nothing to sync.
                        key = self._node, effect.partition
                        self._history.synced_offsets[key] = max(effect.first, self._history.synced_offsets.get(key, 0))
                case Serving():
                    if effect.owner:
                        self._history.saw_leader(effect.partition, effect.epoch, self._node)
                case Covered():
                    self._covered(effect)
                case _:
                    pass
        metadata = self._groups.get(METADATA_PARTITION)
        if metadata is not None and metadata.commit > self._metadata_commit:
            self._metadata_commit = metadata.commit
            self._committed(METADATA_PARTITION, metadata.commit)

    def _track_sync(self, given: FabricInput) -> None:
        synced_offsets = self._history.synced_offsets
        match given:
            case Synced():
                key = self._node, given.partition
                synced_offsets[key] = max(given.offset, synced_offsets.get(key, 0))
            case Started():
                for found in given.partitions:
                    key = self._node, found.partition
                    # Acknowledgements sent before the damage were correct and may still be in flight.
                    before = synced_offsets.get(key, 0) if found.damaged_at is not None else 0
                    synced_offsets[key] = max(found.end, before)
            case _:
                pass

    def _covered(self, effect: Covered) -> None:
        """Checks that every node named in an acknowledgement had synced the record."""
        for node in effect.view.active:
            had = self._history.synced_offsets.get((node, effect.partition), 0)
            if had < effect.offset:
                claim = f"node {self._node} names node {node} for {effect.partition} up to {effect.offset}"
                self._history.false_claims.append(f"{claim}, its disk has {had}")

    def _shadow(self, partition: Partition) -> ShadowLog:
        shadow = self._shadows.get(partition)
        if shadow is None:
            shadow = self._shadows[partition] = ShadowLog()
        return shadow

    def _committed(self, partition: Partition, offset: int) -> None:
        shadow = self._shadow(partition)
        known = self._history.committed.setdefault(partition, {})
        self._commits[partition] = offset
        batches = shadow.batches
        at = shadow.checked
        while at < len(batches) and batches[at].end <= offset:
            if batches[at].digest != DAMAGED:
                known.setdefault(batches[at], self._node)
            at += 1
        shadow.checked = at
        if not batches or batches[-1].end < offset:
            self._history.false_claims.append(f"node {self._node} calls {partition} committed up to {offset}, has less")

    def _truncated(self, partition: Partition, offset: int) -> None:
        known = self._history.committed.get(partition, {})
        if any(stored in known for stored in self._cut_shadow(partition, offset)):
            self._history.truncated_commits.append(TruncatedCommit(self._node, partition, offset, self._clock.now_us))

    def _cut_shadow(self, partition: Partition, offset: int) -> list[StoredBatch]:
        """Truncates the shadow log; returns the removed batches."""
        shadow = self._shadow(partition)
        at = bisect_left(shadow.batches, offset, key=lambda stored: stored.base)
        removed = shadow.batches[at:]
        del shadow.batches[at:]
        shadow.checked = min(shadow.checked, at)
        return removed

    def _trimmed(self, partition: Partition, first: int) -> None:
        shadow = self._shadow(partition)
        at = bisect_left(shadow.batches, first, key=lambda stored: stored.base)
        del shadow.batches[:at]
        shadow.checked = max(shadow.checked - at, 0)

    def commits(self) -> dict[Partition, int]:
        """Commit offsets by partition, as this node reported them."""
        return dict(self._commits)


def read_logs(files: FaultyFiles) -> dict[Partition, list[StoredBatch]]:
    """The batches in the log files of a disk, by partition, up to the first that cannot be parsed."""
    logs: dict[Partition, list[StoredBatch]] = {}
    flipped = files.counters["bits_flipped"] > 0
    for path in files.paths("topics"):
        if path.endswith(".log"):
            partition = partition_of(path)
            batches = batches_in(files.read_whole(path), partition, check=flipped)
            logs.setdefault(partition, []).extend(batches)
    return logs


def batches_in(content: bytes, partition: Partition, *, check: bool) -> Iterable[StoredBatch]:
    """The batches of one log file. With `check`, a batch with flipped bits has the digest `DAMAGED`."""
    at = 0
    while at + HEADER_BYTES <= len(content) and content[at : at + 4] == MAGIC:
        length = batch_length(content, at)
        if length < HEADER_BYTES or at + length > len(content):
            return
        digest = digest_of(content[at : at + length])
        if check:
            try:
                check_stored(content, at, partition)
            except BatchRejected:
                digest = DAMAGED
        yield StoredBatch(base_offset(content, at), last_offset(content, at) + 1, digest)
        at += length


def digest_of(batch: Buffer) -> int:
    """A digest of what all replicas have in common: with keys, each replica compacts on its own schedule."""
    if batch[FLAGS_AT] & COMPACTABLE:
        return xxh3_64_intdigest(bytes(batch[8:30]) + bytes(batch[40:56]))
    return xxh3_64_intdigest(batch)


def committed_batches(batches: list[StoredBatch], commit: int) -> list[StoredBatch]:
    return list(takewhile(lambda stored: stored.end <= commit, batches))


def partition_of(path: str) -> Partition:
    topic, index = path.split("/")[1].rsplit("-", 1)
    return Partition(TopicId(parse_id(topic)), PartitionIndex(int(index)))
