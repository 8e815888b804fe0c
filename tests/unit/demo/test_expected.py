"""The records that subscribers must get, and the failures that are reported."""

from __future__ import annotations

import ast
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rostra.demo import expected as module
from rostra.demo.expected import Acknowledgement, ExpectedSubscription, RecordId, expect
from rostra.demo.record_log import PublishedLog, ReceivedLog, record_id_of, record_value
from rostra.demo.verdict import Verdict, judge

SHIPPING = ExpectedSubscription("shipping", "orders")
STATISTICS = ExpectedSubscription("statistics", "clicks")


def names(publisher: str, *numbers: int) -> list[RecordId]:
    return [RecordId(publisher, number) for number in numbers]


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


def test_the_expectation_does_not_depend_on_deliveries() -> None:
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"__future__", "collections.abc", "typing"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import)]


def verdict(*delivered: RecordId, sent: int = 3, acknowledged: int = 3) -> Verdict:
    due = expect([Acknowledgement("alice", "orders", 0, acknowledged)], [SHIPPING])
    return judge({"alice": sent}, {"alice": "orders"}, due, {SHIPPING: delivered})


def test_all_delivered_once_is_no_failure() -> None:
    good = verdict(*names("alice", 0, 1, 2))
    assert good.failures == []
    assert (good.sent, good.acknowledged, good.expected, good.delivered, good.percent) == (3, 3, 3, 3, 100.0)


def test_lost_duplicated_unsent_and_reordered_records_are_found() -> None:
    assert "1 acknowledged records were not received" in verdict(*names("alice", 0, 2)).failures[0]
    assert "1 records were received more than once" in verdict(*names("alice", 0, 1, 1, 2)).failures[0]
    assert (
        "1 records were received that no publisher sent"
        in verdict(*names("alice", 0, 1, 2), *names("eve", 0)).failures[0]
    )
    assert "1 records were received out of order" in verdict(*names("alice", 0, 2, 1)).failures[0]


def test_a_record_stored_without_its_acknowledgement_is_allowed_and_counted_apart() -> None:
    found = verdict(*names("alice", 0, 1, 2), acknowledged=2)
    assert found.failures == []
    assert (found.expected, found.delivered, found.lines[0].unacknowledged) == (2, 2, 1)


def test_a_demo_without_acknowledged_records_is_a_failure() -> None:
    assert verdict(sent=0, acknowledged=0).failures == ["no record was acknowledged, so the demo proves nothing"]


@given(st.lists(st.integers(1, 50), max_size=20))
def test_the_logs_agree_about_what_was_sent_and_acknowledged(chunks: list[int]) -> None:
    sent, received = PublishedLog("alice", "orders", 0), ReceivedLog(SHIPPING)
    for chunk in chunks:
        received.take(sent.next_values(chunk))
        sent.acknowledge(chunk)
    assert set(received.records) == expect(sent.acknowledgements, [SHIPPING])[SHIPPING]
    assert len(received.records) == sent.sent == sent.acknowledged


@given(st.binary())
def test_a_value_that_no_publisher_wrote_has_an_unknown_id(value: bytes) -> None:
    assert record_id_of(value) == RecordId("?", -1)
    assert record_id_of(record_value("alice", 7)) == RecordId("alice", 7)
