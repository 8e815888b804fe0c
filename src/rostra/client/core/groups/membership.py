"""One member of a named subscription: how it joins and stays, what it holds, and how its positions move.

It follows the coordinator of the name like a lane follows its partition. Whatever is said to it is answered, and every
answer renews the lease. A member that hears none for as long as its lease hands out nothing more until it was told anew
what it holds: others may handle that by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto
from functools import partial
from typing import Protocol

from rostra.client.core.effects import CallNumber, ClientEffect, Done, Fail, Finish, Notify, SubscriptionNumber
from rostra.client.core.events import MembershipLost
from rostra.client.core.groups.assigned_partition import AckedPosition, AckHandler, AssignedPartition
from rostra.client.core.groups.dispatcher import MOVE_MS, DeadLetters, Dispatcher
from rostra.client.core.links.node_link import NodeLink
from rostra.client.core.options import MemberSettings, start_on_the_wire
from rostra.client.core.routing.coordinator_request import OnReply, Reply, Rpc
from rostra.client.core.routing.partition_route import PartitionRoute
from rostra.errors import ClientClosed, GroupError, NotAMember, RostraError, StaleGeneration, TimedOut
from rostra.wire.groups import (
    PARTS_PER_PAGE_MAX,
    Assignment,
    GroupJoined,
    GroupPart,
    JoinGroup,
    LeaveGroup,
    MemberHeartbeat,
    MovePositions,
    Position,
    Released,
)
from rostra.wire.messages import ClientMessage

HANDOVER_MS_MAX = 60_000
"""What is in hand when its part is taken away may still be acknowledged for so long; then the next member gets it."""
BEATS_PER_LEASE = 4

PartKey = tuple[int, int]
MessageOf = Callable[[int], ClientMessage]


class MembershipHost(DeadLetters, Protocol):
    """What a member needs of the client that it is part of."""

    def find(self, now_us: int, membership: Membership) -> None: ...
    def open_feed(self, now_us: int, membership: Membership, holding: AssignedPartition, part: GroupPart) -> None: ...
    def close_feed(self, holding: AssignedPartition) -> None: ...
    def new_member(self) -> int: ...


class MembershipState(Enum):
    FINDING = auto()
    WAITING = auto()
    """For a connection to the coordinator."""
    JOINING = auto()
    MEMBER = auto()
    ENDED = auto()


class Membership:
    def __init__(
        self,
        number: SubscriptionNumber,
        name: str,
        settings: MemberSettings,
        around: MembershipHost,
        desk: AckHandler,
        call: CallNumber,
        due_us: int,
        out: list[ClientEffect],
    ) -> None:
        self.number = number
        self.name = name
        self.settings = settings
        self.member = around.new_member()
        self.state = MembershipState.FINDING
        self.generation = 0
        self.holdings: dict[PartKey, AssignedPartition] = {}
        self.hands = Dispatcher(number, name, around, self._may_hand_out, self._hurry, out)
        self.hurried = False
        """Set when something became due earlier than it was: whoever keeps the timer looks again."""
        self.link: NodeLink
        self.place: PartitionRoute | None = None
        self.find_at_us: int | None = None
        self._around = around
        self._desk = desk
        self._out = out
        self._lease_us = settings.lease_ms * 1000
        self._call = call
        """Whoever waits for it to stand; zero afterwards."""
        self._due_us = due_us
        self._leaving: CallNumber | None = None
        self._leave_by_us = 0
        self._round = 0
        """Raised whenever the connection is another: answers to what was said before it are not for us."""
        self._assured_us = 0
        """When the last thing was said that was answered."""
        self._beat_at_us = 0
        self._told: dict[PartKey, GroupPart] = {}
        """Of an assignment that comes in several messages, what has come."""
        self._told_in = 0
        self._carries = False
        """Whether the next assignment is that of a node which keeps names of its own: what is held goes along."""
        self._assigned = False
        self._released = -1
        """The generation that was last answered with `Released`."""
        self._moving = False
        self._move_at_us: int | None = None
        self._handovers: dict[AssignedPartition, int] = {}
        """What was taken away, and by when it is let go of."""

    # --- the coordinator -----------------------------------------------------------------------------

    def found(self, now_us: int, place: PartitionRoute) -> None:
        if self.state is not MembershipState.FINDING:
            return
        self.state = MembershipState.WAITING
        self.place = place
        place.join(self)
        if not place.lost:
            self.flow(now_us)

    def not_found(self, now_us: int, error: RostraError) -> None:
        if self.state is MembershipState.FINDING:
            if self._call or not error.retryable:
                self.end(error)
            else:
                self.find_at_us = now_us + self._around.pause_us(3)

    def flow(self, now_us: int) -> None:
        if self.state is not MembershipState.WAITING or not self.link.up:
            return
        self.state = MembershipState.JOINING
        self._told.clear()
        settings = self.settings
        start, value = start_on_the_wire(settings.start)
        build = partial(
            JoinGroup,
            name=self.name,
            member=self.member,
            patterns=settings.patterns,
            lease_ms=settings.lease_ms,
            start=start,
            value=value,
            tries_max=settings.tries_max,
            dead_letter=settings.dead_letter,
            client=settings.client,
        )
        self._say(now_us, build, self._joined)

    def halt(self) -> None:
        if self.state in (MembershipState.JOINING, MembershipState.MEMBER):
            self.state = MembershipState.WAITING
        self._round += 1
        self._moving = self._assigned = False

    def move(self, link: NodeLink) -> None:
        self.halt()
        self.link = link

    def renumbered(self) -> None:
        """Of no concern here."""

    def fail(self, error: RostraError) -> None:
        """The partition that kept the name is gone, or its node is: another may keep it."""
        self.halt()
        self._carries = True
        self.place = None
        self.state = MembershipState.FINDING
        self.find_at_us = 0

    def _say(self, now_us: int, build: MessageOf, answered: OnReply, about: Iterable[AssignedPartition] = ()) -> None:
        heard = partial(self._answered, self._round, now_us, answered)
        refused = partial(self._refused, self._round, self.generation, tuple(about))
        self.link.ask(Rpc(heard, refused), build)

    def _answered(self, said_in: int, said_us: int, answered: OnReply, now_us: int, message: Reply) -> None:
        if self.state is MembershipState.ENDED and isinstance(message, GroupJoined):
            # Nobody waits for it any more, but the coordinator does not know.
            self._forsake()
        elif said_in == self._round and self.state is not MembershipState.ENDED:
            self._assured_us = max(self._assured_us, said_us)
            answered(now_us, message)

    def _refused(
        self, said_in: int, generation: int, about: tuple[AssignedPartition, ...], now_us: int, error: RostraError
    ) -> None:
        if said_in != self._round or self.state is MembershipState.ENDED:
            return
        if isinstance(error, NotAMember):
            self._expelled(now_us, error)
        elif isinstance(error, StaleGeneration):
            self._stale(now_us, generation, [holding for holding in about if holding in self._handovers])
        elif error.retryable and not isinstance(error, GroupError):
            self.ended_there(now_us, error)
        else:
            self.end(error)

    def _stale(self, now_us: int, generation: int, taken_away: list[AssignedPartition]) -> None:
        self._moving = False
        self._hurry(now_us)
        for holding in taken_away:
            # Another has it already, as happens after an absence.
            self._drop(holding)
        if not taken_away and self.generation == generation:
            # It crossed no assignment that says what is held now, so that is to be asked for.
            self._join_anew(now_us)

    def ended_there(self, now_us: int, error: RostraError) -> None:
        """The node does not coordinate the name, or not now; or this is no member of it."""
        if isinstance(error, NotAMember):
            self._expelled(now_us, error)
            return
        self.halt()
        if self.place is not None:
            self.place.refused(now_us, error)

    def _expelled(self, now_us: int, error: RostraError) -> None:
        """It was taken for dead: what it held may be with others. The next assignment will tell."""
        self._out.append(Notify(MembershipLost(self.name, str(error))))
        self._assured_us = now_us - self._lease_us
        if self._leaving is not None:
            self._left()
        else:
            self._join_anew(now_us)

    def _join_anew(self, now_us: int) -> None:
        self.halt()
        if self.place is not None and not self.place.lost:
            self.flow(now_us)

    # --- joining and leaving -------------------------------------------------------------------------

    def _joined(self, now_us: int, message: Reply) -> None:
        if not isinstance(message, GroupJoined) or self.state is not MembershipState.JOINING:
            return
        self.state = MembershipState.MEMBER
        self.generation = message.generation
        self.hands.tries_max, self.hands.dead_letter = message.tries_max, message.dead_letter
        self._beat_at_us = now_us + self._lease_us // BEATS_PER_LEASE
        self._released = -1
        if self.place is not None:
            self.place.proved()
        self._hurry(now_us)

    def leave(self, now_us: int, call: CallNumber, due_us: int) -> None:
        """Positions first. What is in hand is given back."""
        self._leaving, self._leave_by_us = call, due_us
        if self.state is MembershipState.ENDED or (self.state is not MembershipState.MEMBER and not self.holdings):
            self._left()
            return
        for holding in self.holdings.values():
            holding.leaving = True
        self._hurry(now_us)
        self._advance(now_us)

    def _gone(self, now_us: int, message: Reply) -> None:
        self.state = MembershipState.WAITING
        self._left()

    def _left(self) -> None:
        leaving, call, self._leaving, self._call = self._leaving, self._call, None, 0
        self._close()
        if call:
            self._out.append(Fail(call, ClientClosed()))
        if leaving is not None:
            self._out.append(Done(leaving, None))

    def end(self, error: RostraError) -> None:
        if self.state is MembershipState.ENDED:
            return
        leaving, call, self._leaving, self._call = self._leaving, self._call, None, 0
        self._close()
        if call:
            self._out.append(Fail(call, error))
        elif leaving is not None:
            self._out.append(Fail(leaving, error))
        else:
            self._out.append(Finish(self.number, error))

    def _close(self) -> None:
        if self.state is MembershipState.MEMBER:
            self._forsake()
        self.state = MembershipState.ENDED
        self._round += 1
        for holding in list(self.holdings.values()):
            self._drop(holding)
        if self.place is not None:
            self.place.leave(self)
        self.find_at_us = None

    def _forsake(self) -> None:
        """Its connection may live on with others, and would keep a member alive that is none any more."""
        if self.link.up:
            nobody = Rpc(lambda now_us, message: None, lambda now_us, error: None)
            self.link.ask(nobody, partial(LeaveGroup, name=self.name, member=self.member))

    # --- what it holds -------------------------------------------------------------------------------

    def assigned(self, now_us: int, message: Assignment) -> None:
        if self.state is not MembershipState.MEMBER or message.generation < self.generation:
            return
        if message.generation != self._told_in:
            self._told, self._told_in = {}, message.generation
        self._told.update(((part.topic, part.partition), part) for part in message.parts)
        if message.more:
            return
        told, self._told = self._told, {}
        self.generation = message.generation
        self._assigned = True
        for key, holding in list(self.holdings.items()):
            if key not in told and not holding.leaving:
                holding.leaving = True
                self._handovers[holding] = now_us + HANDOVER_MS_MAX * 1000
            elif key in told and not self._goes_on(holding, told[key]):
                # It was another's meanwhile, and is a new one.
                self._drop(holding)
        self._carries = False
        for key, part in told.items():
            if key not in self.holdings and self._leaving is None:
                self._begin(now_us, key, part)
        self._hurry(now_us)
        self._advance(now_us)
        self.hands.stir(now_us)

    def _goes_on(self, holding: AssignedPartition, part: GroupPart) -> bool:
        return holding.carried(part) if self._carries else part.since == holding.since

    def _begin(self, now_us: int, key: PartKey, part: GroupPart) -> None:
        agreed = AckedPosition(part.value, part.tries) if part.start == "offset" else None
        holding = AssignedPartition(self._desk, part, agreed)
        self.holdings[key] = holding
        self.hands.add(holding)
        self._around.open_feed(now_us, self, holding, part)

    def _drop(self, holding: AssignedPartition) -> None:
        del self.holdings[holding.topic, holding.partition]
        self._handovers.pop(holding, None)
        self._around.close_feed(holding)
        self.hands.remove(holding)

    def lost_part(self, now_us: int, holding: AssignedPartition, error: RostraError | None) -> None:
        """Its topic is gone, which the coordinator will tell too; or with an error it cannot be read."""
        if self.holdings.get((holding.topic, holding.partition)) is holding:
            if error is not None:
                self.end(error)
            else:
                self._drop(holding)
                self._hurry(now_us)

    def stood(self, now_us: int) -> None:
        """Another part has told where delivery begins: its position is moved there at once."""
        self._hurry(now_us)
        self._advance(now_us)

    def _answer_if_stands(self) -> None:
        ready = self._assigned and all(
            holding.leaving or (holding.stands and holding.agreed is not None) for holding in self.holdings.values()
        )
        if self._call and ready:
            self._out.append(Done(self._call, None))
            self._call = 0

    # --- positions -----------------------------------------------------------------------------------

    @property
    def lag(self) -> int:
        return sum(holding.lag for holding in self.holdings.values())

    def passed_over(self, now_us: int, holding: AssignedPartition) -> None:
        """Something came that may hold no record: the position goes past it."""
        if not holding.in_hand and not holding.queue:
            self._hurry(now_us + MOVE_MS * 1000)

    def _advance(self, now_us: int) -> None:
        """Move what has changed; then let go of what was taken away, and say so; then leave, if that is wanted."""
        if not self._assigned or self._moving or self._move_at_us is None or self._move_at_us > now_us:
            return
        self._move_at_us = None
        self.hands.moving()
        changed = {
            holding: standing
            for holding in self.holdings.values()
            if (standing := holding.standing()) is not None and standing != holding.agreed
        }
        # What was taken away may be another's already: a refusal of that must not hold up the rest.
        parting = {holding: standing for holding, standing in changed.items() if holding in self._handovers}
        if changed:
            self._move(now_us, dict(list((parting or changed).items())[:PARTS_PER_PAGE_MAX]))
            return
        self._answer_if_stands()
        if self._leaving is not None:
            self._moving = True
            self._say(now_us, partial(LeaveGroup, name=self.name, member=self.member), self._gone)
            return
        for holding, until_us in list(self._handovers.items()):
            if not holding.in_hand or until_us <= now_us:
                self._drop(holding)
        if not self._handovers and self._released < self.generation:
            self._released = self.generation
            self._say(now_us, self._about_us(Released), self._noted)

    def _move(self, now_us: int, moves: dict[AssignedPartition, AckedPosition]) -> None:
        self._moving = True
        positions = tuple(
            Position(holding.topic, holding.partition, standing.offset, standing.tries)
            for holding, standing in moves.items()
        )
        build = partial(
            MovePositions, name=self.name, member=self.member, generation=self.generation, positions=positions
        )
        self._say(now_us, build, partial(self._moved, moves), moves)

    def _moved(self, moves: dict[AssignedPartition, AckedPosition], now_us: int, message: Reply) -> None:
        self._moving = False
        for holding, standing in moves.items():
            holding.agreed = standing
        waits = self._call or self._handovers or self._leaving is not None or len(moves) == PARTS_PER_PAGE_MAX
        if waits or self._released < self.generation:
            self._hurry(now_us)
            self._advance(now_us)

    def _noted(self, now_us: int, message: Reply) -> None:
        """That it was heard is all there is to it: if there was a doubt, it is gone."""
        self.hands.stir(now_us)

    def _about_us(self, kind: type[Released] | type[MemberHeartbeat]) -> MessageOf:
        return partial(kind, name=self.name, member=self.member, generation=self.generation)

    # --- time ----------------------------------------------------------------------------------------

    def _may_hand_out(self, now_us: int) -> bool:
        """Not while its lease may have ended, nor before it was told anew what it holds: it may be another's."""
        told = self._assigned or self.state is not MembershipState.MEMBER
        return told and self._leaving is None and now_us < self._assured_us + self._lease_us

    def _hurry(self, at_us: int) -> None:
        if self._move_at_us is None or at_us < self._move_at_us:
            self._move_at_us = at_us
            self.hurried = True

    def deadline_us(self) -> int | None:
        if self.state is MembershipState.ENDED:
            return None
        due = [self.find_at_us, self._due_us if self._call else None]
        if self._leaving is not None:
            due.append(self._leave_by_us)
        if self.state is MembershipState.MEMBER:
            due.append(self._beat_at_us)
            if self._assigned and not self._moving:
                due += [self._move_at_us, *self._handovers.values()]
        due.append(self.hands.deadline_us())
        return min([moment for moment in due if moment is not None], default=None)

    def tick(self, now_us: int) -> None:
        if self._call and self._due_us <= now_us:
            heard = None if self.place is None else self.place.error
            self.end(heard or TimedOut(f"join {self.name}", self._lease_us // 1000))
        elif self._leaving is not None and self._leave_by_us <= now_us:
            self.end(TimedOut(f"leave {self.name}", self._lease_us // 1000))
        if self.state is MembershipState.ENDED:
            return
        if self.find_at_us is not None and self.find_at_us <= now_us:
            self.find_at_us = None
            self._around.find(now_us, self)
        if self.state is MembershipState.MEMBER and self._beat_at_us <= now_us:
            self._beat_at_us = now_us + self._lease_us // BEATS_PER_LEASE
            self._say(now_us, self._about_us(MemberHeartbeat), self._noted)
        if any(until_us <= now_us for until_us in self._handovers.values()):
            self._hurry(now_us)
        self._advance(now_us)
        self.hands.stir(now_us)
