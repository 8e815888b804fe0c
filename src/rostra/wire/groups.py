"""Messages about named subscriptions: members of one name share the partitions of the topics that it matches.

The *coordinator* of a name is the owner of its partition of the internal topic `_groups`; `FindCoordinator` says where
that is. Everything but `FindCoordinator` goes to the coordinator; another node answers `Moved` or `Unavailable`. All
that changes is in that partition's log, and answered when it is committed.

A member keeps its id for as long as it lives, over any number of connections. It says `JoinGroup` on each new one: if
it is still a member, it continues with its assignment. `MemberAssignment` carries the whole assignment whenever it
changes. A partition moves in two steps: the old member gets a `MemberAssignment` without it, stops handling it, commits
its position and sends `Released`; only then, or when its lease has ended, the new holder gets one with it. So a part is
never at two members, unless one of them is taken for dead, and then its positions are refused.
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
"""As of any `Subscribe`."""
LeaseMs = Annotated[int, Meta(ge=LEASE_MS_MIN, le=LEASE_MS_MAX)]
Patterns = Annotated[tuple[Text, ...], Meta(max_length=PATTERNS_MAX)]
"""Topic names, or patterns of them."""
ClientName = Annotated[str, Meta(max_length=64)]


# --- values inside messages ----------------------------------------------------------------------


class PartitionPosition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One partition of a topic, and where a named subscription goes on in it.

    `start` and `value` are those of a `Subscribe`: `offset` and the first offset that is not acknowledged, once the
    position was moved for the first time; before that, where the subscription begins. Whoever begins there moves the
    position to where it was let in at once, so that nobody begins anew after it.
    `tries` says how often the record there was handed out to no avail. Who finds none there yet moves the position to
    the same offset with 0 tries: members that died before it was written did not fail at it.
    `since` is the generation in which its holder got it.
    """

    topic: Id
    name: Text
    partition: Index
    start: GroupStart
    value: Count
    tries: Index = 0
    since: Count = 0


class HeldPartition(PartitionPosition, frozen=True, array_like=True, gc=False):
    """`holder` is the member that has it, 0 if nobody has."""

    holder: Id = 0


