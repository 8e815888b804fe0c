"""Patterns of topic names: `+` matches one level, `#` matches any number of remaining levels, including none."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, Self, TypeVar

import msgspec

from rostra.errors import InvalidPattern, InvalidTopicName
from rostra.model.ids import TOPIC_NAME_CHARACTERS_MAX, check_topic_name, is_internal

ONE_LEVEL = "+"
THE_REST = "#"

V = TypeVar("V", bound=Hashable)


def is_wild(written: str) -> bool:
    """Whether the text contains wildcards."""
    return ONE_LEVEL in written or THE_REST in written


class Pattern(msgspec.Struct, frozen=True, order=True):
    """Wildcards do not match internal topics; only their full name does."""

    levels: tuple[str, ...]

    @classmethod
    def parse(cls, written: str) -> Self:
        """InvalidPattern for anything that could match no topic name, or that would surprise."""
        if len(written) > TOPIC_NAME_CHARACTERS_MAX:
            raise InvalidPattern(
                written, f"it has {len(written)} characters; at most {TOPIC_NAME_CHARACTERS_MAX} are allowed"
            )
        levels = tuple(written.split("/"))
        for level in levels:
            if is_wild(level) and len(level) > 1:
                raise InvalidPattern(written, f"'+' and '#' stand alone between '/', not as part of {level!r}")
        if THE_REST in levels[:-1]:
            raise InvalidPattern(written, "'#' is allowed at the end only")
        try:
            check_topic_name("/".join("x" if is_wild(level) else level for level in levels))
        except InvalidTopicName as error:
            raise InvalidPattern(written, error.reason) from None
        return cls(levels)

    def __str__(self) -> str:
        return "/".join(self.levels)

    @property
    def is_wild(self) -> bool:
        return self.levels[-1] == THE_REST or ONE_LEVEL in self.levels

    @property
    def fixed(self) -> str:
        """The common prefix of all matching names, for a search in sorted names."""
        levels = self.levels
        wild = next((at for at, level in enumerate(levels) if is_wild(level)), len(levels))
        return "/".join(levels[:wild])

    def matches(self, name: str) -> bool:
        if not self.is_wild:
            return name == str(self)
        if is_internal(name):
            return False
        levels, given = self.levels, name.split("/")
        if levels[-1] == THE_REST:
            levels = levels[:-1]
            if len(given) < len(levels):
                return False
        elif len(given) != len(levels):
            return False
        return all(level in (ONE_LEVEL, there) for level, there in zip(levels, given, strict=False))


class PatternTrie(Generic[V]):
    """Values by pattern. A look-up visits only patterns that match a prefix of the name."""

    def __init__(self) -> None:
        self._root: _Branch[V] = _Branch()

    def __bool__(self) -> bool:
        return not self._root.is_bare

    def add(self, pattern: Pattern, value: V) -> None:
        """A value may be stored under many patterns, once under each."""
        branch = self._root
        for level in pattern.levels:
            below = branch.below.get(level)
            if below is None:
                below = branch.below[level] = _Branch()
            branch = below
        branch.values[value] = None

    def remove(self, pattern: Pattern, value: V) -> None:
        """Does nothing if it is not there."""
        path = [self._root]
        for level in pattern.levels:
            below = path[-1].below.get(level)
            if below is None:
                return
            path.append(below)
        path[-1].values.pop(value, None)
        for level, branch, below in zip(reversed(pattern.levels), path[-2::-1], path[:0:-1], strict=True):
            if not below.is_bare:
                return
            del branch.below[level]

    def match(self, name: str) -> list[V]:
        """Each value once, even if several of its patterns match, in a deterministic order."""
        wild = not is_internal(name)
        found: dict[V, None] = {}
        reached = [self._root]
        for level in name.split("/"):
            following: list[_Branch[V]] = []
            for branch in reached:
                if wild:
                    found.update(branch.of_the_rest())
                    one = branch.below.get(ONE_LEVEL)
                    if one is not None:
                        following.append(one)
                below = branch.below.get(level)
                if below is not None:
                    following.append(below)
            reached = following
        for branch in reached:
            found.update(branch.values)
            if wild:
                found.update(branch.of_the_rest())
        return list(found)


class _Branch(Generic[V]):
    __slots__ = ("below", "values")

    def __init__(self) -> None:
        self.below: dict[str, _Branch[V]] = {}
        self.values: dict[V, None] = {}

    @property
    def is_bare(self) -> bool:
        return not self.below and not self.values

    def of_the_rest(self) -> dict[V, None]:
        rest = self.below.get(THE_REST)
        return rest.values if rest is not None else {}
