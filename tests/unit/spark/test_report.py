"""The page of an audit: whole, by itself, and harmless whatever topics are called."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rostra.spark.pipelines.findings import (
    Audit,
    Gap,
    LostRange,
    NodeLoad,
    TopicFindings,
    imbalance_of,
    latency_of,
    total_of,
)
from rostra.spark.pipelines.report import report, windows_in

EMPTY = {"meta", "rect", "line", "polygon", "polyline"}


class Tags(HTMLParser):
    """Fails where a tag is closed that was not open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def an_audit(*, lost: int = 0, topic: str = "orders") -> Audit:
    topics = (
        TopicFindings(topic, 1, 2, 100_000, 200_000, 200_000 - lost, lost, 0, 0, 0),
        TopicFindings("plant/temperature", 1, 1, 40_000, 40_000, 40_000, 0, 0, 0, 0),
    )
    histogram = {round(150 * 1.3**at): 40_000 // (1 + abs(at - 8)) for at in range(24)}
    total_us = sum(lower * count for lower, count in histogram.items())
    nodes = tuple(NodeLoad(f"{n:016x}", 140_000 - 9_000 * n, 14 << 20, 50_000, 31 << 20) for n in range(3))
    gaps = tuple(Gap(topic, n, 4, 1_700_000_000_000_000, 180_000 + 90_000 * n) for n in range(3))
    missing = (LostRange(topic, 0, "00000000000003e8", 1, 500, lost),) if lost else ()
    latencies = (latency_of("*", histogram, total_us, 99_000), latency_of(topic, histogram, total_us, 99_000))
    hops = {0: 140_000, 1: 280_000}
    return Audit(total_of(topics), topics, latencies, hops, nodes, imbalance_of(nodes), gaps, missing)


def windows() -> list[dict[str, object]]:
    start = datetime(2026, 1, 31, 8, tzinfo=UTC)
    return [
        {"start": start + timedelta(seconds=10 * at), "per_second": 9_000.0 + 700 * (at % 5), "topic": "orders"}
        for at in range(30)
    ]


@pytest.mark.requirement("PL-14:page")
def test_a_page_is_whole_and_needs_nothing_else() -> None:
    page = report(an_audit(), windows=windows())
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert re.findall(r"https?:|src=|href=|url\(|<script|@import", page) == []
    assert tags.seen.count("svg") == 6
    sections = ("Delivery", "Latency", "Rate", "Load", "Hops", "Changes of owner")
    assert [name for name in sections if f"<h2>{name}</h2>" not in page] == []
    assert "Every record arrived, once and in order." in page
    assert "100 %" in page and "240,000" in page


def test_what_was_lost_is_said_at_the_top_and_listed() -> None:
    page = report(an_audit(lost=37))
    assert "Not every record arrived once and in order." in page
    assert '<td class="bad">37</td>' in page
    assert "Lost" in page


def test_a_name_cannot_break_out_of_the_page() -> None:
    page = report(an_audit(topic="<script>alert(1)</script>"), title="<b>")
    assert "<script" not in page and "<b>" not in page.replace("<b>1", "").replace('"><b>', "")


def test_a_page_of_nothing_is_a_page() -> None:
    nothing = Audit(total_of([]), (), (), {}, (), 1.0, (), ())
    tags = Tags()
    tags.feed(report(nothing))
    assert tags.open == []


def test_a_single_window_is_drawn_too() -> None:
    page = report(an_audit(), windows=windows()[:1])
    assert "<h2>Rate</h2>" in page and "nan" not in page


def test_windows_that_are_still_being_written_are_not_there_yet(tmp_path: Path) -> None:
    staged, there = tmp_path / "_rostra" / "staging" / "part-0.parquet", tmp_path / "date=2026-01-31" / "part-0.parquet"
    for file in (staged, there):
        file.parent.mkdir(parents=True)
    pq.write_table(pa.table({"other": [1]}), staged)
    assert windows_in(tmp_path) == []
    pq.write_table(pa.Table.from_pylist(windows()), there)
    assert len(windows_in(tmp_path)) == 30
