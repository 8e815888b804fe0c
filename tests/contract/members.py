"""Members of a named subscription, made of messages, and a tally of what they handle.

They read no records: whoever holds a part handles its offsets one after the other, from where it was told to begin, and
acknowledges them. So a gap in what is handled is a record lost, and an offset handled after it was acknowledged is one
delivered again.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from rostra.errors import RostraError, from_wire
from rostra.wire.groups import (
    Assignment,
    DescribeGroup,
    FindGroup,
    GroupDescribed,
    GroupEnded,
    GroupJoined,
    GroupPart,
    GroupPlace,
    JoinGroup,
    LeaveGroup,
    MemberHeartbeat,
    MovePositions,
    Position,
    Released,
)
from rostra.wire.messages import Agreed, ClientMessage, Failed, NodeMessage
from tests.contract.facade import Cluster
from tests.contract.wires import Wire

NAME = "billing"
LEASE_MS = 1_000
AT_ONCE = 3
"""Offsets that a member handles before it acknowledges them."""
SILENCE_US = 800_000
"""After so long without a word the member looks for its coordinator anew."""
PAUSE_US = 50_000

M = TypeVar("M", bound=NodeMessage)
PartKey = tuple[int, int]


class Handled:
    """What all members of a name handled, in the order in which they did."""

    def __init__(self) -> None:
        self.up_to: dict[PartKey, int] = {}
        """The first offset that nobody has handled."""
        self.acknowledged: dict[PartKey, int] = {}

    def begin(self, part: PartKey, start: str, offset: int) -> int:
        if start == "latest":
            # Somebody has published meanwhile.
            offset = self.up_to.get(part, 0) + 1
        assert offset <= self.up_to.get(part, 0), f"{part} goes on at {offset}: what is before that was lost"
        assert offset >= self.acknowledged.get(part, 0), f"{part} goes on at {offset}, which was acknowledged"
        return offset

    def handle(self, part: PartKey, offset: int) -> None:
        assert offset <= self.up_to.get(part, 0)
        self.up_to[part] = max(self.up_to.get(part, 0), offset + 1)

    def acknowledge(self, part: PartKey, offset: int) -> None:
        self.acknowledged[part] = max(self.acknowledged.get(part, 0), offset)


class Member:
    """Acts only when it is told to: one that is not told any more is dead, and has said nothing."""

    def __init__(
        self, cluster: Cluster, member: int, handled: Handled, *patterns: str, lease_ms: int = LEASE_MS
    ) -> None:
        self.member = member
        self.parts: dict[PartKey, int] = {}
        """What it holds, with the first offset that it has not handled."""
        self._since: dict[PartKey, int] = {}
        self.is_member = False
        self.left = False
        self.refused: list[RostraError] = []
        self.generation = 0
        self._cluster = cluster
        self._handled = handled
        self._patterns = patterns
        self._lease_ms = lease_ms
        self._told: list[GroupPart] = []
        self._moving: dict[int, dict[PartKey, int]] = {}
        self._farewell = -1
        self._is_joined = False
        self._request = 0
        self._turn = member
        self._wire: Wire | None = None
        self._heard_us = 0
        self._beat_us = 0
        self._seek_us = 0

    def act(self) -> None:
        now_us = self._cluster.now_us
        if self._wire is None or self._wire.is_lost or now_us - self._heard_us > SILENCE_US:
            if now_us >= self._seek_us:
                self._seek(now_us)
            return
        for message in self._wire.take():
            self._heard_us = now_us
            self._hear(message)
            if self._wire is None:
                return
        if self.is_member:
            self._work()
            if now_us >= self._beat_us:
                self._beat_us = now_us + self._lease_ms * 250
                self._say(MemberHeartbeat(self._next(), NAME, self.member, self.generation))

    def die(self) -> None:
        """Without a word: its connection ends, and that is all that anybody hears."""
        if self._wire is not None:
            self._wire.close()
        self._wire, self.is_member = None, False

    def insist(self) -> int:
        """Says that it has handled only the first record of each part, without having listened to anybody."""
        return self._acknowledge(dict.fromkeys(self.parts, 1))

    def was_answered(self, request: int) -> bool:
        """Or never will be, because nobody is there any more to hear it."""
        if self._wire is None or self._wire.is_lost:
            return True
        answers = [heard for heard in self._wire.heard if isinstance(heard, Agreed | Failed)]
        return any(answer.request == request for answer in answers)

    def leave(self) -> None:
        """Acknowledges what it has handled, and goes."""
        self._acknowledge(self.parts)
        self._say(LeaveGroup(self._next(), NAME, self.member))
        self.left = True

    # --- finding the coordinator ---

    def _seek(self, now_us: int) -> None:
        self._lose()
        self._seek_us = now_us + PAUSE_US
        self._heard_us = now_us
        nodes = self._cluster.sharing
        self._turn += 1
        self._wire = self._cluster.wire(nodes[self._turn % len(nodes)])
        self._say(FindGroup(self._next(), NAME))

    def _lose(self) -> None:
        """What it holds it may hold still; it goes on when it is told so."""
        if self._wire is not None:
            self._wire.close()
        self._wire, self.is_member, self._is_joined = None, False, False
        self._told = []
        self._moving.clear()

    def _found(self, place: GroupPlace) -> None:
        nodes = [node for node in self._cluster.running if self._cluster.address(node) == place.address]
        if not place.known or (place.address and not nodes):
            self._lose()
            return
        if place.address:
            assert self._wire is not None
            self._wire.close()
            self._wire = self._cluster.wire(nodes[0])
        self._say(JoinGroup(self._next(), NAME, self.member, self._patterns, self._lease_ms))

    # --- what it hears ---

    def _hear(self, message: NodeMessage) -> None:
        match message:
            case GroupPlace():
                self._found(message)
            case GroupJoined():
                self._is_joined = True
            case Assignment():
                self._told += message.parts
                if not message.more:
                    self._assigned(message)
            case Agreed():
                for part, offset in self._moving.pop(message.request, {}).items():
                    self._handled.acknowledge(part, offset)
            case Failed() if message.request == self._farewell:
                # It was taken for dead, and the part is another's: whoever has it hands out again what is not moved.
                self._moving.pop(message.request, None)
            case Failed():
                self.refused.append(from_wire(message.code, message.carried))
                self._lose()
            case GroupEnded():
                self.refused.append(from_wire(message.code, message.carried))
                self._lose()
            case _:
                pass

    def _assigned(self, message: Assignment) -> None:
        told = {(part.topic, part.partition): part for part in self._told}
        self._told = []
        if not self._is_joined:
            return
        self.is_member, self.generation = True, message.generation
        self._farewell = self._acknowledge({part: self.parts[part] for part in self.parts if part not in told})
        held = {part: self.parts[part] for part in told if self._since.get(part) == told[part].since}
        for part, begin in told.items():
            if part not in held:
                held[part] = self._handled.begin(part, begin.start, begin.value)
        self.parts = held
        self._since = {part: begin.since for part, begin in told.items()}
        self._say(Released(self._next(), NAME, self.member, message.generation))

    # --- what it does ---

    def _work(self) -> None:
        if self._moving or not self.parts:
            return
        for part in self.parts:
            for _ in range(AT_ONCE):
                self._handled.handle(part, self.parts[part])
                self.parts[part] += 1
        self._acknowledge(self.parts)

    def _acknowledge(self, parts: dict[PartKey, int]) -> int:
        """The number of the request."""
        if not parts:
            return -1
        request = self._next()
        self._moving[request] = dict(parts)
        positions = tuple(Position(*part, offset) for part, offset in sorted(parts.items()))
        self._say(MovePositions(request, NAME, self.member, self.generation, positions))
        return request

    def _say(self, message: ClientMessage) -> None:
        if self._wire is not None:
            self._wire.say(message)

    def _next(self) -> int:
        self._request += 1
        return self._request


class People:
    """Members of one name that all act while anything is waited for."""

    def __init__(self, cluster: Cluster, *patterns: str) -> None:
        self.handled = Handled()
        self.living: list[Member] = []
        self._cluster = cluster
        self._patterns = patterns
        self._born = 0

    def join(self, *, lease_ms: int = LEASE_MS) -> Member:
        self._born += 1
        member = Member(self._cluster, self._born, self.handled, *self._patterns, lease_ms=lease_ms)
        self.living.append(member)
        return member

    def kill(self, member: Member) -> None:
        self.living.remove(member)
        member.die()

    def act(self) -> None:
        for member in self.living:
            member.act()

    def await_shared(self, count: int) -> None:
        """Until these share so many parts evenly, each part with one of them."""

        def shared() -> bool:
            self.act()
            held = [part for member in self.living for part in member.parts if member.is_member]
            sizes = [len(member.parts) for member in self.living]
            return len(held) == len(set(held)) == count and max(sizes) - min(sizes) <= 1

        self._cluster.run_until(shared, f"{count} parts to be shared by {len(self.living)} members")

    def await_progress(self, offsets: int = 20) -> None:
        """Until every part is acknowledged that much further."""
        goal = {part: offset + offsets for part, offset in self.handled.up_to.items()}

        def further() -> bool:
            self.act()
            return all(self.handled.acknowledged.get(part, 0) >= offset for part, offset in goal.items())

        self._cluster.run_until(further, f"everything to be acknowledged {offsets} further")


def ask_coordinator(cluster: Cluster, message: ClientMessage, kind: type[M]) -> M | RostraError:
    """The coordinator's answer, wherever that is; asked again while nobody is known to be it."""
    answers: list[M | RostraError] = []
    wires: list[Wire] = []
    turn = 0

    def answered() -> bool:
        nonlocal turn
        if not wires or wires[0].is_lost or cluster.now_us - asked_us[0] > SILENCE_US:
            turn += 1
            _start(cluster, wires, asked_us, turn)
        for heard in wires[0].take():
            if isinstance(heard, GroupPlace):
                _go(cluster, wires, heard, message)
            elif isinstance(heard, Failed):
                answers.append(from_wire(heard.code, heard.carried))
            elif isinstance(heard, kind):
                answers.append(heard)
        if answers and isinstance(answers[0], RostraError) and type(answers[0]).__name__ in ("Moved", "Unavailable"):
            answers.clear()
            wires[0].close()
        return bool(answers)

    asked_us = [0]
    cluster.run_until(answered, f"an answer to {message}")
    wires[0].close()
    return answers[0]


