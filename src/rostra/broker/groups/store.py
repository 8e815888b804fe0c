"""Changing named subscriptions: what follows for the parts is logged in one batch, then told to those it concerns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from rostra.broker.api import Conn
from rostra.broker.groups import description
from rostra.broker.groups.assignor import Members
from rostra.broker.groups.coordinator_locator import GROUPS_TOPIC, place_of
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
from rostra.broker.groups.member_leases import LeaseQueue, MemberConnections, Seated
from rostra.broker.groups.rebalance import rebalance
from rostra.broker.groups.topic_matching import PatternIndex, StartOffsets, patterns_of, present, wanted
from rostra.broker.partition.served_partition import ServedPartition
from rostra.errors import NotAMember, RostraError, Unavailable
from rostra.fabric.api import LogLine
from rostra.model.ids import Partition
from rostra.wire.groups import GroupEnded

if TYPE_CHECKING:
    from rostra.broker.broker import Broker


class GroupChange(NamedTuple):
    """Logged up to `last`; what these members hold is different now."""

    last: int
    touched: tuple[int, ...]


class GroupStore:
    """The names in the partitions of `_groups` that this node owns, and what it alone knows of their members."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.seats = MemberConnections()
        self.leases = LeaseQueue()
        self.interest = PatternIndex()
        self.owned: dict[Partition, bool] = {}
        """False until what this node knows of topics was confirmed since: it may not have heard of all of them yet."""

    def place(self, name: str) -> ServedPartition | RostraError:
        """The partition that a name belongs to, if this node owns it."""
        known = self._broker.catalogue.named(GROUPS_TOPIC)
        if known is None:
            return Unavailable(GROUPS_TOPIC, 0, "this node has not heard of it yet")
        return self.owned_here(place_of(known, name))

    def owned_here(self, served: ServedPartition) -> ServedPartition | RostraError:
        if not served.owner:
            return self._broker.placement.not_owner(served)
        return served.blocked or served

    def find(self, name: str) -> tuple[ServedPartition, ConsumerGroup] | None:
        """The name with its partition, if this node owns that and there is such a name."""
        known = self._broker.catalogue.named(GROUPS_TOPIC)
        served = place_of(known, name) if known is not None else None
        group = served.books.groups.get(name) if served is not None else None
        return (served, group) if served is not None and served.partition in self.owned and group is not None else None

    def change(
        self,
        served: ServedPartition,
        group: ConsumerGroup,
        entries: list[GroupEntry],
        members: Mapping[int, MemberJoined],
        parts: Mapping[GroupPartitionKey, GroupPartition],
        beginnings: StartOffsets | None = None,
    ) -> GroupChange | RostraError:
        """Logs the entries with what follows from them, in one batch: nobody sees half of it.

        `members` and `parts` are those of the group with what just happened to them.
        """
        broker, name = self._broker, group.settings.name
        begin = beginnings or StartOffsets(broker.catalogue, group.settings, patterns_of(members.values()))
        there = present(broker.catalogue, parts)
        # A topic that is not known is gone only if that is certain; until then its parts are left as they are.
        before = group.parts if self.owned.get(served.partition) else present(broker.catalogue, group.parts)
        fitting = self._within_bounds(served.books.groups, name, there, wanted(broker.catalogue, members))
        generation = group.generation + 1
        handing = rebalance(before, there, members, fitting, generation, begin.of)
        if not entries and not handing.parts and not handing.gone:
            return GroupChange(served.end - 1, ())
        rows = tuple((*key, part) for key, part in handing.parts.items())
        last = broker.ordering.order(served, [*entries, AssignmentChanged(name, generation, rows, handing.gone)])
        if isinstance(last, RostraError):
            return last
        self.interest.set(name, patterns_of(members.values()))
        return GroupChange(last, handing.touched)

    def _within_bounds(
        self,
        book: GroupTable,
        name: str,
        parts: Mapping[GroupPartitionKey, GroupPartition],
        found: dict[GroupPartitionKey, Members],
    ) -> dict[GroupPartitionKey, Members]:
        """As many parts as there is room for: what is over that is said in the log, and nobody gets it."""
        bounds = self._broker.settings
        room_bytes = bounds.groups_bytes_max - book.bytes
        room = max(0, min(bounds.parts_per_group_max - len(parts), room_bytes // growth_bytes(None, None, 1)))
        fresh = [key for key in sorted(found) if key not in parts]
        if len(fresh) <= room:
            return found
        about: dict[str, int | str] = {"name": name, "parts": len(fresh) - room}
        self._broker.out.append(LogLine("error", "no room for parts of a named subscription", about))
        left_out = set(fresh[room:])
        return {key: members for key, members in found.items() if key not in left_out}

    def dismiss(
        self, served: ServedPartition, group: ConsumerGroup, leaving: list[int], *, died: bool
    ) -> GroupChange | RostraError:
        """Whoever dies may have died of the record it had in hand: that counts as a try."""
        name = group.settings.name
        entries: list[GroupEntry] = [MemberLeft(name, member, died) for member in leaving]
        members = {member: joined for member, joined in group.members.items() if member not in leaving}
        held = [key for key, part in group.parts.items() if part.holder in leaving]
        changed = self.change(served, group, entries, members, let_go(group, held, tries=1 if died else 0))
        if isinstance(changed, RostraError):
            return changed
        for member in leaving:
            conn = self.seats.leave((name, member))
            if conn is not None and died:
                self.end(conn, (name, member), NotAMember(name, member))
        return changed

    # --- telling ---

    def tell(self, served: ServedPartition, group: ConsumerGroup, changed: GroupChange, also: int = 0) -> None:
        """What they hold now, when it is committed."""
        broker = self._broker
        members = sorted({*changed.touched, also} - {0})
        shares = description.shares(group) if members else {}
        for member in members:
            seat = self.seats.by_member.get((group.settings.name, member))
            conn = seat.conn if seat is not None else None
            session = broker.sessions.get(conn) if conn is not None else None
            if seat is None or conn is None or session is None:
                continue
            if broker.delivery.is_congested(conn):
                # Nobody asked for these messages, so nothing else bounds how many wait for a client that reads none.
                seat.behind = True
                continue
            for message in description.assigned(
                broker.catalogue, group, member, shares.get(member, ()), broker.without
            ):
                broker.ordering.reply_when_safe(conn, session, served, changed.last, message)

    def drained(self, conn: Conn) -> None:
        """There is room again for what was not told."""
        for name, member in self.seats.behind_at(conn):
            found = self.find(name)
            if found is not None:
                served, group = found
                self.tell(served, group, GroupChange(served.end - 1, (member,)))

    def end(self, conn: Conn, seated: Seated, error: RostraError) -> None:
        self._broker.reply(conn, GroupEnded(*seated, type(error).__name__, error.carried()))


def let_go(
    group: ConsumerGroup, keys: Iterable[GroupPartitionKey], tries: int = 0
) -> dict[GroupPartitionKey, GroupPartition]:
    """The parts of the group, of which these are in nobody's hands any more."""
    freed = {key: group.parts[key] for key in keys}
    return {**group.parts} | {
        key: GroupPartition(0, 0, 0, part.start, part.value, part.tries + tries) for key, part in freed.items()
    }
