"""docs/formats/log.md says what the code writes."""

from __future__ import annotations

import re
from pathlib import Path
from struct import calcsize

import pytest

from rostra.log import clean_mark, index, journal

PAGE = Path(__file__).parents[3] / "docs" / "formats" / "log.md"


def table(name: str) -> list[tuple[int, int, str]]:
    """(at, bytes, field) of every row."""
    (body,) = re.findall(rf"<!-- table: {name} -->\n((?:\|.*\n)+)", PAGE.read_text(encoding="utf-8"))
    return [(int(at), int(size), field) for at, size, field in re.findall(r"\| (\d+) \| (\d+) \| (\w+) \|", body)]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("index", index.FIELDS),
        ("journal", journal.FIELDS),
        ("clean header", clean_mark.HEADER_FIELDS),
        ("clean row", clean_mark.ROW_FIELDS),
    ],
)
def test_a_table_of_the_page_is_the_layout_of_the_code(name: str, fields: tuple[tuple[str, str], ...]) -> None:
    expected: list[tuple[int, int, str]] = []
    at = 0
    for field, form in fields:
        expected.append((at, calcsize("<" + form), field))
        at += calcsize("<" + form)
    assert table(name) == expected


@pytest.mark.parametrize("magic", [index.MAGIC, journal.MAGIC, clean_mark.MAGIC])
def test_the_page_names_every_magic(magic: bytes) -> None:
    assert f"`{magic.decode()}`" in PAGE.read_text(encoding="utf-8")
