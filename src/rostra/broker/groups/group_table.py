"""The consumer groups in a partition of `_groups`: members, assignment, committed positions; derived from its log.

The table follows the log: changes of truncated batches are undone. All copies of the partition have the same table, and
a checkpoint holds the entries that rebuild it. The decisions are made by the coordinator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, assert_never

import msgspec

from rostra.wire.groups import GroupStart

PARTITIONS_PER_ENTRY_MAX = 1000
NAME_BYTES = 16
"""About the size of an entry without its strings."""
PARTITION_BYTES = 72
"""Maximum size of an assigned partition in a checkpoint."""


class GroupPartitionKey(NamedTuple):
    """A partition of a topic, by ids: a topic that is created again is another one."""

    topic: int
    partition: int


# --- entries ---------------------------------------------------------------------------------------


class GroupConfigured(msgspec.Struct, frozen=True, array_like=True, tag="group", gc=False):
    """A named subscription exists, with these settings.

    `patterns` are those of the latest join. `start` and `value` apply to topics that existed before the group's
    patterns matched them.
    """

    name: str
    patterns: tuple[str, ...] = ()
    start: GroupStart = "earliest"
    value: int = 0
    tries_max: int = 0
    dead_letter: str = ""


class MemberJoined(msgspec.Struct, frozen=True, array_like=True, tag="group-joined", gc=False):
    """Logged again when a member changes what it joined with."""

    name: str
    member: int
    patterns: tuple[str, ...]
    lease_ms: int
    client: str = ""


class MemberLeft(msgspec.Struct, frozen=True, array_like=True, tag="group-left", gc=False):
    """The next entry reassigns its partitions. `died`: its lease expired, it did not leave on its own."""

    name: str
    member: int
    died: bool = False


class GroupPartition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One partition of the subscription: the member that holds it and the committed position.

    `since` is the generation in which `holder` got it; commits of an older generation are stale. `revoked` is the
    generation in which it was revoked, 0 if it was not.
    """

    holder: int = 0
    since: int = 0
    revoked: int = 0
    start: GroupStart = "earliest"
    value: int = 0
    tries: int = 0


UNASSIGNED = GroupPartition()


class AssignmentChanged(msgspec.Struct, frozen=True, array_like=True, tag="group-parts", gc=False):
    """A new generation: replaces these partitions, removes those that are `gone` from the subscription."""

    name: str
    generation: int
    partitions: tuple[tuple[int, int, GroupPartition], ...] = ()
    gone: tuple[tuple[int, int], ...] = ()


class PositionsCommitted(msgspec.Struct, frozen=True, array_like=True, tag="group-moved", gc=False):
    """(topic, partition, first unacknowledged offset, tries of the record there)."""

    name: str
    positions: tuple[tuple[int, int, int, int], ...]


class GroupDeleted(msgspec.Struct, frozen=True, array_like=True, tag="group-forgotten", gc=False):
    name: str


GroupEntry = GroupConfigured | MemberJoined | MemberLeft | AssignmentChanged | PositionsCommitted | GroupDeleted


# --- the table -------------------------------------------------------------------------------------


class ConsumerGroup:
    """One named subscription. The order of its dictionaries is arbitrary: sort for output."""

    __slots__ = ("generation", "members", "partitions", "settings")

    def __init__(self, settings: GroupConfigured) -> None:
        self.settings = settings
        self.generation = 0
        self.members: dict[int, MemberJoined] = {}
        self.partitions: dict[GroupPartitionKey, GroupPartition] = {}


class _Removal(msgspec.Struct, frozen=True, gc=False):
    """Undoes the addition of a group, a member or a partition."""

    name: str
    key: int | GroupPartitionKey | None = None


class _PartitionRow(msgspec.Struct, frozen=True, gc=False):
    """Undoes the change of a partition."""

    name: str
    key: GroupPartitionKey
    row: GroupPartition


class _Generation(msgspec.Struct, frozen=True, gc=False):
    """Undoes a new generation."""

    name: str
    generation: int


_Undo = GroupConfigured | MemberJoined | _PartitionRow | _Generation | _Removal


