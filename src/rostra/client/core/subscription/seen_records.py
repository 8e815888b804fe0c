"""The records that a subscription has seen, by producer, to drop those that two nodes deliver."""

from __future__ import annotations

from collections import OrderedDict

PRODUCERS_MAX = 10_000
"""Producers to remember; the one that was silent longest is forgotten first."""


class SeenRecords:
    """Spans of sequence numbers, by producer and epoch. Those from one node are contiguous, so there are few."""

    def __init__(self) -> None:
        self._spans: OrderedDict[tuple[int, int], list[tuple[int, int]]] = OrderedDict()

    def has(self, producer: int, epoch: int, sequence: int, count: int) -> bool:
        """Whether all of these were seen before; they are recorded as seen."""
        who = producer, epoch
        spans = self._spans.setdefault(who, [])
        self._spans.move_to_end(who)
        if len(self._spans) > PRODUCERS_MAX:
            self._spans.popitem(last=False)
        following = sequence + count
        if spans and spans[-1][1] == sequence:
            spans[-1] = spans[-1][0], following
            return False
        if any(begin <= sequence and following <= end for begin, end in spans):
            return True
        spans.append((sequence, following))
        spans.sort()
        joined = [spans[0]]
        for begin, end in spans[1:]:
            if begin <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(end, joined[-1][1])
            else:
                joined.append((begin, end))
        self._spans[who] = joined
        return False
