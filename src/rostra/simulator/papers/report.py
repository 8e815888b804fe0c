"""The result of papers as a table on the screen, as Parquet, and as the page `docs/papers.md`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.table import Table

from rostra.errors import LibraryMissing
from rostra.simulator.papers.frame import Paper, Result, Row

HEADING = "\n## "
INTRODUCTION = """# Published results, measured again

Made by `rostra sim paper all --write docs`; with the name of one paper only its section is made anew. Each experiment
runs the protocols of the product on virtual time, the overlay functions of `fabric/overlay` and the Raft group of
`fabric/raft`, and has no protocol of its own. A row passes when our figure lies within the accepted range; rows without
one are shown for comparison. A paper without a section here has not been measured at full scale yet.
"""


def verdict(row: Row) -> str:
    if not row.judged:
        return ""
    return "pass" if row.passed else "fail"


def number(value: float | None) -> str:
    if value is None:
        return ""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"


def accepted(row: Row) -> str:
    if row.lower is None:
        return "" if row.upper is None else f"≤ {number(row.upper)}"
    return number(row.lower) if row.lower == row.upper else f"{number(row.lower)} – {number(row.upper)}"


def screen_table(paper: Paper, result: Result) -> Table:
    table = Table(title=f"{paper.title}: {paper.source}", title_justify="left")
    for name in ("case", "quantity"):
        table.add_column(name)
    for name in ("published", "accepted", "ours"):
        table.add_column(name, justify="right")
    table.add_column("")
    for row in result.rows:
        colour = "" if row.passed else "red"
        table.add_row(
            row.case,
            row.quantity,
            number(row.published),
            accepted(row),
            f"{row.ours:.4g}",
            verdict(row),
            style=colour,
        )
    return table


def write_parquet(path: Path, results: Iterable[tuple[Paper, Result]]) -> None:
    """One row for each figure of each paper."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise LibraryMissing("pyarrow, which writes Parquet,", "arrow") from None
    rows = [
        {
            "paper": paper.name,
            "case": row.case,
            "quantity": row.quantity,
            "published": row.published,
            "ours": float(row.ours),
            "lower": row.lower,
            "upper": row.upper,
            "passed": row.passed if row.judged else None,
        }
        for paper, result in results
        for row in result.rows
    ]
    numbers = ("published", "ours", "lower", "upper")
    schema = pa.schema(
        [(name, pa.string()) for name in ("paper", "case", "quantity")]
        + [(name, pa.float64()) for name in numbers]
        + [("passed", pa.bool_())]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)


def write_page(directory: Path, results: Sequence[tuple[Paper, Result]], order: Iterable[Paper]) -> None:
    """`papers.md` and its pictures under `papers/`. What was measured replaces its section; the others stay."""
    page, pictures = directory / "papers.md", directory / "papers"
    pictures.mkdir(parents=True, exist_ok=True)
    sections: dict[str, str] = {}
    if page.exists():
        for section in page.read_text(encoding="utf-8").split(HEADING)[1:]:
            sections[section.partition("\n")[0]] = HEADING + section.rstrip() + "\n"
    for paper, result in results:
        sections[paper.title] = "\n" + _section(paper, result)
        for plot in result.plots:
            (pictures / f"{plot.name}.svg").write_text(plot.svg, encoding="utf-8")
    kept = [sections[paper.title] for paper in order if paper.title in sections]
    page.write_text(INTRODUCTION + "".join(kept), encoding="utf-8")


def _section(paper: Paper, result: Result) -> str:
    lines = [
        f"## {paper.title}",
        "",
        f"{paper.source}; `rostra sim paper {paper.name}`",
        "",
        f"**Published.** {paper.published}",
        "",
        f"**What differs.** {paper.differences}",
        "",
        "| case | quantity | published | accepted | ours | |",
        "|---|---|---:|---:|---:|---|",
    ]
    for row in result.rows:
        cells = (row.case, row.quantity, number(row.published), accepted(row), f"{row.ours:.4g}", verdict(row))
        lines.append("| " + " | ".join(cells) + " |")
    for plot in result.plots:
        lines += ["", f"![{plot.title}](papers/{plot.name}.svg)"]
    return "\n".join(lines) + "\n"
