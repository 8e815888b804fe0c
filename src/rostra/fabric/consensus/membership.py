"""Membership changes, one at a time: each is a configuration entry, in force as soon as it is in the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Protocol

import msgspec

from rostra.errors import BatchRejected, RostraError, Unavailable
from rostra.fabric.api import Now
from rostra.fabric.consensus.hard_state import GroupConfig, GroupConfigAt
from rostra.fabric.replication.log_state import LogState
from rostra.fabric.replication.sender import Sender
from rostra.model.batch import BROKER_STATE, CHECKPOINT, Buffer, read_header
from rostra.model.decode import Batch
from rostra.model.encode import encode
from rostra.model.ids import NodeId, Partition, text
from rostra.model.layout import CONTROL
from rostra.safeguards import Safeguard, Without


class NoOp(msgspec.Struct, frozen=True, array_like=True, tag="no-op"):
    """The first entry of a term; committing it commits all earlier entries."""


class ConfigurationEntry(msgspec.Struct, frozen=True, array_like=True, tag="configuration"):
    config: GroupConfig


GroupEntry = NoOp | ConfigurationEntry
_decoder = msgspec.msgpack.Decoder(GroupEntry)


def group_batch(entry: GroupEntry, wall_us: int) -> bytearray:
    return encode([msgspec.msgpack.encode(entry)], timestamp_us=wall_us, control=True)


def read_entry(batch: Buffer) -> GroupEntry | None:
    """Decodes an entry of the group itself; None for any other batch, control batches of the broker included."""
    flags = int.from_bytes(batch[60:62], "little")
    if not flags & CONTROL or read_header(batch).owner_flags & (CHECKPOINT | BROKER_STATE):
        return None
    try:
        (value,) = Batch(batch).values()[:1]
        entry: GroupEntry = _decoder.decode(value or b"")
        return entry
    except (BatchRejected, msgspec.DecodeError, UnicodeDecodeError):
        return None


def read_config(batch: Buffer) -> GroupConfig | None:
    entry = read_entry(batch)
    return entry.config if isinstance(entry, ConfigurationEntry) else None


class MembershipChange(StrEnum):
    ADD = "add"
    """Adds the node as a learner."""
    PROMOTE = "promote"
    """Makes a learner a voter, once it has caught up."""
    REMOVE = "remove"


class ChangingGroup(Protocol):
    """What a membership change needs of its group."""

    partition: Partition
    without: Without
    now: Now
    log: LogState
    sender: Sender
    config: GroupConfig
    config_end: int
    commit: int
    is_owner: bool
    transfer_to: NodeId | None
    promotes_learners: bool
    voters_max: int
    wants_heartbeat: bool

    @property
    def term(self) -> int: ...

    @property
    def knows_commit(self) -> bool: ...

    def add_configs(self, rows: Iterable[GroupConfigAt]) -> None: ...

    def remove_config(self, gone: GroupConfigAt) -> None: ...

    def update_config(self) -> None: ...

    def run_after_persist(self, action: Callable[[], None]) -> None: ...

    def add_log_line(self, level: str, event: str, about: dict[str, int | str]) -> None: ...


class GroupMembership:
    def __init__(self, group: ChangingGroup) -> None:
        self._group = group
        self._one_at_a_time = Safeguard.ONE_CHANGE_AT_A_TIME not in group.without
        self._caught_up_first = Safeguard.LEARNER_NOT_COUNTED not in group.without
        self._pending: GroupConfigAt | None = None

    def change(self, change: MembershipChange, node: NodeId) -> RostraError | None:
        """Starts the change, or returns why not. It is in force when its entry is in the log, final when committed."""
        group = self._group
        error = self.refusal()
        if error is not None:
            return error
        config = apply_change(group.config, change, node)
        if config == group.config or not config.voters:
            return self._unavailable("that changes nothing")
        if change is MembershipChange.PROMOTE and self._caught_up_first and not self._has_caught_up(node):
            return self._unavailable("the learner has not caught up yet")
        end = group.log.end + 1
        self._pending = GroupConfigAt(end, group.term, config)
        group.add_configs([self._pending])
        group.run_after_persist(self._write)
        return None

    def refusal(self) -> RostraError | None:
        """Returns why no change may start now, or None: it may not overlap another one, of this or an earlier leader.

        An earlier leader's change is decided once an entry of the own term is committed (the bug of single-server
        changes found in 2015).
        """
        group = self._group
        if not group.is_owner or self._pending is not None or group.transfer_to is not None:
            return self._unavailable("this node cannot change its members now")
        if self._one_at_a_time:
            if group.config_end > group.commit:
                return self._unavailable("another change is under way")
            if not group.knows_commit:
                return self._unavailable("its leader has not committed anything yet")
        return None

    def _unavailable(self, reason: str) -> RostraError:
        return Unavailable(str(self._group.partition.topic), self._group.partition.index, reason)

    def _write(self) -> None:
        """Appends the configuration entry, once the hard state holds the configuration."""
        group = self._group
        row, self._pending = self._pending, None
        assert row is not None
        if not group.is_owner or (group.term, group.log.end + 1) != (row.term, row.end):
            # Another entry will get that offset, and would be taken for this one if the row were kept.
            group.remove_config(row)
            return
        config = row.config
        batch = group_batch(ConfigurationEntry(config), group.now.wall_us)
        group.sender.append(batch)
        group.update_config()
        group.wants_heartbeat = True
        group.add_log_line(
            "info", "members changed", {"voters": _node_names(config.voters), "learners": _node_names(config.learners)}
        )

    def promote_if_caught_up(self, peer: NodeId) -> None:
        """Promotes a learner that has caught up."""
        group = self._group
        wanted = group.promotes_learners and len(group.config.voters) < group.voters_max
        if wanted and peer in group.config.learners and self._has_caught_up(peer):
            self.change(MembershipChange.PROMOTE, peer)

    def _has_caught_up(self, node: NodeId) -> bool:
        """Whether everything it lacks is in flight, so that it will not delay a majority it counts in."""
        group = self._group
        progress = group.sender.progress.get(node)
        return progress is not None and progress.match >= max(group.commit, 1) and progress.match == progress.next


def _node_names(nodes: tuple[NodeId, ...]) -> str:
    """Formats node ids for a log line."""
    return " ".join(map(text, nodes))


def apply_change(config: GroupConfig, change: MembershipChange, node: NodeId) -> GroupConfig:
    voters = set(config.voters)
    learners = set(config.learners)
    match change:
        case MembershipChange.ADD:
            if node not in voters:
                learners.add(node)
        case MembershipChange.PROMOTE:
            if node in learners:
                learners.discard(node)
                voters.add(node)
        case MembershipChange.REMOVE:
            voters.discard(node)
            learners.discard(node)
    return GroupConfig(tuple(sorted(voters)), tuple(sorted(learners)))
