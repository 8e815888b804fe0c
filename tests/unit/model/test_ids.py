import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rostra.errors import InvalidTopicName
from rostra.model.ids import (
    ID_MAX,
    Partition,
    PartitionIndex,
    TopicId,
    check_topic_name,
    is_internal,
    parse_id,
    random_id,
    text,
)

ALLOWED = "abcxyzABCXYZ0189._-/"


@given(st.integers(min_value=0, max_value=ID_MAX))
def test_an_id_reads_back_from_its_text(identity: int) -> None:
    assert len(text(identity)) == 16
    assert parse_id(text(identity)) == identity


@pytest.mark.parametrize("written", ["", "12", "g" * 16, "0" * 17, "F" * 16, "f" * 16, " " * 16])
def test_what_is_not_an_id_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="is not an id"):
        parse_id(written)


def test_the_seed_decides_every_id() -> None:
    assert random_id(random.Random(5)) == random_id(random.Random(5))
    assert random_id(random.Random(5)) != random_id(random.Random(6))


def test_an_id_is_never_zero() -> None:
    class ZeroFirst:
        drawn = iter([0, 0, 9])

        def getrandbits(self, bits: int, /) -> int:
            return next(self.drawn)

    assert random_id(ZeroFirst()) == 9


@pytest.mark.parametrize("numbers", [[-1, 0], [1, -1], [1 << 63, 0], [1, 1 << 32]])
def test_a_partition_from_outside_fits_the_placement_crc(numbers: list[int]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(numbers), type=Partition)


def test_partitions_are_values_in_order() -> None:
    first = Partition(TopicId(1), PartitionIndex(2))
    assert first == Partition(TopicId(1), PartitionIndex(2))
    assert sorted([Partition(TopicId(2), PartitionIndex(0)), first])[0] == first
    assert len({first, Partition(TopicId(1), PartitionIndex(2))}) == 1
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(first), type=Partition) == first


@pytest.mark.requirement("CM-2:accepted")
@pytest.mark.parametrize("name", ["a", "a" * 249, "plant/line-1/temp_c", "v1.2", "...", "a/.b", "_g"])
def test_a_proper_topic_name_is_accepted(name: str) -> None:
    check_topic_name(name)


@pytest.mark.requirement("CM-2:refused")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        ("a" * 250, "250 characters"),
        ("/a", "empty level"),
        ("a/", "empty level"),
        ("a//b", "empty level"),
        ("/", "empty level"),
        (".", "as a level"),
        ("..", "as a level"),
        ("../etc/passwd", "as a level"),
        ("a/../../b", "as a level"),
        ("a/./b", "as a level"),
        ("a b", "' '"),
        ("a\x00b", "'\\x00'"),
        ("a\\b", "'\\\\'"),
        ("naïve", "'ï'"),
        ("٣", "'٣'"),
        ("a\n", "'\\n'"),
        ("a+b", "'+'"),
        ("a#", "'#'"),
        ("t~1", "'~'"),
    ],
)
def test_any_other_topic_name_is_refused_with_its_reason(name: str, reason: str) -> None:
    with pytest.raises(InvalidTopicName) as refused:
        check_topic_name(name)
    assert reason in refused.value.reason


@given(st.text(alphabet=ALLOWED + "~ \\\0é", max_size=260))
def test_an_accepted_name_has_only_safe_levels(name: str) -> None:
    try:
        check_topic_name(name)
    except InvalidTopicName:
        return
    assert 1 <= len(name) <= 249
    assert set(name) <= set(ALLOWED)
    assert all(level not in ("", ".", "..") for level in name.split("/"))


def test_names_with_a_leading_underscore_are_internal() -> None:
    assert is_internal("_groups")
    assert not is_internal("groups_")
