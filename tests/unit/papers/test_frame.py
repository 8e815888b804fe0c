"""The frame of the papers: rows and verdicts, plots, Parquet, the page and the command."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pyarrow.parquet as pq
import pytest

from rostra.errors import InvalidSetting
from rostra.simulator.papers import command, registry
from rostra.simulator.papers.command import run_papers
from rostra.simulator.papers.frame import Paper, Plot, Progress, Result, at_most, mean, near, percentile, shown, silent
from rostra.simulator.papers.plots import Line, line_plot
from rostra.simulator.papers.processes import measure_parts


def picture() -> str:
    return line_plot([Line("published", [(1, 2), (8, 4)]), Line("<ours>", [(1, 2.1), (8, 3.9)], True)], "N", "hops")


def made_up(ours: float) -> Paper:
    def run(_workers: int, progress: Progress) -> Result:
        progress(0.5, "half")
        rows = (near("a case", "a mean", 2.0, ours, 0.1), shown("a case", "more", 3.0), at_most("b", "lost", 5, 1))
        return Result(rows, (Plot("made-up", "A plot", picture()),))

    return Paper("made-up", "A paper", "An author", "It was so.", "Ours is alike.", run)


def test_a_figure_passes_within_its_tolerance_and_not_beyond() -> None:
    assert near("c", "q", 2.0, 2.2, 0.1).passed and near("c", "q", 2.0, 1.8, 0.1).passed
    assert not near("c", "q", 2.0, 2.21, 0.1).passed
    assert near("c", "q", 0.0, 0.02, 0.1, least=0.02).passed and not near("c", "q", 0.0, 0.01, 0.1).passed
    assert at_most("c", "q", 5, 5).passed and not at_most("c", "q", 5, 5.1).passed
    assert shown("c", "q", 1e9).passed and not shown("c", "q", 1e9).judged


@pytest.mark.parametrize(("ours", "code"), [(2.1, 0), (9.0, 1)])
def test_the_command_exits_with_one_when_a_figure_is_missed(
    ours: float, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "PAPERS", {"made-up": made_up(ours)})
    parquet, docs = tmp_path / "rows.parquet", tmp_path / "docs"
    assert run_papers("all", 1, str(parquet), str(docs)) == code
    printed = capsys.readouterr()
    assert ("│ fail" in printed.out) == bool(code)
    assert "50% half" in printed.err, "progress is shown"
    assert "s of CPU" in printed.err
    rows = pq.read_table(parquet).to_pylist()
    assert [row["passed"] for row in rows] == [not code, None, True]
    assert rows[0]["ours"] == ours and rows[0]["published"] == 2.0
    page = (docs / "papers.md").read_text(encoding="utf-8")
    assert "It was so." in page and "Ours is alike." in page and "papers/made-up.svg" in page
    assert (docs / "papers" / "made-up.svg").read_text(encoding="utf-8") == picture()


def test_without_a_name_the_papers_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_papers("") == 0
    assert all(name in capsys.readouterr().out for name in list(registry.PAPERS)[:1])
    assert run_papers("", output="json") == 0
    listed = [msgspec.json.decode(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["name"] for one in listed] == list(registry.PAPERS)


def test_results_come_as_json_lines_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "PAPERS", {"made-up": made_up(2.0)})
    assert run_papers("made-up", 1, output="json") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert [row["verdict"] for row in msgspec.json.decode(line)["rows"]] == ["pass", "", "pass"]


def test_a_paper_that_is_not_known_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="chord-path"):
        run_papers("nonsense")


def test_one_paper_replaces_its_section_of_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = made_up(2.0)
    second = msgspec.structs.replace(made_up(1.9), name="second", title="Another paper")
    monkeypatch.setattr(command, "PAPERS", {"made-up": first, "second": second})
    assert run_papers("second", 1, write=str(tmp_path)) == 0
    assert run_papers("made-up", 1, write=str(tmp_path)) == 0
    apart = (tmp_path / "papers.md").read_text(encoding="utf-8")
    assert run_papers("all", 1, write=str(tmp_path)) == 0
    assert (tmp_path / "papers.md").read_text(encoding="utf-8") == apart
    assert apart.index("## A paper") < apart.index("## Another paper")


def test_a_plot_is_well_formed_and_names_its_lines() -> None:
    tree = ElementTree.fromstring(picture())
    texts = [element.text for element in tree.iter() if element.tag.endswith("text")]
    assert {"published", "<ours>", "N", "hops"} <= set(texts)
    assert ElementTree.fromstring(line_plot([Line("flat", [(10, 0), (1000, 0)], True)], "x", "y", log_across=True))


def double(value: int) -> int:
    return 2 * value


@pytest.mark.parametrize("workers", [1, 2])
def test_parts_are_measured_in_any_number_of_processes_and_come_in_order(workers: int) -> None:
    assert measure_parts(double, [3, 1, 2], workers, silent) == [6, 2, 4]


def test_percentiles_lie_between_samples() -> None:
    assert (percentile([1, 2, 3, 4, 5], 0.5), percentile([1, 2], 0.25), percentile([], 0.5)) == (3, 1.25, 0)
    assert (mean([1, 2, 3]), mean([])) == (2, 0)
