"""Compares expected with delivered records: the table at the end, and the failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rostra.demo.expected import ExpectedSubscription, RecordId


class VerdictLine(msgspec.Struct, frozen=True):
    """One subscription. `sent` and `acknowledged` are totals of its topic."""

    subscription: ExpectedSubscription
    sent: int
    acknowledged: int
    expected: int
    delivered: int
    """Expected records that were received, each counted once."""
    duplicates: int
    unacknowledged: int
    """Received, but the acknowledgement never reached the publisher: allowed, since it was stored."""
    phantoms: int
    """Received, but no publisher sent it."""
    disordered: int
    """Received after a later record of the same publisher."""

    @property
    def percent(self) -> float:
        return 100.0 * self.delivered / self.expected if self.expected else 100.0

    @property
    def failures(self) -> list[str]:
        found = {
            f"{self.expected - self.delivered} acknowledged records were not received": self.delivered != self.expected,
            f"{self.duplicates} records were received more than once": self.duplicates > 0,
            f"{self.phantoms} records were received that no publisher sent": self.phantoms > 0,
            f"{self.disordered} records were received out of order": self.disordered > 0,
        }
        who = f"{self.subscription.subscriber} on {self.subscription.topic}"
        return [f"{who}: {failure}" for failure, failed in found.items() if failed]


class Verdict(msgspec.Struct, frozen=True):
    lines: tuple[VerdictLine, ...]
    sent: int
    acknowledged: int

    @property
    def expected(self) -> int:
        return sum(line.expected for line in self.lines)

    @property
    def delivered(self) -> int:
        return sum(line.delivered for line in self.lines)

    @property
    def duplicates(self) -> int:
        return sum(line.duplicates for line in self.lines)

    @property
    def percent(self) -> float:
        return 100.0 * self.delivered / self.expected if self.expected else 100.0

    @property
    def failures(self) -> list[str]:
        found = [failure for line in self.lines for failure in line.failures]
        if not self.expected:
            found.append("no record was acknowledged, so the demo proves nothing")
        return found


def judge(
    sent: Mapping[str, int],
    topics: Mapping[str, str],
    expected: Mapping[ExpectedSubscription, frozenset[RecordId]],
    delivered: Mapping[ExpectedSubscription, Sequence[RecordId]],
) -> Verdict:
    """`sent` counts by publisher, `topics` names the topic of each, `delivered` is in the order of arrival."""
    of_topic: Counter[str] = Counter()
    for publisher, count in sent.items():
        of_topic[topics[publisher]] += count
    lines = []
    for subscription, due in expected.items():
        received = Counter(delivered.get(subscription, ()))
        unexpected = received.keys() - due
        sent_but_unacknowledged = {name for name in unexpected if 0 <= name.number < sent.get(name.publisher, 0)}
        lines.append(
            VerdictLine(
                subscription=subscription,
                sent=of_topic[subscription.topic],
                acknowledged=len(due),
                expected=len(due),
                delivered=len(due & received.keys()),
                duplicates=sum(count - 1 for count in received.values()),
                unacknowledged=len(sent_but_unacknowledged),
                phantoms=len(unexpected) - len(sent_but_unacknowledged),
                disordered=_disordered(delivered.get(subscription, ())),
            )
        )
    acknowledged = {line.subscription.topic: line.acknowledged for line in lines}
    return Verdict(tuple(lines), sum(of_topic.values()), sum(acknowledged.values()))


def _disordered(arrived: Iterable[RecordId]) -> int:
    last: dict[str, int] = {}
    disordered = 0
    for name in arrived:
        if name.number < last.get(name.publisher, -1):
            disordered += 1
        last[name.publisher] = name.number
    return disordered
