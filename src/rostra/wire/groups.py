"""Messages about consumer groups (named subscriptions): members of a group share the partitions of matching topics.

The *coordinator* of a group is the owner of its partition of the internal topic `_groups`, which `FindCoordinator`
returns. All other requests go to the coordinator; another node answers `Moved` or `Unavailable`. Changes are entries of
that partition's log, and are answered after the commit.

A member keeps its id across connections. It sends `JoinGroup` on each new one: if it is still a member, it continues
with its assignment. `MemberAssignment` carries the whole assignment whenever it changes. A partition moves in two
steps: the old member gets a `MemberAssignment` without it, stops handling it, commits its position and sends
`Released`; only then, or when the old member's lease has ended, the new member gets an assignment with it. So no two
members hold a partition, unless the lease of one has ended, and then its position commits are refused.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from rostra.wire.fields import Carried, Count, Id, Index, Message, Request, Text

GROUPS_PER_PAGE_MAX = 1000
PARTITIONS_PER_PAGE_MAX = 1000
MEMBERS_MAX = 1000
PATTERNS_MAX = 64
LEASE_MS_MIN = 100
LEASE_MS_MAX = 86_400_000

CoordinatorRole = Literal["group", "sink"]
GroupStart = Literal["earliest", "latest", "offset", "last", "time"]
"""As in `Subscribe`."""
LeaseMs = Annotated[int, Meta(ge=LEASE_MS_MIN, le=LEASE_MS_MAX)]
Patterns = Annotated[tuple[Text, ...], Meta(max_length=PATTERNS_MAX)]
"""Topic names or patterns."""
ClientName = Annotated[str, Meta(max_length=64)]


# --- values inside messages ----------------------------------------------------------------------


class PartitionPosition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One partition of a topic, and the position of a group in it.

    `start` and `value` are as in `Subscribe`. After the first position commit they are `offset` and the first offset
    that is not acknowledged; before that, where the group begins. The first member commits the offset at which its
    subscription began at once, so that the next member does not begin anew.
    `tries` counts failed deliveries of the record at the position. A member that finds no record there yet commits the
    same offset with 0 tries: members that died before the record was written did not fail at it.
    `since` is the generation in which its holder was assigned the partition.
    """

    topic: Id
    name: Text
    partition: Index
    start: GroupStart
    value: Count
    tries: Index = 0
    since: Count = 0


class HeldPartition(PartitionPosition, frozen=True, array_like=True, gc=False):
    """A partition with the member that holds it; `holder` is 0 if none does."""

    holder: Id = 0


