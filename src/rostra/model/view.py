"""The members a cluster is believed to have, under a version number."""

from collections.abc import Iterable
from typing import Self

import msgspec

from rostra.model.ids import Epoch, NodeId


class View(msgspec.Struct, frozen=True, array_like=True):
    """Members in ascending order, so that iterating them is the same everywhere."""

    epoch: Epoch
    active: tuple[NodeId, ...]
    joining: tuple[NodeId, ...] = ()
    missing: tuple[NodeId, ...] = ()

    def __post_init__(self) -> None:
        everyone = self.active + self.joining + self.missing
        if len(set(everyone)) != len(everyone):
            raise ValueError("a node is listed twice in one view")
        for role in (self.active, self.joining, self.missing):
            if tuple(sorted(role)) != role:
                raise ValueError("the members of a view must be in ascending order")

    @classmethod
    def of(
        cls,
        epoch: Epoch,
        active: Iterable[NodeId],
        joining: Iterable[NodeId] = (),
        missing: Iterable[NodeId] = (),
    ) -> Self:
        return cls(epoch, tuple(sorted(active)), tuple(sorted(joining)), tuple(sorted(missing)))

    @property
    def members(self) -> tuple[NodeId, ...]:
        return tuple(sorted(self.active + self.joining + self.missing))
