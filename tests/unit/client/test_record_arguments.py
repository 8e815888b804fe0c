"""Arguments of `send` and `publish` are checked before a record enters a batch that it shares with others."""

from __future__ import annotations

from typing import Any

import pytest

from rostra.client.core.options import Options, ProducerSettings
from rostra.client.core.producer import partition_sender
from rostra.client.core.producer.producer_state import ProducerState
from rostra.errors import InvalidArgument, InvalidSetting
from tests.unit.client.core_harness import CoreHarness

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"value": "oops"}, "value must be bytes, not str; use text.encode()"),
    ({"value": 7}, "value must be bytes, not int"),
    ({"value": bytearray(b"x")}, "value must be bytes, not bytearray; use bytes(...)"),
    ({"value": {"a": 1}}, "value must be bytes, not dict; use json.dumps(...).encode()"),
    ({"key": "k"}, "key must be bytes, not str; use text.encode()"),
    (
        {"headers": {"a": b"b"}},
        "headers must be a list of (name, value) pairs, not dict; use list(headers.items())",
    ),
    ({"headers": [("a", "b")]}, "the value of header 'a' must be bytes, not str; use text.encode()"),
    ({"headers": [(b"a", b"b")]}, "a header name must be str, not bytes"),
    ({"headers": [("a", None)]}, "the value of header 'a' must be bytes, not NoneType"),
    ({"headers": ["ab"]}, "a header must be a pair of name and value, not str"),
    (
        {"timestamp_us": 1.5},
        "timestamp must be int microseconds since 1970, not float; use int(time.time() * 1_000_000)",
    ),
    ({"partition": "0"}, "partition must be int, not str"),
]
OUT_OF_RANGE: list[tuple[dict[str, Any], str]] = [
    ({"timestamp_us": 1 << 63}, "timestamp"),
    ({"partition": -1}, "partition"),
    ({"headers": [("\ud800", b"b")]}, "headers"),
]


def opened(harness: CoreHarness, **settings: Any) -> ProducerState:
    state = harness.core.open_producer(harness.now_us, harness.call(), "t", ProducerSettings(**settings))
    harness.run()
    harness.settle()
    return state


def flushed(harness: CoreHarness, state: ProducerState) -> list[bytes | None]:
    call = harness.call()
    state.flush(harness.now_us, call)
    harness.run()
    harness.settle()
    assert call in harness.results, harness.errors[call]
    return harness.node.log("t").values()


def connected() -> CoreHarness:
    harness = CoreHarness(Options())
    harness.connect()
    return harness


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_wrong_argument_is_refused_with_a_remedy_and_touches_no_other_record(
    wrong: dict[str, Any], message: str
) -> None:
    harness = connected()
    state = opened(harness)
    for number in range(10):
        state.add(harness.now_us, b"%d" % number)

    with pytest.raises(InvalidArgument) as refused:
        state.add(harness.now_us, **{"value": b"x", **wrong})

    assert str(refused.value) == message and isinstance(refused.value, TypeError)
    state.add(harness.now_us, b"last", headers=[("a", b"b")])
    assert flushed(harness, state) == [*(b"%d" % number for number in range(10)), b"last"]


@pytest.mark.parametrize(("wrong", "setting"), OUT_OF_RANGE)
def test_an_argument_out_of_range_is_refused_and_touches_no_other_record(wrong: dict[str, Any], setting: str) -> None:
    harness = connected()
    state = opened(harness)
    state.add(harness.now_us, b"first")
    with pytest.raises(InvalidSetting) as refused:
        state.add(harness.now_us, **{"value": b"x", **wrong})
    assert refused.value.setting == setting
    state.add(harness.now_us, b"last")
    assert flushed(harness, state) == [b"first", b"last"]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[message for _, message in WRONG])
def test_a_first_publish_with_a_wrong_argument_raises_and_creates_no_topic(wrong: dict[str, Any], message: str) -> None:
    harness = connected()
    with pytest.raises(InvalidArgument):
        harness.core.publish(harness.now_us, harness.call(), "t", **{"value": b"x", **wrong})
    harness.run()
    harness.settle()
    assert not harness.node.topics


def test_headers_may_be_changed_by_the_caller_after_the_call() -> None:
    harness = connected()
    state = opened(harness)
    headers = [("a", b"b")]
    state.add(harness.now_us, b"x", headers=headers)
    headers.append(("c", b"d"))
    headers[0] = ("e", b"f")
    assert flushed(harness, state) == [b"x"]


@pytest.mark.parametrize("batch_bytes", [64, 1 << 20], ids=["whole batches", "an open batch"])
@pytest.mark.parametrize("wrong_at", [0, 70, 99])
def test_one_wrong_value_among_many_is_named_and_touches_no_other_call(batch_bytes: int, wrong_at: int) -> None:
    harness = connected()
    state = opened(harness, batch_bytes=batch_bytes)
    values: list[Any] = [b"value-%d" % number for number in range(100)]
    state.add(harness.now_us, b"before")
    values[wrong_at] = "oops"
    at = 0
    with pytest.raises(InvalidArgument) as refused:
        while at < len(values):
            at = state.add_many(harness.now_us, values, at)
    assert str(refused.value) == f"values[{wrong_at}] must be bytes, not str; use text.encode()"
    state.add(harness.now_us, b"after")
    stored = flushed(harness, state)
    assert (stored[0], stored[-1]) == (b"before", b"after")
    assert stored[1:-1] == values[:at], "only batches before the wrong one"


def test_a_batch_that_can_not_be_encoded_fails_its_records_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the checks let through: callers are told, nobody waits for ever."""
    harness = connected()
    state = opened(harness)

    def broken(*_: object, **__: object) -> bytearray:
        raise ValueError("no such thing")

    one, flush = harness.call(), harness.call()
    with monkeypatch.context() as patched:
        patched.setattr(partition_sender, "encode_batch", broken)
        state.add(harness.now_us, b"a", call=one)
        state.add(harness.now_us, b"b")
        state.flush(harness.now_us, flush)
        harness.run()
    assert isinstance(harness.errors[one], InvalidSetting) and "no such thing" in str(harness.errors[flush])
    state.add(harness.now_us, b"c")
    assert flushed(harness, state) == [b"c"]
