"""Named subscriptions at the owner of their partition of `_groups`: who is a member, who handles what, how far it is.

Every decision is an entry in that partition's log before anybody hears of it, so the next owner goes on where this one
stopped. Only where members are heard, and when, is known here alone: a new owner gives everybody a fresh lease.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, assert_never

from rostra.broker import group_views
from rostra.broker.api import Conn
from rostra.broker.group_places import GROUPS_TOPIC, GroupPlaces, place_of
from rostra.broker.group_topics import Beginnings, Interest, patterns_of, present, wanted
from rostra.broker.groups import (
    Group,
    GroupBook,
    GroupEntry,
    GroupForgotten,
    GroupSet,
    MemberJoined,
    MemberLeft,
    Part,
    PartKey,
    PartsChanged,
    PositionsMoved,
    growth_bytes,
)
from rostra.broker.handing import hand_out
from rostra.broker.leases import Leases, Seated, Seats
from rostra.broker.partition import ServedPartition
from rostra.broker.sessions import Session
from rostra.errors import (
    GroupBusy,
    InvalidGroupName,
    InvalidTopicName,
    LimitExceeded,
    NodeStopping,
    NotAMember,
    RostraError,
    StaleGeneration,
    Unavailable,
    UnknownGroup,
    UnknownPartition,
    UsageError,
)
from rostra.fabric.api import Confirm, Note, SetTimer
from rostra.model.ids import Partition, check_topic_name
from rostra.model.patterns import Pattern
from rostra.safeguards import Safeguard
from rostra.wire.groups import (
    Beat,
    DeleteGroup,
    DescribeGroup,
    FindGroup,
    GroupEnded,
    GroupJoined,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    MovePositions,
    Released,
    ResetGroup,
)
from rostra.wire.messages import Agreed, NodeMessage

if TYPE_CHECKING:
    from rostra.broker.broker import Broker

GROUPS_TIMER = "broker/groups"
TOPICS_TOGETHER_US = 20_000
"""Topics that come or go within this are handed out together: a member is told its whole set each time."""
CONFIRM_AGAIN_US = 200_000
LATE_US = 1_000_000
"""A timer that fires this late tells of a node that stood still itself, and heard nobody."""

Coordinated = (
    JoinGroup | Released | MovePositions | Beat | LeaveGroup | ListGroups | DescribeGroup | ResetGroup | DeleteGroup
)


class Changed(NamedTuple):
    """Logged up to `last`; what these members hold is different now."""

    last: int
    touched: tuple[int, ...]


class Confirming(NamedTuple):
    """Who waits until it is certain which topics there are."""

    token: int
    joining: list[tuple[Conn, JoinGroup]]
    partitions: tuple[Partition, ...]


class Coordinator:
    """One per broker, for all partitions of `_groups` that it owns."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.places = GroupPlaces(broker)
        self._seats = Seats(broker.sessions)
        self._leases = Leases()
        self._interest = Interest()
        self._owned: dict[Partition, bool] = {}
        """Those that are owned here; False until what is known of topics was confirmed since."""
        self._dirty: dict[str, None] = {}
        """Names whose topics may have changed."""
        self._dirty_us = 0
        self._joining: list[tuple[Conn, JoinGroup]] = []
        self._confirming: Confirming | None = None
        self._confirm_us = 0
        self._timer_us: int | None = None
        self._fences = Safeguard.GENERATION_FENCING not in broker.without

    def waiting(self) -> bool:
        return bool(self._joining) or self._confirming is not None or self.places.waiting()

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
                self._ask_to_join(conn, session, message)
            case Beat():
                self._beat(conn, served, message)
            case MovePositions():
                self._move(conn, session, served, message)
            case Released():
                self._release(conn, session, served, message)
            case LeaveGroup():
                self._leave(conn, session, served, message)
            case ListGroups():
                self._show(conn, session, served, group_views.page(served.books.groups, message), message.request)
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
        known = self._broker.catalogue.named(GROUPS_TOPIC)
        if known is None:
            return Unavailable(GROUPS_TOPIC, 0, "this node has not heard of it yet")
        if not isinstance(message, ListGroups):
            served = place_of(known, message.name)
        elif message.partition < len(known.partitions):
            served = known.partitions[message.partition]
        else:
            return UnknownPartition(GROUPS_TOPIC, message.partition)
        if not served.owner:
            return self._broker.placement.not_owner(served)
        return served.blocked or served

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

    # --- joining ---

    def _ask_to_join(self, conn: Conn, session: Session, message: JoinGroup) -> None:
        """Only when it is certain which topics there are: one that was made just before must not be missed."""
        error = NodeStopping() if self._broker.stopping else _malformed(message)
        if error is not None:
            self._broker.refuse(conn, message.request, error)
            return
        session.waiting += 1
        self._joining.append((conn, message))
        if self._confirming is None:
            self._confirm()

    def _confirm(self) -> None:
        """One question for all who joined meanwhile."""
        token = self._broker.next_token()
        self._confirming, self._joining = Confirming(token, self._joining, tuple(self._owned)), []
        self._broker.ask_fabric(Confirm(token, ""))

    def confirmed(self, token: int) -> bool:
        """True if the token was the one of this question."""
        if self._confirming is None or self._confirming.token != token:
            return self.places.confirmed(token)
        confirming, self._confirming = self._confirming, None
        for partition in confirming.partitions:
            if partition in self._owned:
                self._owned[partition] = True
        for conn, message in confirming.joining:
            if self._broker.answered(conn):
                self._join(conn, message)
        if self._joining and self._confirming is None:
            self._confirm()
        self._set_timer()
        return True

    def refused(self, token: int, error: RostraError) -> bool:
        """True if the token was the one of this question."""
        if self._confirming is None or self._confirming.token != token:
            return self.places.refused(token, error)
        confirming, self._confirming = self._confirming, None
        for conn, message in (*confirming.joining, *self._joining):
            if self._broker.answered(conn):
                self._broker.refuse(conn, message.request, error)
        self._joining = []
        self._confirm_us = self._broker.now.mono_us + CONFIRM_AGAIN_US
        self._set_timer()
        return True

    def _join(self, conn: Conn, message: JoinGroup) -> None:
        broker = self._broker
        session, served = broker.sessions.get(conn), self._place(message)
        if session is None:
            return
        if isinstance(served, RostraError):
            broker.refuse(conn, message.request, served)
            return
        changed = self._joined(served, message)
        if isinstance(changed, RostraError):
            broker.refuse(conn, message.request, changed)
            return
        group = served.books.groups.groups[message.name]
        settings, member = group.settings, group.members[message.member]
        seated = (message.name, message.member)
        elsewhere = self._seats.take(seated, conn, broker.now.mono_us)
        if elsewhere is not None:
            self._end(elsewhere, seated, NotAMember(*seated))
        self._leases.look_at(seated, broker.now.mono_us + member.lease_ms * 1000)
        self._set_timer()
        answer = GroupJoined(
            message.request, group.generation, member.patterns, settings.tries_max, settings.dead_letter
        )
        broker.ordering.reply_when_safe(conn, session, served, changed.last, answer, message.request)
        self._tell(served, group, changed, also=message.member)

    def _joined(self, served: ServedPartition, message: JoinGroup) -> Changed | RostraError:
        book = served.books.groups
        group = book.get(message.name)
        patterns = message.patterns or (group.settings.patterns if group is not None else ())
        settings = GroupSet(
            message.name, patterns, message.start, message.value, message.tries_max, message.dead_letter
        )
        member = MemberJoined(message.name, message.member, patterns, message.lease_ms, message.client)
        before = group.members.get(message.member) if group is not None else None
        error = self._no_room(book, group, settings, member)
        if error is not None:
            return error
        entries: list[GroupEntry] = []
        if group is None or group.settings != settings:
            entries.append(settings)
        if before != member:
            entries.append(member)
        there = group or Group(settings)
        known = {*there.settings.patterns, *patterns_of(there.members.values())} if group is not None else ()
        beginnings = Beginnings(self._broker.catalogue, settings, sorted(known))
        return self._change(served, there, entries, {**there.members, member.member: member}, there.parts, beginnings)

    def _no_room(
        self, book: GroupBook, group: Group | None, settings: GroupSet, member: MemberJoined
    ) -> RostraError | None:
        bounds = self._broker.settings
        if group is None and len(book) >= bounds.groups_max:
            return LimitExceeded("groups_max", bounds.groups_max)
        members = group.members if group is not None else {}
        if member.member not in members and len(members) >= bounds.members_per_group_max:
            return LimitExceeded("members_per_group_max", bounds.members_per_group_max)
        if book.bytes + growth_bytes(settings, member, 0) > bounds.groups_bytes_max:
            return LimitExceeded("groups_bytes_max", bounds.groups_bytes_max)
        return None

    # --- what follows from a change ---

    def _change(
        self,
        served: ServedPartition,
        group: Group,
        entries: list[GroupEntry],
        members: Mapping[int, MemberJoined],
        parts: Mapping[PartKey, Part],
        beginnings: Beginnings | None = None,
    ) -> Changed | RostraError:
        """Logs the entries with what follows from them for the parts, in one batch: nobody sees half of it."""
        broker, name = self._broker, group.settings.name
        begin = beginnings or Beginnings(broker.catalogue, group.settings, patterns_of(members.values()))
        present_now = present(broker.catalogue, parts)
        parts_wanted = self._within_bounds(served.books.groups, name, present_now, wanted(broker.catalogue, members))
        generation = group.generation + 1
        handing = hand_out(group.parts, present_now, members, parts_wanted, generation, begin.of)
        if not entries and not handing.parts and not handing.gone:
            return Changed(served.end - 1, ())
        rows = tuple((*key, part) for key, part in handing.parts.items())
        last = broker.ordering.order(served, [*entries, PartsChanged(name, generation, rows, handing.gone)])
        if isinstance(last, RostraError):
            return last
        self._interest.set(name, patterns_of(members.values()))
        return Changed(last, handing.touched)

    def _within_bounds(
        self, book: GroupBook, name: str, parts: Mapping[PartKey, Part], found: dict[PartKey, tuple[int, ...]]
    ) -> dict[PartKey, tuple[int, ...]]:
        """As many parts as there is room for: what is over that is said in the log, and nobody gets it."""
        bounds = self._broker.settings
        room_bytes = bounds.groups_bytes_max - book.bytes
        room = min(bounds.parts_per_group_max - len(parts), room_bytes // growth_bytes(None, None, 1))
        fresh = [key for key in sorted(found) if key not in parts]
        if len(fresh) <= room:
            return found
        about: dict[str, int | str] = {"name": name, "parts": len(fresh) - max(0, room)}
        self._broker.out.append(Note("error", "no room for parts of a named subscription", about))
        left_out = set(fresh[max(0, room) :])
        return {key: members for key, members in found.items() if key not in left_out}

    def _tell(self, served: ServedPartition, group: Group, changed: Changed, also: int = 0) -> None:
        """What they hold now, when it is committed."""
        broker = self._broker
        for member in sorted({*changed.touched, also} - {0}):
            conn = self._seats.conn_of((group.settings.name, member))
            session = broker.sessions.get(conn) if conn is not None else None
            if conn is None or session is None:
                continue
            for message in group_views.assigned(broker.catalogue, group, member, broker.without):
                broker.ordering.reply_when_safe(conn, session, served, changed.last, message)

    def _end(self, conn: Conn, seated: Seated, error: RostraError) -> None:
        self._broker.reply(conn, GroupEnded(*seated, type(error).__name__, error.carried()))

    # --- members ---

    def _stranger(self, conn: Conn, group: Group | None, name: str, member: int) -> RostraError | None:
        """Why this connection does not speak for that member, if it does not."""
        if group is None:
            return NotAMember(name, member)
        is_there = member in group.members and self._seats.conn_of((name, member)) == conn
        return None if is_there or not self._fences else NotAMember(name, member)

    def _beat(self, conn: Conn, served: ServedPartition, message: Beat) -> None:
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
            moved = PositionsMoved(
                message.name, tuple((one.topic, one.partition, one.offset, one.tries) for one in message.positions)
            )
            self._settle(conn, session, served, self._broker.ordering.order(served, [moved]), message.request)

    def _not_held(self, group: Group | None, message: MovePositions) -> RostraError | None:
        if group is None or not self._fences:
            return None
        for position in message.positions:
            part = group.parts.get(PartKey(position.topic, position.partition))
            if part is None or part.holder != message.member or message.generation < part.since:
                return StaleGeneration(message.name, group.generation)
        return None

    def _release(self, conn: Conn, session: Session, served: ServedPartition, message: Released) -> None:
        group = served.books.groups.get(message.name)
        error = self._stranger(conn, group, message.name, message.member)
        if group is None or error is not None:
            self._broker.refuse(conn, message.request, error or NotAMember(message.name, message.member))
            return
        let_go = [
            key
            for key, part in group.parts.items()
            if part.holder == message.member and 0 < part.revoked <= message.generation
        ]
        if not let_go:
            self._broker.reply(conn, Agreed(message.request))
            return
        changed = self._change(served, group, [], group.members, {**group.parts, **_free(group, let_go)})
        self._settle(conn, session, served, _last(changed), message.request)
        if not isinstance(changed, RostraError):
            self._tell(served, group, changed)

    def _leave(self, conn: Conn, session: Session, served: ServedPartition, message: LeaveGroup) -> None:
        group = served.books.groups.get(message.name)
        if group is None or message.member not in group.members:
            self._broker.reply(conn, Agreed(message.request))
            return
        changed = self._without_members(served, group, [message.member], died=False)
        self._settle(conn, session, served, _last(changed), message.request)

    def _without_members(
        self, served: ServedPartition, group: Group, leaving: list[int], *, died: bool
    ) -> Changed | RostraError:
        """Whoever dies may have died of the record it had in hand: that counts as a try."""
        entries: list[GroupEntry] = [MemberLeft(group.settings.name, member, died) for member in leaving]
        members = {member: joined for member, joined in group.members.items() if member not in leaving}
        held = [key for key, part in group.parts.items() if part.holder in leaving]
        parts = {**group.parts, **_free(group, held, tries=1 if died else 0)}
        changed = self._change(served, group, entries, members, parts)
        if isinstance(changed, RostraError):
            return changed
        for member in leaving:
            seated = (group.settings.name, member)
            conn = self._seats.leave(seated)
            if conn is not None and died:
                self._end(conn, seated, NotAMember(*seated))
        self._tell(served, group, changed)
        return changed

    # --- without members ---

    def _describe(self, conn: Conn, session: Session, served: ServedPartition, message: DescribeGroup) -> None:
        group = served.books.groups.get(message.name)
        if group is None:
            self._broker.refuse(conn, message.request, UnknownGroup(message.name))
        else:
            shown = group_views.described(self._broker.catalogue, group, message)
            self._show(conn, session, served, shown, message.request)

    def _idle(self, served: ServedPartition, name: str) -> Group | RostraError:
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
            positions = {PartKey(one.topic, one.partition): one for one in message.positions}
            bound = self._broker.settings.parts_per_group_max
            if len(positions.keys() | group.parts.keys()) > bound:
                last = LimitExceeded("parts_per_group_max", bound)
            else:
                rows = tuple((*key, one.offset, one.tries) for key, one in sorted(positions.items()))
                last = self._broker.ordering.order(served, [PositionsMoved(message.name, rows)])
        self._settle(conn, session, served, last, message.request)

    def _delete(self, conn: Conn, session: Session, served: ServedPartition, message: DeleteGroup) -> None:
        group = self._idle(served, message.name)
        last = (
            group
            if isinstance(group, RostraError)
            else self._broker.ordering.order(served, [GroupForgotten(message.name)])
        )
        self._settle(conn, session, served, last, message.request)

    # --- owning and losing partitions ---

    def serving(self, served: ServedPartition) -> None:
        """The fabric said who owns the partition, if it is one of `_groups`."""
        if served.topic != GROUPS_TOPIC:
            return
        if not served.owner:
            if self._owned.pop(served.partition, None) is not None:
                self._lost(served, self._broker.placement.not_owner(served))
        elif served.partition not in self._owned:
            self._owned[served.partition] = False
            self.follow(served)

    def follow(self, served: ServedPartition) -> None:
        """The book is not what this owner made of it: it was another's until now, or its end was cut."""
        if served.partition not in self._owned:
            return
        now_us = self._broker.now.mono_us
        for name, group in sorted(served.books.groups.groups.items()):
            if not group.members:
                continue
            for member, joined in sorted(group.members.items()):
                self._seats.expect((name, member), now_us)
                self._leases.look_at((name, member), now_us + joined.lease_ms * 1000)
            self._interest.set(name, patterns_of(group.members.values()))
            self._soil(name)
        self._set_timer()

    def _lost(self, served: ServedPartition, error: RostraError) -> None:
        """Members go on at the next coordinator, which knows them."""
        known = self._broker.catalogue.named(GROUPS_TOPIC)
        for seated in list(self._seats.by_member):
            if known is None or place_of(known, seated[0]) is served:
                conn = self._seats.leave(seated)
                self._interest.set(seated[0], ())
                if conn is not None:
                    self._end(conn, seated, error)

    def lose(self, conn: Conn) -> None:
        self._seats.lose(conn)

    # --- topics and time ---

    def topic_changed(self, topic: str) -> None:
        """It came or went."""
        for name in self._interest.match(topic):
            self._soil(name)
        self._set_timer()

    def _soil(self, name: str) -> None:
        if not self._dirty:
            self._dirty_us = self._broker.now.mono_us + TOPICS_TOGETHER_US
        self._dirty[name] = None

    def _set_timer(self) -> None:
        times = [self._leases.next_us]
        if self._dirty:
            times.append(self._dirty_us)
        if self._confirming is None and not all(self._owned.values()):
            times.append(max(self._confirm_us, self._broker.now.mono_us))
        at_us = min((time for time in times if time is not None), default=None)
        if at_us is not None and (self._timer_us is None or at_us < self._timer_us):
            self._timer_us = at_us
            self._broker.out.append(SetTimer(GROUPS_TIMER, at_us))

    def timer(self) -> None:
        now_us = self._broker.now.mono_us
        late_us = now_us - (self._timer_us or now_us)
        self._timer_us = None
        if self._confirming is None and now_us >= self._confirm_us and not all(self._owned.values()):
            self._confirm()
        if self._dirty and now_us >= self._dirty_us:
            self._clean()
        self._judge(now_us, late_us if late_us > LATE_US else 0)
        self._set_timer()

    def _clean(self) -> None:
        dirty, self._dirty = self._dirty, {}
        refused = False
        for name in dirty:
            served, group = self._found(name)
            if served is None or group is None or not group.members:
                self._interest.set(name, ())
            elif not self._owned[served.partition]:
                self._soil(name)
            else:
                changed = self._change(served, group, [], group.members, group.parts)
                if isinstance(changed, RostraError):
                    refused = True
                    self._soil(name)
                else:
                    self._tell(served, group, changed)
        if refused:
            self._dirty_us = self._broker.now.mono_us + LATE_US

    def _found(self, name: str) -> tuple[ServedPartition | None, Group | None]:
        known = self._broker.catalogue.named(GROUPS_TOPIC)
        served = place_of(known, name) if known is not None else None
        if served is None or served.partition not in self._owned:
            return None, None
        return served, served.books.groups.get(name)

    def _judge(self, now_us: int, late_us: int) -> None:
        """Whose lease has ended? Whoever was heard meanwhile is looked at again when that could be so."""
        dead: dict[str, list[int]] = {}
        for seated in self._leases.due(now_us):
            name, member = seated
            served, group = self._found(name)
            joined = group.members.get(member) if group is not None else None
            if served is None or joined is None:
                self._seats.leave(seated)
                continue
            until_us = self._seats.heard_us(seated) + joined.lease_ms * 1000 + late_us
            if until_us <= now_us and self._owned[served.partition]:
                dead.setdefault(name, []).append(member)
                # Should it not be logged after all, it is found here again.
                until_us = now_us + joined.lease_ms * 1000
            self._leases.look_at(seated, max(until_us, now_us + 1))
        for name, members in dead.items():
            served, group = self._found(name)
            if served is not None and group is not None:
                self._without_members(served, group, members, died=True)


def _malformed(message: JoinGroup) -> RostraError | None:
    try:
        check_topic_name(message.name)
    except InvalidTopicName as error:
        return InvalidGroupName(message.name, error.reason)
    try:
        for pattern in message.patterns:
            Pattern.parse(pattern)
        if message.dead_letter:
            check_topic_name(message.dead_letter)
    except UsageError as error:
        return error
    return None


def _free(group: Group, keys: Iterable[PartKey], tries: int = 0) -> dict[PartKey, Part]:
    parts = {key: group.parts[key] for key in keys}
    return {key: Part(0, 0, 0, part.start, part.value, part.tries + tries) for key, part in parts.items()}


def _last(changed: Changed | RostraError) -> int | RostraError:
    return changed if isinstance(changed, RostraError) else changed.last
