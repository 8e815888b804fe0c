"""Cutting a byte stream into messages: however it is split, within bounds, and refusing what breaks the rules."""

from __future__ import annotations

import struct
import tracemalloc
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rostra.errors import PeerViolation, RostraError, from_wire
from rostra.wire.frames import (
    BEFORE_HELLO_BYTES_MAX,
    BUFFER_BYTES_MAX,
    FRAME_BYTES,
    FROM_CLIENT,
    FROM_NODE,
    META_BYTES_MAX,
    FrameReader,
    Violation,
    encode,
)
from rostra.wire.messages import ClientMessage, Goodbye, Hello, Locate, Ping, Publish, Welcome
from tests.unit.wire.streams import CLIENT_KINDS, Sent, conversations, framed, stream_of

PUBLISH = Publish(1, 2, 0, "all")
FRAME_BYTES_MAX = 8 << 20

BAD: dict[Violation, bytes] = {
    Violation.FRAME_TOO_LARGE: struct.pack("<IIHHI", 2**32 - 1, 0, 2, 0, 0),
    Violation.META_TOO_LARGE: struct.pack("<IIHHI", META_BYTES_MAX + 1, META_BYTES_MAX + 1, 2, 0, 0),
    Violation.META_LENGTH: struct.pack("<IIHHI", 10, 11, 2, 0, 0),
    Violation.RESERVED: framed(Ping.kind, b"\x91\x01", reserved=1),
    Violation.UNKNOWN_KIND: framed(999, b"\x91\x01"),
    Violation.CHECKSUM: encode(Ping(1))[:-1] + b"\x02",
    Violation.MALFORMED: framed(Ping.kind, b"\x91\xa1a"),
    Violation.TEXT: framed(Goodbye.kind, b"\x91\xa1\xff"),
    Violation.DEPTH: framed(Ping.kind, b"\x92\x01" + b"\x91" * 50_000 + b"\x01"),
    Violation.PAYLOAD: framed(Ping.kind, b"\x91\x01", b"surplus"),
}
"""A stream for each reason that a reader itself can have; the rest need a closed stream or a broker."""


def reader(frame_bytes_max: int = FRAME_BYTES_MAX) -> FrameReader[ClientMessage]:
    return FrameReader(FROM_CLIENT, frame_bytes_max)


def as_received(frames: list[Sent]) -> list[Any]:
    return [(message, bytearray(payload) if payload else None) for message, payload in frames]


@given(frames=conversations(CLIENT_KINDS), cuts=st.lists(st.integers(0, 4000), max_size=12))
def test_however_a_stream_is_split_the_messages_are_the_same(frames: list[Sent], cuts: list[int]) -> None:
    stream = stream_of(frames)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    link = reader()
    got = [one for start, end in pairwise(places) for one in link.feed(stream[start:end])]
    assert got == as_received(frames)
    link.closed()


@given(frames=conversations(CLIENT_KINDS))
def test_a_stream_that_comes_byte_by_byte_gives_the_same_messages(frames: list[Sent]) -> None:
    link = reader()
    assert [one for byte in stream_of(frames) for one in link.feed(bytes([byte]))] == as_received(frames)


