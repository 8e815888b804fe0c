"""What must hold of a partition, whatever happens; each checker sees effects, disks and the authority only.

- `CommittedHistory`: nothing committed is lost or changed, and all copies agree on it.
- `OneOrderPerEpoch`: in a primary epoch an offset is given out once.
- `HeldByMembers`: what a primary commits is on stable storage at every member that the authority names, and at enough
  of them.
- `KeptCopies`: a copy outside the set is not dropped while a node that should have one is no member.
"""

from __future__ import annotations

from rostra.fabric.primary_backup.configuration import Configuration, Copy, CopyPolicy, RemovalReason, RemoveMember
from rostra.model.ids import NodeId
from rostra.simulator.primary_backup.authority import Decision
from rostra.simulator.primary_backup.copy_disk import HeldRecord, StoredBatch
from rostra.simulator.primary_backup.copy_node import CopyNode

BYTES_ALL = 1 << 40
GOES_BELOW = (RemovalReason.UNFIT, RemovalReason.OPERATOR)


class CommittedHistory:
    """The committed records by offset, as the first node that reported them had them."""

    def __init__(self) -> None:
        self.batches: dict[int, StoredBatch] = {}
        """By base offset, in order."""
        self.end = 0

    def committed(self, node: CopyNode, since: int, offset: int) -> str | None:
        """A node says that everything below an offset is committed; below `since` it has said so before."""
        disk = node.disk
        if disk.end < offset and self.end < offset:
            # A backup whose disk has just refused a write may have learned that others committed it.
            return f"node {node.node} reports {offset} as committed, and its log ends at {disk.end}"
        reported = disk.read(since, offset, BYTES_ALL)
        wrong = self.contradicted_by(reported)
        if wrong is not None:
            return f"node {node.node} committed {wrong}"
        for batch in reported:
            if batch.base > self.end:
                return f"node {node.node} committed {batch.base}, and {self.end} was never committed"
            if batch.base == self.end:
                self.batches[batch.base] = batch
                self.end = batch.end
        return None

    def contradicted_by(self, batches: list[StoredBatch]) -> str | None:
        for batch in batches:
            if batch.base >= self.end:
                break
            known = self.batches.get(batch.base)
            if known is None:
                return f"a batch at {batch.base} where none was committed"
            if known.identity != batch.identity:
                return f"{batch.identity} where {known.identity} was committed"
        return None

    def lost_by(self, node: CopyNode) -> str | None:
        """A node begins to order: it must have everything that was committed."""
        disk = node.disk
        if disk.end < self.end:
            return f"node {node.node} orders from {disk.end} on; {self.end} was committed"
        wrong = self.contradicted_by(disk.batches)
        return f"node {node.node} orders with {wrong}" if wrong is not None else None

    def visible(self, first: int, below: int) -> dict[str, int]:
        """The record that each key has, of those that were not deleted for their age."""
        found: dict[str, tuple[int, int]] = {}
        for batch in self.batches.values():
            record = batch.record
            if batch.end > below or not record.key:
                continue
            if record.tombstone:
                found.pop(record.key, None)
            else:
                found[record.key] = (batch.base, record.number)
        return {key: number for key, (base, number) in found.items() if base >= first}

    def resurrected_by(self, node: CopyNode, below: int) -> str | None:
        """A copy shows what compaction and its later records hide."""
        shown, expected = node.disk.visible(below), self.visible(node.disk.first, below)
        if shown == expected:
            return None
        keys = sorted(key for key in shown.keys() | expected.keys() if shown.get(key) != expected.get(key))
        differing = {key: (shown.get(key), expected.get(key)) for key in keys}
        return f"node {node.node} shows other records below {below} than were committed: {differing}"


class OneOrderPerEpoch:
    def __init__(self) -> None:
        self._ordered: dict[tuple[int, int], tuple[int, int, int, int]] = {}

    def appended(self, node: CopyNode, batch: StoredBatch) -> str | None:
        first = self._ordered.setdefault((batch.epoch, batch.base), batch.identity)
        if first == batch.identity:
            return None
        return f"node {node.node} has {batch.identity}; epoch {batch.epoch} had ordered {first}"


class HeldByMembers:
    """What a primary commits is on stable storage at every member that the authority names, and at enough of them.

    The members are those of the configuration that the primary acts on, and of all that were decided since: a primary
    may not know of them yet. A copy that is damaged, or is another one than the configuration names, leads nothing and
    need not have it.
    """

    def __init__(self, policy: CopyPolicy) -> None:
        self._policy = policy

    def committed(
        self, acted_on: Configuration, history: list[Decision], held: dict[NodeId, HeldRecord], primary: NodeId
    ) -> str | None:
        width = 0
        excused: set[Copy] = set()
        before: tuple[Copy, ...] = ()
        for row in history:
            configuration, change = row.newest.configuration, row.change
            width = max(width, min(len(configuration.members), self._policy.replicas))
            if isinstance(change, RemoveMember) and change.reason in GOES_BELOW:
                if change.reason is RemovalReason.OPERATOR:
                    width = max(1, min(width, change.brokers_left))
                if configuration.version > acted_on.version:
                    # It may have gone after it had acknowledged.
                    excused |= {copy for copy in before if copy.node == change.node}
            before = configuration.members
            if configuration.version < acted_on.version:
                continue
            holding = len(excused - set(configuration.members))
            for copy in configuration.members:
                if copy in excused or _holds(copy, held, primary):
                    holding += 1
                elif _is_fit(copy, held):
                    return f"was committed by {acted_on} and is not at node {copy.node} of {configuration}"
            needed = min(self._policy.min_copies, width)
            if holding < needed:
                return f"was committed by {acted_on} and has {holding} copies in {configuration}; it needs {needed}"
        return None


def _is_fit(copy: Copy, held: dict[NodeId, HeldRecord]) -> bool:
    return held[copy.node].number == copy.number and held[copy.node].is_fit


def _holds(copy: Copy, held: dict[NodeId, HeldRecord], primary: NodeId) -> bool:
    one = held[copy.node]
    return one.number == copy.number and one.last is not None and one.last == held[primary].last


class KeptCopies:
    def dropped(self, node: CopyNode, known: Configuration, history: list[Decision]) -> str | None:
        for row in history:
            if row.newest.configuration.version < known.version:
                continue
            if set(row.newest.assigned) <= set(row.newest.configuration.nodes):
                return None
        return f"node {node.node} dropped its copy at {known}, and not every node that should have one was a member"