class Position(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A position to commit: `offset` is the first that is not acknowledged; `tries` as in `PartitionPosition`."""

    topic: Id
    partition: Index
    offset: Count
    tries: Index = 0


class GroupMember(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A member; `partitions` is how many it holds."""

    member: Id
    client: ClientName
    lease_ms: LeaseMs
    partitions: Index


class GroupSummary(msgspec.Struct, frozen=True, array_like=True, gc=False):
    name: Text
    generation: Count
    members: Index
    partitions: Index


Positions = Annotated[tuple[Position, ...], Meta(max_length=PARTITIONS_PER_PAGE_MAX)]


# --- from clients --------------------------------------------------------------------------------


class FindCoordinator(Message, frozen=True, array_like=True):
    """Asks any node for the coordinator of this group, or of this query of a sink."""

    kind: ClassVar[int] = 19
    request: Request
    name: Text
    role: CoordinatorRole = "group"


class JoinGroup(Message, frozen=True, array_like=True):
    """Adds a member, and creates the group if there is none. A member repeats it on every new connection.

    `member` is a random number that the client chose. Empty `patterns` mean those of the group, which outlive its
    members. `start` and `value` apply to topics that exist when a pattern that matches them is first given; topics
    created later begin at earliest. `tries_max` (0: no limit) and `dead_letter` (empty: none) apply to all members.
    The member's lease ends when nothing arrives on its connection for `lease_ms`.

    While there are other members, `patterns`, `tries_max` and `dead_letter` must be those of the group, unless `alter`
    is set: then they replace them. Without `patterns` the member takes all three as they are.
    """

    kind: ClassVar[int] = 20
    request: Request
    name: Text
    member: Id
    patterns: Patterns
    lease_ms: LeaseMs
    start: GroupStart = "earliest"
    value: Count = 0
    tries_max: Index = 0
    dead_letter: Text = ""
    client: ClientName = ""
    alter: bool = False


class Released(Message, frozen=True, array_like=True):
    """Answers every `MemberAssignment`: the member has committed its positions and no longer handles partitions that
    are not in the assignment of this generation. The coordinator may then assign them to other members.
    """

    kind: ClassVar[int] = 21
    request: Request
    name: Text
    member: Id
    generation: Count


class CommitPositions(Message, frozen=True, array_like=True):
    """Commits positions. `Agreed` after the commit.

    All or nothing: `StaleGeneration` if the member does not hold one of the partitions in this generation, which is
    that of the last `MemberAssignment` it received.
    """

    kind: ClassVar[int] = 22
    request: Request
    name: Text
    member: Id
    generation: Count
    positions: Positions


class MemberHeartbeat(Message, frozen=True, array_like=True):
    """Renews the member's lease, as every message on its connection does.

    `Agreed`: it still is a member. `NotAMember`: its lease has ended. A member without an answer for the length of its
    lease must assume that it has ended.
    """

    kind: ClassVar[int] = 23
    request: Request
    name: Text
    member: Id
    generation: Count


class LeaveGroup(Message, frozen=True, array_like=True):
    """Removes the member, which has committed its positions before. The group and its positions stay."""

    kind: ClassVar[int] = 24
    request: Request
    name: Text
    member: Id


class ListGroups(Message, frozen=True, array_like=True):
    """Asks the owner of a partition of `_groups` for the groups in it after the name `after`."""

    kind: ClassVar[int] = 25
    request: Request
    partition: Index
    after: Text = ""
    limit: Annotated[int, Meta(ge=1, le=GROUPS_PER_PAGE_MAX)] = GROUPS_PER_PAGE_MAX


class DescribeGroup(Message, frozen=True, array_like=True):
    """Asks for a group with a page of its partitions: those after `after_topic` and `after_partition`."""

    kind: ClassVar[int] = 26
    request: Request
    name: Text
    after_topic: Id = 0
    after_partition: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1
    limit: Annotated[int, Meta(ge=1, le=PARTITIONS_PER_PAGE_MAX)] = PARTITIONS_PER_PAGE_MAX


class ResetGroup(Message, frozen=True, array_like=True):
    """Sets positions; `GroupBusy` while the group has members. `Agreed` after the commit.

    Other partitions keep their position. One message is all or nothing; several are not.
    """

    kind: ClassVar[int] = 27
    request: Request
    name: Text
    positions: Positions


class DeleteGroup(Message, frozen=True, array_like=True):
    """Deletes the group and its positions; `GroupBusy` while it has members. `Agreed` after the commit."""

    kind: ClassVar[int] = 28
    request: Request
    name: Text


# --- from nodes ----------------------------------------------------------------------------------


class CoordinatorLocation(Message, frozen=True, array_like=True):
    """The group's partition of `_groups` and the address of its owner. An empty address means the node that answers.

    `known` is false while no owner is known: the client asks again, or another node.
    """

    kind: ClassVar[int] = 48
    request: Request
    topic: Id
    partition: Index
    address: Text
    epoch: Count
    known: bool = True


class GroupJoined(Message, frozen=True, array_like=True):
    """Confirms the membership. `MemberAssignment` follows at once, empty or not; until then the member handles nothing.

    The other fields are the settings of the group.
    """

    kind: ClassVar[int] = 49
    request: Request
    generation: Count
    patterns: Patterns = ()
    tries_max: Index = 0
    dead_letter: Text = ""


class MemberAssignment(Message, frozen=True, array_like=True):
    """All partitions that the member holds now. A large set is sent in several messages; `more`: another one follows.

    A partition that the member holds already, `since` the same generation, continues where it is. Any other begins at
    the position in this message: another member may have held it after this member's lease had ended.
    """

    kind: ClassVar[int] = 50
    name: Text
    member: Id
    generation: Count
    partitions: Annotated[tuple[PartitionPosition, ...], Meta(max_length=PARTITIONS_PER_PAGE_MAX)]
    more: bool = False


class GroupPage(Message, frozen=True, array_like=True):
    """A page of groups by name; `more`: a request with `after` = the last name returns further ones."""

    kind: ClassVar[int] = 51
    request: Request
    groups: Annotated[tuple[GroupSummary, ...], Meta(max_length=GROUPS_PER_PAGE_MAX)]
    more: bool


class GroupDescribed(Message, frozen=True, array_like=True):
    """All members, and a page of partitions by topic id and number; `more`: there are further ones."""

    kind: ClassVar[int] = 52
    request: Request
    name: Text
    generation: Count
    patterns: Patterns
    tries_max: Index
    dead_letter: Text
    members: Annotated[tuple[GroupMember, ...], Meta(max_length=MEMBERS_MAX)]
    partitions: Annotated[tuple[HeldPartition, ...], Meta(max_length=PARTITIONS_PER_PAGE_MAX)]
    more: bool


class GroupEnded(Message, frozen=True, array_like=True):
    """Ends the membership on this connection; the error is the reason.

    `Moved` or `Unavailable`: it still is a member, and joins again at the coordinator within its lease. `NotAMember`:
    its lease has ended, or another connection joined with its id.
    """

    kind: ClassVar[int] = 57
    name: Text
    member: Id
    code: Text
    carried: Carried