@given(sizes=st.lists(st.integers(1, 300_000), max_size=12), step=st.sampled_from([1000, 20_000, 70_000, 1 << 20]))
def test_payloads_of_any_size_pass_through_the_reused_buffer_unchanged(sizes: list[int], step: int) -> None:
    frames = [(PUBLISH, size.to_bytes(4, "little") * (size // 4 + 1)) for size in sizes]
    stream = stream_of(frames)
    link = reader()
    got = [one for start in range(0, len(stream), step) for one in link.feed(stream[start : start + step])]
    assert got == as_received(frames)


@pytest.mark.parametrize("step", [70_000, 300_000, 3_000_000])
def test_large_payloads_bypass_the_buffer_and_arrive_whole_among_small_ones(step: int) -> None:
    payloads = [bytes([number]) * size for number, size in enumerate((2_000_000, 5, 600_000, 900_000, 1, 700_000))]
    sent = [(PUBLISH, payload) for payload in payloads]
    stream = stream_of(sent)
    link = reader()
    received = [pair for at in range(0, len(stream), step) for pair in link.feed(stream[at : at + step])]
    link.closed()
    assert received == as_received(sent)


def test_a_stream_that_ends_inside_a_large_payload_was_truncated() -> None:
    link = reader()
    assert link.feed(stream_of([(PUBLISH, bytes(1_000_000))])[:-1]) == []
    with pytest.raises(PeerViolation) as violated:
        link.closed()
    assert violated.value.reason == Violation.TRUNCATED


def test_each_payload_is_a_buffer_of_its_own() -> None:
    link = reader()
    ((_, first),) = link.feed(encode(PUBLISH, 4) + b"aaaa")
    ((_, second),) = link.feed(encode(PUBLISH, 4) + b"bbbb")
    assert (first, second) == (bytearray(b"aaaa"), bytearray(b"bbbb"))


def test_there_is_always_room_to_receive_into() -> None:
    link = reader()
    stream = stream_of([(PUBLISH, bytes(100_000)), (Ping(1), b"")] * 5)
    at = 0
    while at < len(stream):
        space = link.free_space()
        assert len(space) > 0
        n = min(len(space), len(stream) - at)
        space[:n] = stream[at : at + n]
        link.received(n)
        at += n


@pytest.mark.parametrize("reason", BAD, ids=lambda reason: reason.name)
def test_a_bad_frame_is_refused_with_its_typed_reason(reason: Violation) -> None:
    with pytest.raises(PeerViolation) as caught:
        reader().feed(BAD[reason])
    assert caught.value.reason == reason
    told: RostraError = from_wire("PeerViolation", caught.value.carried())
    assert str(told) == str(caught.value)


@pytest.mark.parametrize("reason", BAD, ids=lambda reason: reason.name)
def test_a_bad_frame_is_refused_however_it_is_split(reason: Violation) -> None:
    link = reader()
    with pytest.raises(PeerViolation) as caught:
        for byte in BAD[reason]:
            link.feed(bytes([byte]))
    assert caught.value.reason == reason


def test_every_reason_for_rejection_is_covered_by_a_test() -> None:
    elsewhere = {Violation.TRUNCATED, Violation.NOT_GREETED, Violation.OUT_OF_ORDER}
    assert set(BAD) | elsewhere == set(Violation)


def test_a_stream_that_ends_inside_a_frame_was_truncated() -> None:
    for cut in range(1, len(encode(Ping(1)))):
        link = reader()
        link.feed(encode(Ping(1))[:cut])
        with pytest.raises(PeerViolation) as caught:
            link.closed()
        assert caught.value.reason == Violation.TRUNCATED


def test_a_stream_that_ends_between_frames_is_complete() -> None:
    link = reader()
    link.feed(encode(Ping(1)))
    link.closed()


def test_a_payload_is_demanded_where_one_belongs() -> None:
    with pytest.raises(PeerViolation, match="payload missing"):
        reader().feed(encode(PUBLISH))


def test_a_node_does_not_listen_to_what_only_nodes_say() -> None:
    welcome = Welcome(1, 1, (), 1, 1, "raft", 1, 1, 1)
    with pytest.raises(PeerViolation) as caught:
        reader().feed(encode(welcome))
    assert caught.value.reason == Violation.UNKNOWN_KIND
    assert FrameReader(FROM_NODE).feed(encode(welcome)) == [(welcome, None)]


@pytest.mark.parametrize("text", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"])
def test_text_that_is_not_utf_8_is_a_violation_and_not_a_crash(text: bytes) -> None:
    meta = b"\x92\x01" + bytes([0xA0 + len(text)]) + text
    with pytest.raises(PeerViolation) as caught:
        reader().feed(framed(Locate.kind, meta))
    assert caught.value.reason == Violation.TEXT


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\x01", b"\xdc\x00\x01", b"\xde\x00\x01\x01"])
def test_nesting_beyond_reason_is_a_violation_and_not_a_crash(opening: bytes) -> None:
    with pytest.raises(PeerViolation) as caught:
        reader().feed(framed(Ping.kind, b"\x92\x01" + opening * 100_000 + b"\x01"))
    assert caught.value.reason == Violation.DEPTH


@pytest.mark.parametrize("opening", [b"\xdd", b"\xdf", b"\xdb", b"\xc6"], ids=["array", "map", "text", "bytes"])
@pytest.mark.parametrize("before", [b"", b"\x91", b"\x95\x01\x01\x01", b"\x96\x01\x01\x01\x90\xa0"])
def test_a_length_inside_the_typed_part_costs_nothing(opening: bytes, before: bytes) -> None:
    frame = framed(Hello.kind, before + opening + b"\xff\xff\xff\xff")
    assert _allocated_by_refusing(frame) < 64 << 10


@pytest.mark.requirement("CM-19:frame")
@pytest.mark.parametrize("length", [FRAME_BYTES_MAX + 1, 1 << 30, 2**32 - 1])
def test_a_header_that_announces_gigabytes_costs_nothing(length: int) -> None:
    assert _allocated_by_refusing(struct.pack("<IIHHI", length, 10, Publish.kind, 0, 0)) < 64 << 10


def _allocated_by_refusing(frame: bytes) -> int:
    link = reader()
    tracemalloc.start()
    try:
        with pytest.raises(PeerViolation):
            link.feed(frame)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.requirement("CM-19:before-hello")
def test_a_stranger_never_gets_more_room_than_one_small_frame() -> None:
    link: FrameReader[ClientMessage] = FrameReader(FROM_CLIENT)
    link.feed(struct.pack("<IIHHI", BEFORE_HELLO_BYTES_MAX, 10, Publish.kind, 0, 0))
    assert len(link.free_space()) <= BEFORE_HELLO_BYTES_MAX
    crowd: FrameReader[ClientMessage] = FrameReader(FROM_CLIENT)
    for _ in range(4):
        crowd.feed(encode(Ping(1)) * 20_000)
    assert len(crowd.free_space()) <= BEFORE_HELLO_BYTES_MAX + FRAME_BYTES


def test_the_buffer_of_a_busy_link_grows_and_stays_bounded() -> None:
    link = reader()
    small = len(link.free_space())
    for _ in range(12):
        link.feed(encode(Ping(1)) * 60_000)
    assert small < len(link.free_space()) <= BUFFER_BYTES_MAX


def test_what_a_rare_large_frame_needed_is_given_back() -> None:
    link = reader()
    link.feed(encode(PUBLISH, 7 << 20) + bytes(7 << 20))
    link.feed(encode(Ping(1)))
    assert len(link.free_space()) <= BUFFER_BYTES_MAX


def test_larger_frames_are_taken_once_the_limit_is_raised() -> None:
    link: FrameReader[ClientMessage] = FrameReader(FROM_CLIENT)
    large = encode(PUBLISH, BEFORE_HELLO_BYTES_MAX) + bytes(BEFORE_HELLO_BYTES_MAX)
    with pytest.raises(PeerViolation):
        FrameReader(FROM_CLIENT).feed(large)
    link.frame_bytes_max = FRAME_BYTES_MAX
    assert len(link.feed(large)) == 1


@given(st.binary(max_size=200))
def test_any_garbage_gives_messages_or_a_violation(garbage: bytes) -> None:
    link = reader()
    try:
        link.feed(garbage)
        link.closed()
    except PeerViolation:
        pass


@given(kind=st.sampled_from(CLIENT_KINDS), meta=st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=3),
))  # fmt: skip
def test_any_typed_part_gives_a_message_or_a_violation(kind: Any, meta: Any) -> None:
    frame = framed(kind.kind, msgspec.msgpack.encode(meta), b"x" if kind.payload else b"")
    try:
        ((message, _),) = reader().feed(frame)
        assert isinstance(message, kind)
    except PeerViolation:
        pass
