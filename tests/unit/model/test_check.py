"""What a broker accepts from a producer, and what it believes of its own disk."""

from collections.abc import Callable
from struct import pack_into
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rostra.errors import BatchRejected
from rostra.model.batch import (
    BODY_CRC_AT,
    HEADER_BYTES,
    Flag,
    OwnerFlag,
    Reason,
    base_offset,
    batch_length,
    body_crc,
    last_offset,
    owner_epoch,
    placement_crc,
    placement_seed,
    producer_stamp,
    read_header,
    stamp,
)
from rostra.model.check import BatchLimits, check_produced, check_stored
from rostra.model.decode import stored_batch
from rostra.model.encode import encode
from tests.unit.model.batches import ELSEWHERE, HERE, Sample, samples

NOW_US = 4 * 10**15
LIMITS = BatchLimits()
SEED = placement_seed(HERE.topic, HERE.index)


def resealed(batch: bytearray) -> bytearray:
    """The batch with a body CRC that fits, as a hostile producer would send it."""
    pack_into("<I", batch, BODY_CRC_AT, body_crc(batch, 0, len(batch)))
    return batch


def reason_of(refused: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    with pytest.raises(BatchRejected) as rejected:
        refused(*arguments, **options)
    return rejected.value.reason


@given(samples())
def test_what_the_encoder_makes_is_accepted(sample: Sample) -> None:
    batch = sample.encoded()
    produced = check_produced(batch, limits=LIMITS, now_us=NOW_US)
    header = read_header(batch)
    assert produced == (header.producer, header.producer_epoch, header.sequence, header.count)


def patched(form: str, at: int, number: int) -> Callable[[bytearray], None]:
    return lambda batch: pack_into(form, batch, at, number)


def cut(batch: bytearray) -> None:
    del batch[-8:]
    pack_into("<I", batch, 4, len(batch))
    pack_into("<I", batch, 80, len(batch) - HEADER_BYTES)


REFUSALS: list[tuple[Callable[[bytearray], None], Reason]] = [
    (lambda batch: batch.__delitem__(slice(HEADER_BYTES - 1, None)), Reason.TRUNCATED),
    (patched("<B", 0, 0), Reason.MAGIC),
    (patched("<I", 4, 5000), Reason.LENGTH),
    (lambda batch: batch.extend(bytes(8)), Reason.LENGTH),
    (patched("<I", 80, 8), Reason.LENGTH),
    (patched("<I", 56, 0), Reason.EMPTY),
    (patched("<I", 56, 1001), Reason.TOO_MANY_RECORDS),
    (patched("<I", 56, 3), Reason.BODY_LAYOUT),
    (patched("<I", 56, 1000), Reason.BODY_LAYOUT),
    (patched("<I", 80, 20_001), Reason.TOO_LARGE),
    (patched("<H", 60, 128), Reason.FLAGS),
    (patched("<H", 60, Flag.CONTROL), Reason.FLAGS),
    (patched("<H", 60, Flag.OFFSET_DELTAS), Reason.FLAGS),
    (patched("<H", 60, Flag.KEY_NULLS), Reason.FLAGS),
    (patched("<H", 60, Flag.KEYS), Reason.BODY_LAYOUT),
    (patched("<H", 60, Flag.HEADERS), Reason.BODY_LAYOUT),
    (patched("<H", 60, Flag.TIMESTAMPS), Reason.BODY_LAYOUT),
    (patched("<B", 62, 3), Reason.CODEC),
    (patched("<B", 63, 1), Reason.RESERVED),
    (patched("<I", 84, 1), Reason.RESERVED),
    (patched("<Q", 40, 1 << 63), Reason.PRODUCER),
    (patched("<q", 64, 6), Reason.TIMESTAMP),
    (patched("<q", 72, NOW_US + 1001), Reason.TIMESTAMP),
    (patched("<i", 88, 1), Reason.BODY_LAYOUT),
    (patched("<i", 96, -1), Reason.BODY_LAYOUT),
    (patched("<i", 96, 1 << 30), Reason.BODY_LAYOUT),
    (cut, Reason.BODY_LAYOUT),
]


@pytest.mark.parametrize(("spoil", "reason"), REFUSALS)
def test_a_batch_beyond_the_rules_is_refused_for_its_reason(spoil: Callable[[bytearray], None], reason: Reason) -> None:
    limits = BatchLimits(
        batch_bytes_max=10_000,
        raw_body_bytes_max=20_000,
        records_max=1000,
        timestamp_ahead_us_max=1000,
    )
    batch = encode([b"one", b"second"], timestamp_us=5)
    check_produced(batch, limits=limits, now_us=NOW_US)
    spoil(batch)
    if len(batch) >= HEADER_BYTES:
        resealed(batch)
    assert reason_of(check_produced, batch, limits=limits, now_us=NOW_US) == reason


def test_a_batch_over_the_byte_limit_is_refused() -> None:
    batch = encode([b"x" * 200], timestamp_us=5)
    limits = BatchLimits(batch_bytes_max=len(batch))
    check_produced(batch, limits=limits, now_us=NOW_US)
    limits = BatchLimits(batch_bytes_max=len(batch) - 1)
    assert reason_of(check_produced, batch, limits=limits, now_us=NOW_US) == Reason.TOO_LARGE


def test_a_compressed_batch_must_have_room_for_its_records() -> None:
    batch = encode([b"x" * 200] * 9, timestamp_us=5)
    pack_into("<B", batch, 62, 1)
    pack_into("<I", batch, 56, 1000)
    resealed(batch)
    assert reason_of(check_produced, batch, limits=LIMITS, now_us=0) == Reason.BODY_LAYOUT


@given(samples(records_max=10), st.data())
def test_a_bit_flipped_on_the_way_to_the_broker_is_noticed(sample: Sample, choices: st.DataObject) -> None:
    batch = sample.encoded()
    # What the owner writes anyway (8 to 36) is not the producer's to protect.
    place = choices.draw(st.integers(0, 8 * len(batch) - 1).filter(lambda bit: not 64 <= bit < 288), "bit")
    batch[place // 8] ^= 1 << place % 8
    with pytest.raises(BatchRejected):
        check_produced(batch, limits=LIMITS, now_us=NOW_US)


@given(samples(), st.integers(0, 1 << 62), st.integers(0, (1 << 64) - 1))
def test_the_owner_writes_its_own_fields_and_nothing_else(sample: Sample, base: int, epoch: int) -> None:
    batch = sample.encoded()
    before = bytes(batch)
    stamp(
        batch,
        partition=HERE,
        base_offset=base,
        owner_epoch=epoch,
        owner_flags=OwnerFlag.SUPPRESSED,
    )
    header = read_header(batch)
    assert (header.base_offset, header.owner_epoch, header.owner_flags) == (base, epoch, 1)
    assert header.last_offset_delta == header.count - 1
    assert (before[:8], before[36:]) == (bytes(batch[:8]), bytes(batch[36:]))
    assert batch_length(batch) == header.length == len(batch)
    assert base_offset(batch) == base
    assert owner_epoch(batch) == epoch
    assert last_offset(batch) == header.next_offset - 1 == base + header.count - 1
    assert producer_stamp(batch) == (
        header.producer,
        header.producer_epoch,
        header.sequence,
        header.count,
    )
    assert check_stored(batch, 0, HERE) == len(batch)


def test_stamping_again_replaces_the_first_stamp() -> None:
    once, twice = Sample([b"x"]).encoded(), Sample([b"x"]).stamped(base_offset=77)
    for batch in (once, twice):
        stamp(batch, partition=HERE, base_offset=9, owner_epoch=4)
    assert once == twice


@given(samples(records_max=10), st.data())
def test_a_flipped_bit_anywhere_is_detected(sample: Sample, choices: st.DataObject) -> None:
    batch = sample.stamped()
    place = choices.draw(st.integers(0, 8 * len(batch) - 1), "bit")
    batch[place // 8] ^= 1 << place % 8
    # Bytes after the batch must not make a damaged length look whole, nor their lack torn.
    for rest in (b"", bytes(Sample([b"next"]).stamped()) * 3):
        reason = reason_of(check_stored, bytes(batch) + rest, 0, HERE)
        assert reason in (Reason.MAGIC, Reason.PLACEMENT_CRC, Reason.BODY_CRC)
        reason_of(stored_batch, batch + rest, 0, HERE, SEED)


def test_every_single_bit_of_a_batch_is_covered() -> None:
    batch = Sample([b"value"], {"keys": [b"key"]}).stamped()
    for place in range(8 * len(batch)):
        batch[place // 8] ^= 1 << place % 8
        reason_of(check_stored, batch, 0, HERE)
        reason_of(stored_batch, batch, 0, HERE, SEED)
        batch[place // 8] ^= 1 << place % 8
    assert check_stored(batch, 0, HERE) == len(batch)
    assert stored_batch(batch, 0, HERE, SEED).values() == [b"value"]


@given(samples(records_max=10))
def test_a_batch_cut_short_at_any_byte_is_truncated_not_damaged(sample: Sample) -> None:
    batch = bytes(sample.stamped())
    for size in range(len(batch)):
        assert reason_of(check_stored, batch[:size], 0, HERE) == Reason.TRUNCATED
        assert reason_of(stored_batch, bytearray(batch[:size]), 0, HERE, SEED) == Reason.TRUNCATED


@given(samples())
def test_a_batch_is_valid_in_its_own_partition_only(sample: Sample) -> None:
    batch = sample.stamped()
    assert reason_of(check_stored, batch, 0, ELSEWHERE) == Reason.PLACEMENT_CRC


def test_stored_batches_are_checked_where_they_lie() -> None:
    first, second = Sample([b"a"]).stamped(), Sample([b"b" * 30]).stamped(base_offset=1001)
    stored = memoryview(bytes(first + second))
    assert check_stored(stored, 0, HERE) == len(first)
    assert check_stored(stored, len(first), HERE) == len(second)


def test_a_length_below_the_header_is_refused_even_when_the_owner_vouches_for_it() -> None:
    batch = Sample([b"a"]).stamped()
    pack_into("<I", batch, 4, 87)
    pack_into("<I", batch, 32, placement_crc(batch, 0, HERE))
    assert reason_of(check_stored, batch, 0, HERE) == Reason.LENGTH


def test_the_placement_crc_starts_from_topic_and_partition() -> None:
    assert placement_seed(HERE.topic, HERE.index) != placement_seed(HERE.topic, HERE.index + 1)
    assert placement_seed(HERE.topic, HERE.index) != placement_seed(HERE.topic + 1, HERE.index)
