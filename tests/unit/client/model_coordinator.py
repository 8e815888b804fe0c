"""A model of the group coordinator, as far as a member can see it. The test controls the assignment."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from rostra.errors import GroupBusy, NotAMember, StaleGeneration, UnknownGroup
from rostra.wire.groups import (
    CommitPositions,
    CoordinatorLocation,
    DeleteGroup,
    DescribeGroup,
    FindCoordinator,
    GroupDescribed,
    GroupEnded,
    GroupJoined,
    GroupMember,
    GroupPage,
    GroupStart,
    GroupSummary,
    HeldPartition,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    MemberAssignment,
    MemberHeartbeat,
    PartitionPosition,
    Position,
    Released,
    ResetGroup,
)
from rostra.wire.messages import Agreed, NodeMessage, Topic

GroupMessage = (
    FindCoordinator
    | JoinGroup
    | Released
    | CommitPositions
    | MemberHeartbeat
    | LeaveGroup
    | ListGroups
    | DescribeGroup
    | ResetGroup
    | DeleteGroup
)
Place = tuple[int, int]
GROUPS_TOPIC = 1 << 40
PARTITIONS = 2


class ModelGroup:
    def __init__(self, name: str) -> None:
        self.name = name
        self.generation = 0
        self.patterns: tuple[str, ...] = ()
        self.tries_max = 0
        self.dead_letter = ""
        self.start: tuple[GroupStart, int] = ("earliest", 0)
        self.members: dict[int, int] = {}
        """Members and their connections."""
        self.holders: dict[Place, int] = {}
        self.since: dict[Place, tuple[int, int]] = {}
        """The member that each partition was assigned to, and the generation in which that began."""
        self.positions: dict[Place, Position] = {}


class ModelCoordinator:
    """The first member of a group gets all partitions, unless the test assigns them otherwise."""

    def __init__(self, topics: Callable[[], list[Topic]]) -> None:
        self._topics = topics
        self.groups: dict[str, ModelGroup] = {}
        self.due: dict[int, list[NodeMessage]] = {}
        """Pushes that wait, by connection."""
        self.heard: list[GroupMessage] = []
        self.refuse: Exception | None = None

    def lost(self, conn: int) -> None:
        self.due.pop(conn, None)

    def pushes(self, conn: int) -> list[NodeMessage]:
        return self.due.pop(conn, [])

    def answer(self, conn: int, message: GroupMessage) -> list[NodeMessage]:
        self.heard.append(message)
        request = message.request
        if self.refuse is not None:
            raise self.refuse
        match message:
            case FindCoordinator():
                return [CoordinatorLocation(request, GROUPS_TOPIC, len(message.name) % PARTITIONS, "", 1)]
            case JoinGroup():
                return self._join(conn, message)
            case ListGroups():
                names = [name for name in sorted(self.groups) if len(name) % PARTITIONS == message.partition]
                found = [self.groups[name] for name in names if name > message.after]
                shown = tuple(
                    GroupSummary(one.name, one.generation, len(one.members), len(one.holders)) for one in found
                )
                return [GroupPage(request, shown[:1], len(shown) > 1)]
            case CommitPositions():
                group = self._of(message)
                for position in message.positions:
                    if group.holders.get((position.topic, position.partition)) != message.member:
                        raise StaleGeneration(group.name, group.generation)
                group.positions.update({(moved.topic, moved.partition): moved for moved in message.positions})
            case MemberHeartbeat() | Released():
                self._of(message)
            case LeaveGroup():
                self.remove_member(message.name, message.member)
            case DescribeGroup():
                return [self._describe(self._known(message.name), message)]
            case ResetGroup() | DeleteGroup():
                group = self._known(message.name)
                if group.members:
                    raise GroupBusy(group.name, len(group.members))
                if isinstance(message, DeleteGroup):
                    del self.groups[message.name]
                else:
                    group.positions.update({(reset.topic, reset.partition): reset for reset in message.positions})
        return [Agreed(request)]

    def _known(self, name: str) -> ModelGroup:
        if name not in self.groups:
            raise UnknownGroup(name)
        return self.groups[name]

    def _of(self, message: CommitPositions | MemberHeartbeat | Released) -> ModelGroup:
        group = self._known(message.name)
        if message.member not in group.members:
            raise NotAMember(message.name, message.member)
        if message.generation > group.generation:
            raise StaleGeneration(message.name, group.generation)
        return group

    def _join(self, conn: int, message: JoinGroup) -> list[NodeMessage]:
        group = self.groups.setdefault(message.name, ModelGroup(message.name))
        if message.patterns:
            group.patterns, group.start = message.patterns, (message.start, message.value)
            group.tries_max, group.dead_letter = message.tries_max, message.dead_letter
        if message.member not in group.members:
            group.generation += 1
            for topic in self._topics():
                if topic.name in group.patterns:
                    for partition in range(topic.settings.partitions):
                        place = topic.topic, partition
                        group.holders[place] = group.holders.get(place) or message.member
        group.members[message.member] = conn
        joined = GroupJoined(message.request, group.generation, group.patterns, group.tries_max, group.dead_letter)
        return [joined, self.member_assignment(group, message.member)]

    def member_assignment(self, group: ModelGroup, member: int) -> MemberAssignment:
        held = [place for place, holder in group.holders.items() if holder == member]
        return MemberAssignment(group.name, member, group.generation, tuple(self._part(group, place) for place in held))

    def _part(self, group: ModelGroup, place: Place) -> PartitionPosition:
        holder = group.holders[place]
        if group.since.get(place, (-1, 0))[0] != holder:
            group.since[place] = holder, group.generation
        since = group.since[place][1]
        names = {topic.topic: topic.name for topic in self._topics()}
        name = names.get(place[0], "gone")
        position = group.positions.get(place)
        if position is None:
            return PartitionPosition(place[0], name, place[1], *group.start, 0, since)
        return PartitionPosition(place[0], name, place[1], "offset", position.offset, position.tries, since)

    def _describe(self, group: ModelGroup, message: DescribeGroup) -> GroupDescribed:
        members = tuple(
            GroupMember(member, "", 1_000, list(group.holders.values()).count(member)) for member in group.members
        )
        places = sorted(place for place in group.holders if place > (message.after_topic, message.after_partition))
        parts = [self._part(group, place) for place in places]
        held = [
            msgspec.convert((*msgspec.structs.astuple(part), group.holders[place]), HeldPartition)
            for place, part in zip(places, parts, strict=True)
        ]
        rest = (group.patterns, group.tries_max, group.dead_letter, members, tuple(held[:1]), len(held) > 1)
        return GroupDescribed(message.request, group.name, group.generation, *rest)

    # --- what befalls members ------------------------------------------------------------------------

    def assign(self, name: str, holders: dict[Place, int]) -> None:
        """Start a generation with this assignment and send it to every member."""
        group = self.groups[name]
        group.generation += 1
        group.holders = holders
        group.since = {place: held for place, held in group.since.items() if holders.get(place) == held[0]}
        for member, conn in group.members.items():
            self.due.setdefault(conn, []).append(self.member_assignment(group, member))

    def remove_member(self, name: str, member: int) -> None:
        group = self.groups[name]
        if group.members.pop(member, None) is not None:
            group.generation += 1
            group.holders = {place: 0 if held == member else held for place, held in group.holders.items()}
            group.since = {place: held for place, held in group.since.items() if held[0] != member}

    def end_members(self, name: str, error: NotAMember | Exception) -> None:
        """End all memberships at this node with an error."""
        for member, conn in self.groups[name].members.items():
            carried = error.carried() if hasattr(error, "carried") else {}
            self.due.setdefault(conn, []).append(GroupEnded(name, member, type(error).__name__, carried))
