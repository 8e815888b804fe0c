"""Named subscriptions as a partition of `_groups` has them: who is a member, who holds which part, how far each is.

The book follows the log: what is cut from the log is undone in it. Every copy of the partition has the same one, and a
checkpoint carries the entries that make it. Nothing is decided here; `coordinator` does that, at the owner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, assert_never

import msgspec

from rostra.wire.groups import GroupStart

PARTS_PER_ENTRY_MAX = 1000
NAME_BYTES = 16
"""About what an entry takes beside its texts."""
PART_BYTES = 72
"""At most what a part takes in a checkpoint."""


class GroupPartitionKey(NamedTuple):
    """A partition of a topic, by ids: a topic that is made anew is another one."""

    topic: int
    partition: int


# --- entries ---------------------------------------------------------------------------------------


class GroupConfigured(msgspec.Struct, frozen=True, array_like=True, tag="group", gc=False):
    """There is a named subscription, and this is what it is set to.

    `patterns` are those that were joined with last. `start` and `value` are for topics that were there before them.
    """

    name: str
    patterns: tuple[str, ...] = ()
    start: GroupStart = "earliest"
    value: int = 0
    tries_max: int = 0
    dead_letter: str = ""


class MemberJoined(msgspec.Struct, frozen=True, array_like=True, tag="group-joined", gc=False):
    """Said again when a member changes what it joined with."""

    name: str
    member: int
    patterns: tuple[str, ...]
    lease_ms: int
    client: str = ""


class MemberLeft(msgspec.Struct, frozen=True, array_like=True, tag="group-left", gc=False):
    """What the member held is said by the entry behind this one. `died`: its lease ended, it did not say goodbye."""

    name: str
    member: int
    died: bool = False


class GroupPartition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who has a part of the subscription, and how far it is acknowledged.

    `since` is the generation in which `holder` got it; what the holder says with an older one is stale. `revoked` is
    the generation in which it was told to let go of it, 0 if it was not.
    """

    holder: int = 0
    since: int = 0
    revoked: int = 0
    start: GroupStart = "earliest"
    value: int = 0
    tries: int = 0


NOBODYS = GroupPartition()


class AssignmentChanged(msgspec.Struct, frozen=True, array_like=True, tag="group-parts", gc=False):
    """A new generation: these parts are so from now on, those that are `gone` belong to the subscription no more."""

    name: str
    generation: int
    parts: tuple[tuple[int, int, GroupPartition], ...] = ()
    gone: tuple[tuple[int, int], ...] = ()


class PositionsCommitted(msgspec.Struct, frozen=True, array_like=True, tag="group-moved", gc=False):
    """(topic, partition, first offset that is not acknowledged, tries of the record there)."""

    name: str
    positions: tuple[tuple[int, int, int, int], ...]


class GroupDeleted(msgspec.Struct, frozen=True, array_like=True, tag="group-forgotten", gc=False):
    name: str


GroupEntry = GroupConfigured | MemberJoined | MemberLeft | AssignmentChanged | PositionsCommitted | GroupDeleted


# --- the book --------------------------------------------------------------------------------------


class ConsumerGroup:
    """One named subscription. Dictionaries are in no order that means anything: sort what is shown."""

    __slots__ = ("generation", "members", "parts", "settings")

    def __init__(self, settings: GroupConfigured) -> None:
        self.settings = settings
        self.generation = 0
        self.members: dict[int, MemberJoined] = {}
        self.parts: dict[GroupPartitionKey, GroupPartition] = {}


class _Removal(msgspec.Struct, frozen=True, gc=False):
    """Undoes the coming of a group, a member or a part."""

    name: str
    key: int | GroupPartitionKey | None = None


class _Row(msgspec.Struct, frozen=True, gc=False):
    """Undoes the change of a part."""

    name: str
    key: GroupPartitionKey
    part: GroupPartition


class _Number(msgspec.Struct, frozen=True, gc=False):
    """Undoes a new generation."""

    name: str
    generation: int


_Undo = GroupConfigured | MemberJoined | _Row | _Number | _Removal


