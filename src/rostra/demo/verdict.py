"""Expected against delivered: the table at the end, and whether all is well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rostra.demo.expected import ExpectedSubscription, RecordName


class VerdictLine(msgspec.Struct, frozen=True):
    """One subscription. `sent` and `acknowledged` are of its topic."""

    interest: ExpectedSubscription
    sent: int
    acknowledged: int
    expected: int
    delivered: int
    """Expected records that came, each counted once."""
    duplicates: int
    unacknowledged: int
    """Came, though its acknowledgement never reached the publisher: allowed, it was stored."""
    phantoms: int
    """Came, and nobody sent it."""
    disordered: int
    """Came after a later record of the same publisher."""

    @property
    def percent(self) -> float:
        return 100.0 * self.delivered / self.expected if self.expected else 100.0

    @property
    def complaints(self) -> list[str]:
        found = {
            f"{self.expected - self.delivered} acknowledged records never came": self.delivered != self.expected,
            f"{self.duplicates} records came more than once": self.duplicates > 0,
            f"{self.phantoms} records came that nobody sent": self.phantoms > 0,
            f"{self.disordered} records came out of order": self.disordered > 0,
        }
        who = f"{self.interest.subscriber} on {self.interest.topic}"
        return [f"{who}: {complaint}" for complaint, is_so in found.items() if is_so]


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
    def complaints(self) -> list[str]:
        found = [complaint for line in self.lines for complaint in line.complaints]
        if not self.expected:
            found.append("nothing was acknowledged, so nothing was shown")
        return found


def judge(
    sent: Mapping[str, int],
    topics: Mapping[str, str],
    expected: Mapping[ExpectedSubscription, frozenset[RecordName]],
    delivered: Mapping[ExpectedSubscription, Sequence[RecordName]],
) -> Verdict:
    """`sent` counts by publisher, `topics` names the topic of each, `delivered` is in the order of arrival."""
    of_topic: Counter[str] = Counter()
    for publisher, count in sent.items():
        of_topic[topics[publisher]] += count
    lines = []
    for interest, due in expected.items():
        came = Counter(delivered.get(interest, ()))
        foreign = came.keys() - due
        sent_but_unacknowledged = {name for name in foreign if 0 <= name.number < sent.get(name.publisher, 0)}
        lines.append(
            VerdictLine(
                interest=interest,
                sent=of_topic[interest.topic],
                acknowledged=len(due),
                expected=len(due),
                delivered=len(due & came.keys()),
                duplicates=sum(count - 1 for count in came.values()),
                unacknowledged=len(sent_but_unacknowledged),
                phantoms=len(foreign) - len(sent_but_unacknowledged),
                disordered=_disordered(delivered.get(interest, ())),
            )
        )
    acknowledged = {line.interest.topic: line.acknowledged for line in lines}
    return Verdict(tuple(lines), sum(of_topic.values()), sum(acknowledged.values()))


def _disordered(arrived: Iterable[RecordName]) -> int:
    last: dict[str, int] = {}
    disordered = 0
    for name in arrived:
        if name.number < last.get(name.publisher, -1):
            disordered += 1
        last[name.publisher] = name.number
    return disordered
