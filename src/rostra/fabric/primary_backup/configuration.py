"""Configurations of a partition, the changes that may be proposed, and what each of them leads to.

A configuration says which node orders a partition and which copies must have a record before it is committed.
Configurations form a sequence: each has the next version and follows from the one before by one `Change`, which an
authority decides. `next_configuration` is that step, the same function at every authority.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Annotated, assert_never

import msgspec
from msgspec import Meta

from rostra.model.ids import ID_MAX, NodeId
from rostra.safeguards import ALL_ON, Safeguard, Without

COPIES_MAX = 64

Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
CopyNode = Annotated[NodeId, Meta(ge=0, le=ID_MAX)]


class Copy(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A copy of the partition on a node. A copy that is begun anew gets a higher number: it is another copy."""

    node: CopyNode
    number: Number

    def __str__(self) -> str:
        return f"{self.node}#{self.number}"


class Configuration(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`primary_epoch` is the version at which the primary last changed or started; it stamps batches and fences
    messages. The version itself serves compare-and-set only.
    """

    version: Number
    primary_epoch: Number
    primary: CopyNode
    members: Annotated[tuple[Copy, ...], Meta(min_length=1, max_length=COPIES_MAX)]
    """In order of rank: the first that is not missing is the heir of a primary that is."""
    width: Annotated[int, Meta(ge=1, le=COPIES_MAX)]
    """The largest number of members so far, at most the topic's replicas."""

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(copy.node for copy in self.members)

    def copy_of(self, node: NodeId) -> Copy | None:
        """The copy of a node that is a member."""
        return next((copy for copy in self.members if copy.node == node), None)

    def __str__(self) -> str:
        members = " ".join(map(str, self.members))
        return f"v{self.version} epoch {self.primary_epoch} primary {self.primary} of {{{members}}} width {self.width}"


def first_configuration(nodes: Collection[NodeId], replicas: int) -> Configuration:
    """A new topic's: the copies are empty, so all of them are members."""
    members = tuple(Copy(node, 1) for node in nodes)
    return Configuration(1, 1, members[0].node, members, min(len(members), replicas))


# --- changes ---------------------------------------------------------------------------------------


class RemovalReason(StrEnum):
    MISSING = "missing"
    """The node is believed dead."""
    SILENT = "silent"
    """It has not acknowledged for long what it was sent."""
    SURPLUS = "surplus"
    """It should no longer have a copy, and every node that should have one is a member."""
    UNFIT = "unfit"
    """Its copy is damaged, is another one than the configuration names, or its disk has failed."""
    OPERATOR = "operator"
    """An operator has removed the node from the cluster, or declared its copies lost."""


KEEPS_MINIMUM = (RemovalReason.MISSING, RemovalReason.SILENT, RemovalReason.SURPLUS)
"""Reasons that take no set below the minimum: the member stays named, and may lead again."""


class NewPrimaryEpoch(msgspec.Struct, frozen=True, array_like=True, tag="start", gc=False):
    """The primary has started, or its log was cut: it orders nothing before it has a new primary epoch. A member that
    starts while the primary is missing takes over."""

    node: CopyNode


class AddMember(msgspec.Struct, frozen=True, array_like=True, tag="add", gc=False):
    """Proposed by the primary only, of a copy that has what may be committed."""

    copy: Copy


class RemoveMember(msgspec.Struct, frozen=True, array_like=True, tag="remove", gc=False):
    node: CopyNode
    reason: RemovalReason
    brokers_left: Annotated[int, Meta(ge=0)] = 0
    """How many brokers the cluster still has, after an operator's removal."""


class ChangePrimary(msgspec.Struct, frozen=True, array_like=True, tag="primary", gc=False):
    """The primary hands over to another member."""

    node: CopyNode


class Unchanged(msgspec.Struct, frozen=True, array_like=True, tag="unchanged", gc=False):
    """Raises the version only: no proposal that expects the version before can be decided any more."""


Change = NewPrimaryEpoch | AddMember | RemoveMember | ChangePrimary | Unchanged


class CopyPolicy(msgspec.Struct, frozen=True):
    """The topic's settings that decide how many copies there are, and how many a commit needs."""

    replicas: int = 3
    min_copies: int = 2


def minimum_members(width: int, policy: CopyPolicy) -> int:
    """With fewer members than this nothing is taken and nothing commits.

    A founder alone has width 1 and works; a set that was larger and shrank waits.
    """
    return min(policy.min_copies, width)


def next_configuration(
    current: Configuration,
    change: Change,
    policy: CopyPolicy,
    missing: Collection[NodeId] = (),
    without: Without = ALL_ON,
) -> Configuration:
    """What a change leads to. A change that is void raises the version all the same, so that the outcome of earlier
    proposals with the same expected version is settled. `missing` are the nodes believed dead."""
    version = current.version + 1
    following = msgspec.structs.replace(current, version=version)
    match change:
        case NewPrimaryEpoch(node):
            takes_over = node in current.nodes and current.primary in missing
            if node == current.primary or takes_over:
                following = msgspec.structs.replace(following, primary=node, primary_epoch=version)
        case AddMember(copy):
            if copy.node not in missing and copy.node not in current.nodes:
                members = (*current.members, copy)
                width = max(current.width, min(len(members), policy.replicas))
                following = msgspec.structs.replace(following, members=members, width=width)
                following = _without_missing(following, policy, missing)
        case RemoveMember(node, reason, brokers_left):
            if node in current.nodes:
                following = _removed(following, change, policy, missing)
            if reason is RemovalReason.OPERATOR:
                following = msgspec.structs.replace(following, width=max(1, min(following.width, brokers_left)))
        case ChangePrimary(node):
            if node in current.nodes and node not in missing:
                following = msgspec.structs.replace(following, primary=node, primary_epoch=version)
        case Unchanged():
            pass
        case _:
            assert_never(change)
    if Safeguard.WIDTH in without:
        following = msgspec.structs.replace(following, width=min(len(following.members), policy.replicas))
    return following


def _removed(
    following: Configuration, change: RemoveMember, policy: CopyPolicy, missing: Collection[NodeId]
) -> Configuration:
    node = change.node
    rest = tuple(copy for copy in following.members if copy.node != node)
    at_least = minimum_members(following.width, policy) if change.reason in KEEPS_MINIMUM else 1
    if len(rest) >= at_least:
        following = msgspec.structs.replace(following, members=rest)
    if following.primary != node or (node in following.nodes and change.reason is not RemovalReason.MISSING):
        return following
    gone = {*missing, node}
    heir = next((copy.node for copy in following.members if copy.node not in gone), None)
    if heir is None:
        # None is alive. A former primary that is still a member stays it; otherwise the first may lead when it returns.
        if node in following.nodes:
            return following
        heir = following.members[0].node
    return msgspec.structs.replace(following, primary=heir, primary_epoch=following.version)


def _without_missing(following: Configuration, policy: CopyPolicy, missing: Collection[NodeId]) -> Configuration:
    """An addition has made room: members that stayed only to keep the minimum go. The primary proposed the addition,
    so it is not among them, whoever is believed missing."""
    at_least = minimum_members(following.width, policy)
    for copy in following.members:
        if copy.node in missing and copy.node != following.primary and len(following.members) > at_least:
            rest = tuple(one for one in following.members if one != copy)
            following = msgspec.structs.replace(following, members=rest)
    return following