class GroupTable:
    """The groups of one partition, as of the end of its log."""

    __slots__ = ("_undo", "bytes", "groups")

    def __init__(self) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self.bytes = 0
        """About what the groups take in a checkpoint, never less."""
        self._undo: deque[tuple[int, _Undo]] | None = None

    def __len__(self) -> int:
        return len(self.groups)

    def get(self, name: str) -> ConsumerGroup | None:
        return self.groups.get(name)

    def apply(self, base: int, entry: GroupEntry) -> None:
        """What the batch at `base`, at the log's end, says."""
        match entry:
            case GroupConfigured():
                self._set(base, entry)
            case MemberJoined():
                self._member(base, entry)
            case MemberLeft():
                self._remove_member(base, entry.name, entry.member)
            case AssignmentChanged():
                self._number(base, entry.name, entry.generation)
                for topic, partition, part in entry.parts:
                    self._part(base, entry.name, GroupPartitionKey(topic, partition), part)
                for topic, partition in entry.gone:
                    self._remove_part(base, entry.name, GroupPartitionKey(topic, partition))
            case PositionsCommitted():
                self._moved(base, entry)
            case GroupDeleted():
                self._forget(base, entry.name)
            case _:
                assert_never(entry)

    def _moved(self, base: int, entry: PositionsCommitted) -> None:
        group = self.groups.get(entry.name)
        if group is None:
            return
        for topic, partition, offset, tries in entry.positions:
            key = GroupPartitionKey(topic, partition)
            before = group.parts.get(key, NOBODYS)
            part = GroupPartition(before.holder, before.since, before.revoked, "offset", offset, tries)
            self._part(base, entry.name, key, part)

    def _forget(self, base: int, name: str) -> None:
        group = self.groups.get(name)
        if group is None:
            return
        for key in sorted(group.parts):
            self._remove_part(base, name, key)
        for member in sorted(group.members):
            self._remove_member(base, name, member)
        self._number(base, name, 0)
        self._remember(base, group.settings)
        self.bytes -= _settings_bytes(group.settings)
        del self.groups[name]

    # --- one change each, with what undoes it ---

    def _remember(self, base: int, undo: _Undo) -> None:
        if self._undo is None:
            self._undo = deque()
        self._undo.append((base, undo))

    def _set(self, base: int, entry: GroupConfigured) -> None:
        group = self.groups.get(entry.name)
        self.bytes += _settings_bytes(entry)
        if group is None:
            self.groups[entry.name] = ConsumerGroup(entry)
            self._remember(base, _Removal(entry.name))
            return
        self.bytes -= _settings_bytes(group.settings)
        self._remember(base, group.settings)
        group.settings = entry

    def _number(self, base: int, name: str, generation: int) -> None:
        group = self.groups.get(name)
        if group is not None and group.generation != generation:
            self._remember(base, _Number(name, group.generation))
            group.generation = generation

    def _member(self, base: int, entry: MemberJoined) -> None:
        group = self.groups.get(entry.name)
        if group is None:
            return
        before = group.members.get(entry.member)
        self.bytes += _member_bytes(entry) - (_member_bytes(before) if before is not None else 0)
        self._remember(base, before if before is not None else _Removal(entry.name, entry.member))
        group.members[entry.member] = entry

    def _remove_member(self, base: int, name: str, member: int) -> None:
        group = self.groups.get(name)
        before = group.members.pop(member, None) if group is not None else None
        if before is not None:
            self.bytes -= _member_bytes(before)
            self._remember(base, before)

    def _part(self, base: int, name: str, key: GroupPartitionKey, part: GroupPartition) -> None:
        group = self.groups.get(name)
        if group is None:
            return
        before = group.parts.get(key)
        if before is None:
            self.bytes += PART_BYTES
        self._remember(base, _Row(name, key, before) if before is not None else _Removal(name, key))
        group.parts[key] = part

    def _remove_part(self, base: int, name: str, key: GroupPartitionKey) -> None:
        group = self.groups.get(name)
        before = group.parts.pop(key, None) if group is not None else None
        if before is not None:
            self.bytes -= PART_BYTES
            self._remember(base, _Row(name, key, before))

    # --- following the log ---

    def commit(self, offset: int) -> None:
        """Below this offset nothing is undone any more."""
        undo = self._undo
        while undo and undo[0][0] < offset:
            undo.popleft()
        if not undo:
            self._undo = None

    def truncate(self, offset: int) -> None:
        """The log was cut to end at `offset`."""
        undo, self._undo = self._undo, None
        while undo and undo[-1][0] >= offset:
            base, change = undo.pop()
            self._take_back(base, change)
        # What was remembered while changes were taken back would bring them back again.
        self._undo = undo or None

    def _take_back(self, base: int, change: _Undo) -> None:
        match change:
            case GroupConfigured():
                self._set(base, change)
            case MemberJoined():
                self._member(base, change)
            case _Row():
                self._part(base, change.name, change.key, change.part)
            case _Number():
                self._number(base, change.name, change.generation)
            case _Removal(name, None):
                self._forget(base, name)
            case _Removal(name, GroupPartitionKey() as key):
                self._remove_part(base, name, key)
            case _Removal(name, int(member)):
                self._remove_member(base, name, member)
            case _:
                raise AssertionError(f"{change} was never remembered")

    def entries(self) -> Iterator[GroupEntry]:
        """Entered into an empty book, these make it what it is."""
        for name in sorted(self.groups):
            group = self.groups[name]
            yield group.settings
            for member in sorted(group.members):
                yield group.members[member]
            rows = [(*key, group.parts[key]) for key in sorted(group.parts)]
            for at in range(0, max(1, len(rows)), PARTS_PER_ENTRY_MAX):
                yield AssignmentChanged(name, group.generation, tuple(rows[at : at + PARTS_PER_ENTRY_MAX]))

    def restore(self, entries: list[GroupEntry]) -> None:
        """These and nothing else; they cannot be undone."""
        self.groups.clear()
        self.bytes = 0
        for entry in entries:
            self.apply(-1, entry)
        self._undo = None


def growth_bytes(group: GroupConfigured | None, member: MemberJoined | None, parts: int) -> int:
    """About what these would take in a checkpoint."""
    return (
        (_settings_bytes(group) if group is not None else 0)
        + (_member_bytes(member) if member is not None else 0)
        + parts * PART_BYTES
    )


def _settings_bytes(settings: GroupConfigured) -> int:
    # The name stands in the entry of the parts again.
    return 4 * NAME_BYTES + 2 * len(settings.name) + _texts_bytes(settings.patterns) + len(settings.dead_letter)


def _member_bytes(member: MemberJoined) -> int:
    return 3 * NAME_BYTES + len(member.name) + 4 * len(member.client) + _texts_bytes(member.patterns)


def _texts_bytes(texts: tuple[str, ...]) -> int:
    return sum(3 + len(text) for text in texts)