class Position(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`offset` is the first that is not acknowledged; `tries` as in `PartitionPosition`."""

    topic: Id
    partition: Index
    offset: Count
    tries: Index = 0


class GroupMember(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`parts` is how many it holds."""

    member: Id
    client: ClientName
    lease_ms: LeaseMs
    parts: Index


class GroupSummary(msgspec.Struct, frozen=True, array_like=True, gc=False):
    name: Text
    generation: Count
    members: Index
    parts: Index


Positions = Annotated[tuple[Position, ...], Meta(max_length=PARTITIONS_PER_PAGE_MAX)]


# --- from clients --------------------------------------------------------------------------------


class FindCoordinator(Message, frozen=True, array_like=True):
    """Where is the coordinator of this named subscription, or of this sink's query? Answered by any node."""

    kind: ClassVar[int] = 19
    request: Request
    name: Text
    role: CoordinatorRole = "group"


class JoinGroup(Message, frozen=True, array_like=True):
    """Makes the named subscription if there is none. Said again by a member on every new connection.

    `member` is drawn by the client at random. No `patterns`: those that were joined with last, which the name keeps.
    `start` and `value` are for topics that are there when a pattern that matches them is first given; those made later
    begin at earliest. `tries_max` (0: no bound) and `dead_letter` (empty: none) are kept for all members to follow.
    The member is taken for dead when nothing was heard on its connection for `lease_ms`.

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
    """Answers every `MemberAssignment`: the member no longer handles what is not in the one of this generation, and its
    positions were committed before. The coordinator gives it away on that word.
    """

    kind: ClassVar[int] = 21
    request: Request
    name: Text
    member: Id
    generation: Count


class CommitPositions(Message, frozen=True, array_like=True):
    """`Agreed` when it is committed. All or nothing: `StaleGeneration` if the member does not hold one of the parts, or
    held it at an earlier time; `generation` is that of the last `MemberAssignment` that it heard.
    """

    kind: ClassVar[int] = 22
    request: Request
    name: Text
    member: Id
    generation: Count
    positions: Positions


class MemberHeartbeat(Message, frozen=True, array_like=True):
    """The member lives; anything else heard on its connection says so as well.

    `Agreed` tells the client that it still is a member; `NotAMember` that it was taken for dead. Without an answer for
    as long as its lease it must take itself for dead.
    """

    kind: ClassVar[int] = 23
    request: Request
    name: Text
    member: Id
    generation: Count


class LeaveGroup(Message, frozen=True, array_like=True):
    """The member goes, and has moved its positions before. The name and its positions stay."""

    kind: ClassVar[int] = 24
    request: Request
    name: Text
    member: Id


class ListGroups(Message, frozen=True, array_like=True):
    """The names in one partition of `_groups` behind `after`, told by its owner: `Locate` says where that is."""

    kind: ClassVar[int] = 25
    request: Request
    partition: Index
    after: Text = ""
    limit: Annotated[int, Meta(ge=1, le=GROUPS_PER_PAGE_MAX)] = GROUPS_PER_PAGE_MAX


class DescribeGroup(Message, frozen=True, array_like=True):
    """With the parts behind `after_topic` and `after_partition`, or from the first on."""

    kind: ClassVar[int] = 26
    request: Request
    name: Text
    after_topic: Id = 0
    after_partition: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1
    limit: Annotated[int, Meta(ge=1, le=PARTITIONS_PER_PAGE_MAX)] = PARTITIONS_PER_PAGE_MAX


class ResetGroup(Message, frozen=True, array_like=True):
    """Sets positions, whoever held them; `GroupBusy` while the name has members. `Agreed` when it is committed.

    Parts that are not named keep their position. One message is all or nothing; several are not.
    """

    kind: ClassVar[int] = 27
    request: Request
    name: Text
    positions: Positions


class DeleteGroup(Message, frozen=True, array_like=True):
    """Forgets the name and its positions; `GroupBusy` while it has members. `Agreed` when it is committed."""

    kind: ClassVar[int] = 28
    request: Request
    name: Text


# --- from nodes ----------------------------------------------------------------------------------


class CoordinatorLocation(Message, frozen=True, array_like=True):
    """The name's partition of `_groups`, and where its owner is. An empty address means: the node that answers.

    `known` is false while nobody is known to own it: ask again, or elsewhere.
    """

    kind: ClassVar[int] = 48
    request: Request
    topic: Id
    partition: Index
    address: Text
    epoch: Count
    known: bool = True


class GroupJoined(Message, frozen=True, array_like=True):
    """The client is a member. `MemberAssignment` follows at once, empty or not; until then it may handle nothing.

    The rest is what the name is set to.
    """

    kind: ClassVar[int] = 49
    request: Request
    generation: Count
    patterns: Patterns = ()
    tries_max: Index = 0
    dead_letter: Text = ""


class MemberAssignment(Message, frozen=True, array_like=True):
    """The whole set of parts that the member holds now. A large set comes in several, in a row: `more` says so.

    A part that the member holds already, `since` the same generation, goes on where it is; any other begins where the
    part says: it may have been another's meanwhile, if this member was taken for dead.
    """

    kind: ClassVar[int] = 50
    name: Text
    member: Id
    generation: Count
    parts: Annotated[tuple[PartitionPosition, ...], Meta(max_length=PARTITIONS_PER_PAGE_MAX)]
    more: bool = False


class GroupPage(Message, frozen=True, array_like=True):
    """Names in order; `more` says that asking with `after` = the last name gives further ones."""

    kind: ClassVar[int] = 51
    request: Request
    groups: Annotated[tuple[GroupSummary, ...], Meta(max_length=GROUPS_PER_PAGE_MAX)]
    more: bool


class GroupDescribed(Message, frozen=True, array_like=True):
    """All members, and a page of parts by topic id and partition; `more` says that there are further ones."""

    kind: ClassVar[int] = 52
    request: Request
    name: Text
    generation: Count
    patterns: Patterns
    tries_max: Index
    dead_letter: Text
    members: Annotated[tuple[GroupMember, ...], Meta(max_length=MEMBERS_MAX)]
    parts: Annotated[tuple[HeldPartition, ...], Meta(max_length=PARTITIONS_PER_PAGE_MAX)]
    more: bool


class GroupEnded(Message, frozen=True, array_like=True):
    """The member hears no more of this name over this connection, with the reason as an error.

    `Moved` or `Unavailable`: it is a member still, and joins again at the coordinator within its lease. `NotAMember`:
    its lease has ended, or another connection joined under its id.
    """

    kind: ClassVar[int] = 57
    name: Text
    member: Id
    code: Text
    carried: Carried
