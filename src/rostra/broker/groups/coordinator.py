"""Named subscriptions at the owner of their partition of `_groups`: who is a member, who handles what, how far it is.

Every decision is an entry in that partition's log before anybody hears of it, so the next owner goes on where this one
stopped. Only where members are heard, and when, is known here alone: a new owner gives everybody a fresh lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from rostra.broker.api import Conn
from rostra.broker.groups import description
from rostra.broker.groups.coordinator_locator import GROUPS_TOPIC, CoordinatorLocator
from rostra.broker.groups.group_table import ConsumerGroup, GroupDeleted, GroupPartitionKey, PositionsCommitted
from rostra.broker.groups.join import GroupJoin
from rostra.broker.groups.maintenance import GroupMaintenance
from rostra.broker.groups.store import GroupChange, GroupStore, let_go
from rostra.broker.partition.served_partition import ServedPartition
from rostra.broker.sessions import Session
from rostra.errors import (
    GroupBusy,
    LimitExceeded,
    NotAMember,
    RostraError,
    StaleGeneration,
    UnknownGroup,
    UnknownPartition,
    UnknownTopic,
)
from rostra.safeguards import Safeguard
from rostra.wire.groups import (
    DeleteGroup,
    DescribeGroup,
    FindGroup,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    MemberHeartbeat,
    MovePositions,
    Released,
    ResetGroup,
)
from rostra.wire.messages import Agreed, NodeMessage

if TYPE_CHECKING:
    from rostra.broker.broker import Broker

Coordinated = (
    JoinGroup
    | Released
    | MovePositions
    | MemberHeartbeat
    | LeaveGroup
    | ListGroups
    | DescribeGroup
    | ResetGroup
    | DeleteGroup
)


class Coordinator:
    """One per broker, for all partitions of `_groups` that it owns."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.places = CoordinatorLocator(broker)
        self._stewardship = GroupStore(broker)
        self._admission = GroupJoin(broker, self._stewardship)
        self._keeping = GroupMaintenance(broker, self._stewardship, self._admission)
        self._fences = Safeguard.GENERATION_FENCING not in broker.without

    # --- what the broker hears ---

    def waiting(self) -> bool:
        return self._admission.is_asking or self.places.waiting()

    def confirmed(self, token: int) -> bool:
        """True if it was asked here."""
        if not self._admission.confirmed(token):
            return self.places.confirmed(token)
        self._keeping.set_timer()
        return True

    def refused(self, token: int, error: RostraError) -> bool:
        """True if it was asked here."""
        if not self._admission.refused(token, error):
            return self.places.refused(token, error)
        self._keeping.set_timer()
        return True

    def broke(self, error: RostraError) -> None:
        """Nothing is acknowledged here any more."""
        self.places.broke(error)

    def serving(self, served: ServedPartition) -> None:
        """The fabric said who owns a partition."""
        if served.topic == GROUPS_TOPIC:
            self._keeping.serving(served)

    def follow(self, served: ServedPartition) -> None:
        """The end of a log was cut, or it was read again."""
        if served.topic == GROUPS_TOPIC:
            self._keeping.follow(served)

    def topic_changed(self, topic: str) -> None:
        """It came or went."""
        self._keeping.topic_changed(topic)

    def lose(self, conn: Conn) -> None:
        self._stewardship.seats.lose(conn)

    def drained(self, conn: Conn) -> None:
        self._stewardship.drained(conn)

    def timer(self) -> None:
        self._keeping.timer()

    # --- requests ---

    def answer(self, conn: Conn, session: Session, message: Coordinated | FindGroup) -> None:
        broker = self._broker
        if isinstance(message, FindGroup):
            self.places.find(conn, session, message)
            return
        served = broker.too_many(session) or self._place(message)
        if isinstance(served, RostraError):
            broker.refuse(conn, message.request, served)
            return
        match message:
            case JoinGroup():
                self._admission.ask(conn, session, message)
                self._keeping.set_timer()
            case MemberHeartbeat():
                self._beat(conn, served, message)
            case MovePositions():
                self._move(conn, session, served, message)
            case Released():
                self._release(conn, session, served, message)
            case LeaveGroup():
                self._leave(conn, session, served, message)
            case ListGroups():
                self._show(conn, session, served, description.page(served.books.groups, message), message.request)
            case DescribeGroup():
                self._describe(conn, session, served, message)
            case ResetGroup():
                self._reset(conn, session, served, message)
            case DeleteGroup():
                self._delete(conn, session, served, message)
            case _:
                assert_never(message)

    def _place(self, message: Coordinated) -> ServedPartition | RostraError:
        """The partition that the request is about, if this node owns it."""
        if not isinstance(message, ListGroups):
            return self._stewardship.place(message.name)
        known = self._broker.catalogue.named(GROUPS_TOPIC)
        if known is None:
            return UnknownTopic(GROUPS_TOPIC)
        if message.partition >= len(known.partitions):
            return UnknownPartition(GROUPS_TOPIC, message.partition)
        return self._stewardship.owned_here(known.partitions[message.partition])

    def _show(self, conn: Conn, session: Session, served: ServedPartition, message: NodeMessage, request: int) -> None:
        """What is shown may not be committed yet, and then is not shown yet."""
        self._broker.ordering.reply_when_safe(conn, session, served, served.end - 1, message, request)

    def _settle(
        self, conn: Conn, session: Session, served: ServedPartition, last: int | RostraError, request: int
    ) -> None:
        """Answers what was logged, or was not."""
        if isinstance(last, RostraError):
            self._broker.refuse(conn, request, last)
        else:
            self._broker.ordering.reply_when_safe(conn, session, served, last, Agreed(request), request)

    # --- members ---

    def _stranger(self, conn: Conn, group: ConsumerGroup | None, name: str, member: int) -> RostraError | None:
        """Why this connection does not speak for that member, if it does not."""
        if group is None:
            return NotAMember(name, member)
        seats = self._stewardship.seats
        is_there = member in group.members and seats.conn_of((name, member)) == conn
        if is_there:
            seats.hear((name, member), self._broker.now.mono_us)
        return None if is_there or not self._fences else NotAMember(name, member)

    def _beat(self, conn: Conn, served: ServedPartition, message: MemberHeartbeat) -> None:
        error = self._stranger(conn, served.books.groups.get(message.name), message.name, message.member)
        if error is not None:
            self._broker.refuse(conn, message.request, error)
        else:
            self._broker.reply(conn, Agreed(message.request))

    def _move(self, conn: Conn, session: Session, served: ServedPartition, message: MovePositions) -> None:
        group = served.books.groups.get(message.name)
        error = self._stranger(conn, group, message.name, message.member) or self._not_held(group, message)
        if error is not None:
            self._broker.refuse(conn, message.request, error)
        elif not message.positions:
            self._broker.reply(conn, Agreed(message.request))
        else:
            moved = PositionsCommitted(
                message.name, tuple((one.topic, one.partition, one.offset, one.tries) for one in message.positions)
            )
            self._settle(conn, session, served, self._broker.ordering.order(served, [moved]), message.request)

    def _not_held(self, group: ConsumerGroup | None, message: MovePositions) -> RostraError | None:
        if group is None or not self._fences:
            return None
        for position in message.positions:
            part = group.parts.get(GroupPartitionKey(position.topic, position.partition))
            if part is None or part.holder != message.member or message.generation < part.since:
                return StaleGeneration(message.name, group.generation)
        return None

    def _release(self, conn: Conn, session: Session, served: ServedPartition, message: Released) -> None:
        group = served.books.groups.get(message.name)
        error = self._stranger(conn, group, message.name, message.member)
        if group is None or error is not None:
            self._broker.refuse(conn, message.request, error or NotAMember(message.name, message.member))
            return
        done_with = [
            key
            for key, part in group.parts.items()
            if part.holder == message.member and 0 < part.revoked <= message.generation
        ]
        if not done_with:
            self._broker.reply(conn, Agreed(message.request))
            return
        changed = self._stewardship.change(served, group, [], group.members, let_go(group, done_with))
        self._answer(conn, session, served, group, changed, message.request)

    def _leave(self, conn: Conn, session: Session, served: ServedPartition, message: LeaveGroup) -> None:
        group = served.books.groups.get(message.name)
        if group is None or message.member not in group.members:
            self._broker.reply(conn, Agreed(message.request))
            return
        changed = self._stewardship.dismiss(served, group, [message.member], died=False)
        self._answer(conn, session, served, group, changed, message.request)

    def _answer(
        self,
        conn: Conn,
        session: Session,
        served: ServedPartition,
        group: ConsumerGroup,
        changed: GroupChange | RostraError,
        request: int,
    ) -> None:
        """Whoever asked first, then those who hold something else by it."""
        if isinstance(changed, RostraError):
            self._broker.refuse(conn, request, changed)
            return
        self._settle(conn, session, served, changed.last, request)
        self._stewardship.tell(served, group, changed)

    # --- without members ---

    def _describe(self, conn: Conn, session: Session, served: ServedPartition, message: DescribeGroup) -> None:
        group = served.books.groups.get(message.name)
        if group is None:
            self._broker.refuse(conn, message.request, UnknownGroup(message.name))
        else:
            shown = description.described(self._broker.catalogue, group, message)
            self._show(conn, session, served, shown, message.request)

    def _idle(self, served: ServedPartition, name: str) -> ConsumerGroup | RostraError:
        group = served.books.groups.get(name)
        if group is None:
            return UnknownGroup(name)
        return GroupBusy(name, len(group.members)) if group.members else group

    def _reset(self, conn: Conn, session: Session, served: ServedPartition, message: ResetGroup) -> None:
        group = self._idle(served, message.name)
        last: int | RostraError
        if isinstance(group, RostraError):
            last = group
        else:
            positions = {GroupPartitionKey(one.topic, one.partition): one for one in message.positions}
            bound = self._broker.settings.parts_per_group_max
            if len(positions.keys() | group.parts.keys()) > bound:
                last = LimitExceeded("parts_per_group_max", bound)
            else:
                rows = tuple((*key, one.offset, one.tries) for key, one in sorted(positions.items()))
                last = self._broker.ordering.order(served, [PositionsCommitted(message.name, rows)])
        self._settle(conn, session, served, last, message.request)

    def _delete(self, conn: Conn, session: Session, served: ServedPartition, message: DeleteGroup) -> None:
        group = self._idle(served, message.name)
        last = (
            group
            if isinstance(group, RostraError)
            else self._broker.ordering.order(served, [GroupDeleted(message.name)])
        )
        self._settle(conn, session, served, last, message.request)