def _start(cluster: Cluster, wires: list[Wire], asked_us: list[int], turn: int) -> None:
    for wire in wires:
        wire.close()
    wires[:] = [cluster.wire(cluster.sharing[turn % len(cluster.sharing)])]
    wires[0].say(FindGroup(1, NAME))
    asked_us[0] = cluster.now_us


def _go(cluster: Cluster, wires: list[Wire], place: GroupPlace, message: ClientMessage) -> None:
    nodes = [node for node in cluster.running if cluster.address(node) == place.address]
    if not place.known or (place.address and not nodes):
        wires[0].close()
        return
    if place.address:
        wires[0].close()
        wires[0] = cluster.wire(nodes[0])
    wires[0].say(message)


def described(cluster: Cluster) -> GroupDescribed:
    found = ask_coordinator(cluster, DescribeGroup(2, NAME), GroupDescribed)
    assert isinstance(found, GroupDescribed), found
    return msgspec.structs.replace(found, request=0)


def coordinator(cluster: Cluster) -> int:
    """The node that it is."""
    wire = cluster.wire(cluster.sharing[0])
    wire.say(FindGroup(1, NAME))
    found: list[GroupPlace] = []

    def known() -> bool:
        found.extend(message for message in wire.take() if isinstance(message, GroupPlace))
        return bool(found)

    cluster.run_until(known, "the place of the coordinator")
    wire.close()
    return cluster.owner("_groups", found[0].partition)
