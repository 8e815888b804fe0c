"""Sizes, durations and times: parsing and formatting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rostra.cli.quantities import parse_bytes, parse_duration_ms, parse_moment_us, show_bytes, show_duration


@pytest.mark.parametrize(
    ("written", "count"),
    [("0", 0), ("1048576B", 1 << 20), ("64MiB", 64 << 20), ("2GB", 2 * 10**9), ("1.5 kib", 1536), ("7k", 7000)],
)
def test_sizes_are_parsed_to_bytes(written: str, count: int) -> None:
    assert parse_bytes(written) == count


@pytest.mark.parametrize(
    ("written", "duration_ms"), [("0", 0), ("500ms", 500), ("1.5s", 1500), ("12h", 43_200_000), ("7d", 604_800_000)]
)
def test_durations_are_parsed_to_milliseconds(written: str, duration_ms: int) -> None:
    assert parse_duration_ms(written) == duration_ms


def test_a_size_or_duration_without_a_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="'7' has no unit: write a duration such as 500ms, 30s, 12h or 7d"):
        parse_duration_ms("7")
    with pytest.raises(ValueError, match="'1024' has no unit: write a size such as 500B, 64MiB or 2GB"):
        parse_bytes("1024")


@pytest.mark.parametrize("written", ["", "many", "-1", "5 parsecs", "1e3", "MiB", "1 2"])
def test_an_invalid_size_or_duration_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        parse_bytes(written)
    with pytest.raises(ValueError, match="is not a"):
        parse_duration_ms(written)


@pytest.mark.parametrize(
    ("written", "moment_us"),
    [
        ("2024-05-01T12:00:00Z", 1_714_564_800_000_000),
        ("2024-05-01T14:00:00.000250+02:00", 1_714_564_800_000_250),
        ("-10m", 1_714_564_200_000_000),
        ("-1.5s", 1_714_564_798_500_000),
    ],
)
def test_times_are_parsed_as_iso_8601_or_relative_to_now(written: str, moment_us: int) -> None:
    assert parse_moment_us(written, now_us=1_714_564_800_000_000) == moment_us


@pytest.mark.parametrize("written", ["", "noon", "-", "-5", "-soon", "10m", "2024-13-01", "12:00"])
def test_an_invalid_time_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match=r"is not a|has no unit"):
        parse_moment_us(written, now_us=0)


@given(st.integers(0, 10**14))
def test_a_formatted_duration_can_be_parsed_again(duration_ms: int) -> None:
    assert parse_duration_ms(show_duration(duration_ms)) == duration_ms


def test_sizes_are_formatted_with_a_fitting_unit() -> None:
    assert [show_bytes(count) for count in (5, 2048, 3 << 20, 5 << 30)] == ["5 B", "2.0 KiB", "3.0 MiB", "5.0 GiB"]
