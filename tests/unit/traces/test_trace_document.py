"""docs/formats/trace.md says what the code does."""

from __future__ import annotations

import re

from rostra.traces.events import COLUMNS, TraceEvent, TraceRole
from rostra.traces.recorder import schema
from tools.conventions import ROOT

PAGE = (ROOT / "docs" / "formats" / "trace.md").read_text(encoding="utf-8")


def test_the_page_lists_every_column_with_its_type() -> None:
    listed = re.findall(r"^\| `(\w+)` \| (int\d+|string) \|", PAGE, flags=re.MULTILINE)
    assert [name for name, _ in listed] == list(COLUMNS)
    assert {field.name: str(field.type) for field in schema(TraceRole.NODE)} == dict(listed)


def test_the_page_lists_every_event() -> None:
    listed = re.findall(r"^\| `(\w+)` \| (?:client|node) \|", PAGE, flags=re.MULTILINE)
    assert sorted(listed) == sorted(event.value for event in TraceEvent)