class GroupTable:
    """The groups of one partition, as of the end of its log."""

    __slots__ = ("_undo", "bytes", "groups")

    def __init__(self) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self.bytes = 0
        """Upper estimate of the groups' size in a checkpoint."""
        self._undo: deque[tuple[int, _Undo]] | None = None

    def __len__(self) -> int:
        return len(self.groups)

    def get(self, name: str) -> ConsumerGroup | None:
        return self.groups.get(name)

    def apply(self, base: int, entry: GroupEntry) -> None:
        """This entry is in the batch at `base`, now at the log's end."""
        match entry:
            case GroupConfigured():
                self._configure(base, entry)
            case MemberJoined():
                self._set_member(base, entry)
            case MemberLeft():
                self._remove_member(base, entry.name, entry.member)
            case AssignmentChanged():
                self._set_generation(base, entry.name, entry.generation)
                for topic, partition, row in entry.partitions:
                    self._set_partition(base, entry.name, GroupPartitionKey(topic, partition), row)
                for topic, partition in entry.gone:
                    self._remove_partition(base, entry.name, GroupPartitionKey(topic, partition))
            case PositionsCommitted():
                self._set_positions(base, entry)
            case GroupDeleted():
                self._delete_group(base, entry.name)
            case _:
                assert_never(entry)

    def _set_positions(self, base: int, entry: PositionsCommitted) -> None:
        group = self.groups.get(entry.name)
        if group is None:
            return
        for topic, partition, offset, tries in entry.positions:
            key = GroupPartitionKey(topic, partition)
            before = group.partitions.get(key, UNASSIGNED)
            row = GroupPartition(before.holder, before.since, before.revoked, "offset", offset, tries)
            self._set_partition(base, entry.name, key, row)

    def _delete_group(self, base: int, name: str) -> None:
        group = self.groups.get(name)
        if group is None:
            return
        for key in sorted(group.partitions):
            self._remove_partition(base, name, key)
        for member in sorted(group.members):
            self._remove_member(base, name, member)
        self._set_generation(base, name, 0)
        self._push_undo(base, group.settings)
        self.bytes -= _settings_bytes(group.settings)
        del self.groups[name]

    # --- single changes, each with its undo ---

    def _push_undo(self, base: int, undo: _Undo) -> None:
        if self._undo is None:
            self._undo = deque()
        self._undo.append((base, undo))

    def _configure(self, base: int, entry: GroupConfigured) -> None:
        group = self.groups.get(entry.name)
        self.bytes += _settings_bytes(entry)
        if group is None:
            self.groups[entry.name] = ConsumerGroup(entry)
            self._push_undo(base, _Removal(entry.name))
            return
        self.bytes -= _settings_bytes(group.settings)
        self._push_undo(base, group.settings)
        group.settings = entry

    def _set_generation(self, base: int, name: str, generation: int) -> None:
        group = self.groups.get(name)
        if group is not None and group.generation != generation:
            self._push_undo(base, _Generation(name, group.generation))
            group.generation = generation

    def _set_member(self, base: int, entry: MemberJoined) -> None:
        group = self.groups.get(entry.name)
        if group is None:
            return
        before = group.members.get(entry.member)
        self.bytes += _member_bytes(entry) - (_member_bytes(before) if before is not None else 0)
        self._push_undo(base, before if before is not None else _Removal(entry.name, entry.member))
        group.members[entry.member] = entry

    def _remove_member(self, base: int, name: str, member: int) -> None:
        group = self.groups.get(name)
        before = group.members.pop(member, None) if group is not None else None
        if before is not None:
            self.bytes -= _member_bytes(before)
            self._push_undo(base, before)

    def _set_partition(self, base: int, name: str, key: GroupPartitionKey, row: GroupPartition) -> None:
        group = self.groups.get(name)
        if group is None:
            return
        before = group.partitions.get(key)
        if before is None:
            self.bytes += PARTITION_BYTES
        self._push_undo(base, _PartitionRow(name, key, before) if before is not None else _Removal(name, key))
        group.partitions[key] = row

    def _remove_partition(self, base: int, name: str, key: GroupPartitionKey) -> None:
        group = self.groups.get(name)
        before = group.partitions.pop(key, None) if group is not None else None
        if before is not None:
            self.bytes -= PARTITION_BYTES
            self._push_undo(base, _PartitionRow(name, key, before))

    # --- following the log ---

    def commit(self, offset: int) -> None:
        """Changes below this offset need no undo any more."""
        undo = self._undo
        while undo and undo[0][0] < offset:
            undo.popleft()
        if not undo:
            self._undo = None

    def truncate(self, offset: int) -> None:
        """Undoes the changes at or above `offset`, where the log ends now."""
        undo, self._undo = self._undo, None
        while undo and undo[-1][0] >= offset:
            base, change = undo.pop()
            self._undo_change(base, change)
        # Undoing has recorded undo entries of its own: drop these.
        self._undo = undo or None

    def _undo_change(self, base: int, change: _Undo) -> None:
        match change:
            case GroupConfigured():
                self._configure(base, change)
            case MemberJoined():
                self._set_member(base, change)
            case _PartitionRow():
                self._set_partition(base, change.name, change.key, change.row)
            case _Generation():
                self._set_generation(base, change.name, change.generation)
            case _Removal(name, None):
                self._delete_group(base, name)
            case _Removal(name, GroupPartitionKey() as key):
                self._remove_partition(base, name, key)
            case _Removal(name, int(member)):
                self._remove_member(base, name, member)
            case _:
                raise AssertionError(f"{change} has no undo")

    def to_entries(self) -> Iterator[GroupEntry]:
        """The entries that rebuild this table from an empty one."""
        for name in sorted(self.groups):
            group = self.groups[name]
            yield group.settings
            for member in sorted(group.members):
                yield group.members[member]
            rows = [(*key, group.partitions[key]) for key in sorted(group.partitions)]
            for at in range(0, max(1, len(rows)), PARTITIONS_PER_ENTRY_MAX):
                yield AssignmentChanged(name, group.generation, tuple(rows[at : at + PARTITIONS_PER_ENTRY_MAX]))

    def restore(self, entries: list[GroupEntry]) -> None:
        """Replaces the table; this cannot be undone."""
        self.groups.clear()
        self.bytes = 0
        for entry in entries:
            self.apply(-1, entry)
        self._undo = None


def growth_bytes(group: GroupConfigured | None, member: MemberJoined | None, partitions: int) -> int:
    """Upper estimate of what these take in a checkpoint."""
    return (
        (_settings_bytes(group) if group is not None else 0)
        + (_member_bytes(member) if member is not None else 0)
        + partitions * PARTITION_BYTES
    )


def _settings_bytes(settings: GroupConfigured) -> int:
    # The name occurs again in the entry of the partitions.
    return 4 * NAME_BYTES + 2 * len(settings.name) + _texts_bytes(settings.patterns) + len(settings.dead_letter)


def _member_bytes(member: MemberJoined) -> int:
    return 3 * NAME_BYTES + len(member.name) + 4 * len(member.client) + _texts_bytes(member.patterns)


def _texts_bytes(texts: tuple[str, ...]) -> int:
    return sum(3 + len(text) for text in texts)
