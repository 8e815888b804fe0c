"""What subscribers must get, and what is said when they do not."""

from __future__ import annotations

import ast
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rostra.demo import expected as module
from rostra.demo.expected import Acknowledgement, ExpectedSubscription, RecordName, expect
from rostra.demo.record_log import PublishedLog, ReceivedLog, name_of, value_of
from rostra.demo.verdict import Verdict, judge

SHIPPING = ExpectedSubscription("shipping", "orders")
STATISTICS = ExpectedSubscription("statistics", "clicks")


def names(publisher: str, *numbers: int) -> list[RecordName]:
    return [RecordName(publisher, number) for number in numbers]


def test_a_subscriber_expects_every_acknowledged_record_of_its_topic_and_no_other() -> None:
    acks = [
        Acknowledgement("alice", "orders", 0, 2),
        Acknowledgement("bob", "orders", 5, 1),
        Acknowledgement("carol", "clicks", 0, 1),
        Acknowledgement("alice", "orders", 1, 2),
    ]
    due = expect(acks, [SHIPPING, STATISTICS])
    assert due[SHIPPING] == {*names("alice", 0, 1, 2), *names("bob", 5)}
    assert due[STATISTICS] == set(names("carol", 0))


def test_what_is_expected_cannot_know_what_was_delivered() -> None:
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"__future__", "collections.abc", "typing"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import)]


def verdict(*delivered: RecordName, sent: int = 3, acknowledged: int = 3) -> Verdict:
    due = expect([Acknowledgement("alice", "orders", 0, acknowledged)], [SHIPPING])
    return judge({"alice": sent}, {"alice": "orders"}, due, {SHIPPING: delivered})


def test_all_delivered_once_is_no_complaint() -> None:
    good = verdict(*names("alice", 0, 1, 2))
    assert good.complaints == []
    assert (good.sent, good.acknowledged, good.expected, good.delivered, good.percent) == (3, 3, 3, 3, 100.0)


def test_a_lost_a_doubled_a_foreign_and_a_disordered_record_are_each_found() -> None:
    assert "1 acknowledged records never came" in verdict(*names("alice", 0, 2)).complaints[0]
    assert "1 records came more than once" in verdict(*names("alice", 0, 1, 1, 2)).complaints[0]
    assert "1 records came that nobody sent" in verdict(*names("alice", 0, 1, 2), *names("eve", 0)).complaints[0]
    assert "1 records came out of order" in verdict(*names("alice", 0, 2, 1)).complaints[0]


def test_a_record_stored_without_its_acknowledgement_is_allowed_and_counted_apart() -> None:
    found = verdict(*names("alice", 0, 1, 2), acknowledged=2)
    assert found.complaints == []
    assert (found.expected, found.delivered, found.lines[0].unacknowledged) == (2, 2, 1)


def test_a_demo_that_showed_nothing_is_a_failure() -> None:
    assert verdict(sent=0, acknowledged=0).complaints == ["nothing was acknowledged, so nothing was shown"]


@given(st.lists(st.integers(1, 50), max_size=20))
def test_the_books_agree_about_what_was_sent_and_acknowledged(chunks: list[int]) -> None:
    sent, received = PublishedLog("alice", "orders", 0), ReceivedLog(SHIPPING)
    for chunk in chunks:
        received.take(sent.next_values(chunk))
        sent.acknowledge(chunk)
    assert set(received.names) == expect(sent.acknowledgements, [SHIPPING])[SHIPPING]
    assert len(received.names) == sent.sent == sent.acknowledged


@given(st.binary())
def test_a_value_that_no_publisher_wrote_is_never_taken_for_one(value: bytes) -> None:
    assert name_of(value) == RecordName("?", -1)
    assert name_of(value_of("alice", 7)) == RecordName("alice", 7)
