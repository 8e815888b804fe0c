"""Changes consumer groups: logs each change with its rebalance in one batch, then sends the new assignments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from rostra.broker.api import Conn
from rostra.broker.groups import description
from rostra.broker.groups.assignor import Members
from rostra.broker.groups.group_table import (
    AssignmentChanged,
    ConsumerGroup,
    GroupEntry,
    GroupPartition,
    GroupPartitionKey,
    GroupTable,
    MemberJoined,
    MemberLeft,
    growth_bytes,
)
from rostra.broker.groups.group_topics import PatternIndex, StartOffsets, patterns_of, present, wanted
from rostra.broker.groups.member_leases import LeaseQueue, MemberConnections, MemberKey
from rostra.broker.groups.rebalance import rebalance
from rostra.broker.partition.served_partition import ServedPartition
from rostra.broker.topics.internal_topics import GROUPS_TOPIC, coordinating_partition
from rostra.errors import NotAMember, RostraError, Unavailable
from rostra.fabric.api import LogLine
from rostra.model.ids import Partition
from rostra.wire.groups import GroupEnded

if TYPE_CHECKING:
    from rostra.broker.broker import Broker


class GroupChange(NamedTuple):
    """Logged up to `last`; the assignments of the members in `affected` changed."""

    last: int
    affected: tuple[int, ...]


class GroupStore:
    """The groups in the partitions of `_groups` that this node owns, and the connections of their members."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.connections = MemberConnections()
        self.leases = LeaseQueue()
        self.pattern_index = PatternIndex()
        self.owned: dict[Partition, bool] = {}
        """False until the topic table was confirmed after this node became the owner: topics may be missing."""

    def partition_of(self, name: str) -> ServedPartition | RostraError:
        """The partition of `_groups` that a group belongs to, if this node owns it."""
        known = self._broker.topic_table.by_name(GROUPS_TOPIC)
        if known is None:
            return Unavailable(GROUPS_TOPIC, 0, "this node does not know it yet")
        return self.if_owned(coordinating_partition(known, name))

    def if_owned(self, served: ServedPartition) -> ServedPartition | RostraError:
        if not served.owner:
            return self._broker.placement.not_owner(served)
        return served.blocked or served

    def find(self, name: str) -> tuple[ServedPartition, ConsumerGroup] | None:
        """The group with its partition, if this node owns that and the group exists."""
        known = self._broker.topic_table.by_name(GROUPS_TOPIC)
        served = coordinating_partition(known, name) if known is not None else None
        group = served.derived.groups.get(name) if served is not None else None
        return (served, group) if served is not None and served.partition in self.owned and group is not None else None

    def change(
        self,
        served: ServedPartition,
        group: ConsumerGroup,
        entries: list[GroupEntry],
        members: Mapping[int, MemberJoined],
        partitions: Mapping[GroupPartitionKey, GroupPartition],
        start_offsets: StartOffsets | None = None,
    ) -> GroupChange | RostraError:
        """Logs the entries and the rebalance that follows from them in one batch, which is atomic.

        `members` and `partitions` are those of the group after the current change.
        """
        broker, name = self._broker, group.settings.name
        begin = start_offsets or StartOffsets(broker.topic_table, group.settings, patterns_of(members.values()))
        there = present(broker.topic_table, partitions)
        # An unknown topic counts as deleted only if the topic table is confirmed; until then its partitions stay.
        before = group.partitions if self.owned.get(served.partition) else present(broker.topic_table, group.partitions)
        eligible = self._within_bounds(served.derived.groups, name, there, wanted(broker.topic_table, members))
        generation = group.generation + 1
        result = rebalance(before, there, members, eligible, generation, begin.of)
        if not entries and not result.changed and not result.removed:
            return GroupChange(served.end - 1, ())
        rows = tuple((*key, row) for key, row in result.changed.items())
        last = broker.proposer.append_control(
            served, [*entries, AssignmentChanged(name, generation, rows, result.removed)]
        )
        if isinstance(last, RostraError):
            return last
        self.pattern_index.set(name, patterns_of(members.values()))
        return GroupChange(last, result.affected)

    def _within_bounds(
        self,
        table: GroupTable,
        name: str,
        partitions: Mapping[GroupPartitionKey, GroupPartition],
        found: dict[GroupPartitionKey, Members],
    ) -> dict[GroupPartitionKey, Members]:
        """As many partitions as the limits allow: the rest is logged as an error and stays unassigned."""
        bounds = self._broker.settings
        free_bytes = bounds.groups_bytes_max - table.bytes
        free = max(0, min(bounds.partitions_per_group_max - len(partitions), free_bytes // growth_bytes(None, None, 1)))
        fresh = [key for key in sorted(found) if key not in partitions]
        if len(fresh) <= free:
            return found
        about: dict[str, int | str] = {"name": name, "partitions": len(fresh) - free}
        self._broker.out.append(LogLine("error", "named subscription is over its partition limit", about))
        left_out = set(fresh[free:])
        return {key: members for key, members in found.items() if key not in left_out}

    def remove_members(
        self, served: ServedPartition, group: ConsumerGroup, leaving: list[int], *, died: bool
    ) -> GroupChange | RostraError:
        """A member that died may have been killed by the record it was handling: that counts as a try."""
        name = group.settings.name
        entries: list[GroupEntry] = [MemberLeft(name, member, died) for member in leaving]
        members = {member: joined for member, joined in group.members.items() if member not in leaving}
        held = [key for key, row in group.partitions.items() if row.holder in leaving]
        changed = self.change(served, group, entries, members, released(group, held, tries=1 if died else 0))
        if isinstance(changed, RostraError):
            return changed
        for member in leaving:
            conn = self.connections.remove((name, member))
            if conn is not None and died:
                self.end_membership(conn, (name, member), NotAMember(name, member))
        return changed

    # --- notifications ---

    def send_assignments(
        self, served: ServedPartition, group: ConsumerGroup, changed: GroupChange, also: int = 0
    ) -> None:
        """Sends the affected members their assignment when it is committed."""
        broker = self._broker
        members = sorted({*changed.affected, also} - {0})
        shares = description.shares(group) if members else {}
        for member in members:
            connection = self.connections.by_member.get((group.settings.name, member))
            conn = connection.conn if connection is not None else None
            session = broker.sessions.get(conn) if conn is not None else None
            if connection is None or conn is None or session is None:
                continue
            if broker.delivery.is_congested(conn):
                # Unsolicited messages have no other limit on how many wait for a client that does not read.
                connection.behind = True
                continue
            for message in description.assigned(
                broker.topic_table, group, member, shares.get(member, ()), broker.without
            ):
                broker.proposer.reply_when_committed(conn, session, served, changed.last, message)

    def drained(self, conn: Conn) -> None:
        """Sends the assignments that were skipped while the connection was congested."""
        for name, member in self.connections.take_behind(conn):
            found = self.find(name)
            if found is not None:
                served, group = found
                self.send_assignments(served, group, GroupChange(served.end - 1, (member,)))

    def end_membership(self, conn: Conn, member_key: MemberKey, error: RostraError) -> None:
        self._broker.reply(conn, GroupEnded(*member_key, type(error).__name__, error.carried()))


def released(
    group: ConsumerGroup, keys: Iterable[GroupPartitionKey], tries: int = 0
) -> dict[GroupPartitionKey, GroupPartition]:
    """The partitions of the group after the release of these."""
    freed = {key: group.partitions[key] for key in keys}
    return {**group.partitions} | {
        key: GroupPartition(0, 0, 0, row.start, row.value, row.tries + tries) for key, row in freed.items()
    }
