"""Prints every requirement with a column per fabric and its tests; fails while one in scope is missing."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rostra.fabric.registry import FABRICS
from tools.requirements import RESULTS, Evidence, Proofs, Ran, Verdict, in_scope, judge, number_of, read_statements

PLAIN_WIDTH = 160
"""Of the lines where no terminal gives a width."""


def report(
    statements: Mapping[str, str], proofs: Proofs, evidence: Evidence, scope: Iterable[str], *, width: int = PLAIN_WIDTH
) -> tuple[list[str], list[str]]:
    """The lines to print, number by number, and the numbers in scope that are not proved wherever they must be."""
    wanted = [number for number in statements if in_scope(number, scope)]
    columns = proofs.fabrics
    heading = "number  " + "".join(f"{fabric:{_width(fabric)}}" for fabric in columns)
    lines = [heading + "statement"]
    missing: list[str] = []
    for number in wanted:
        verdict = judge(number, proofs, evidence)
        if not verdict.done:
            missing.append(number)
        cells = "".join(f"{cell(verdict, fabric):{_width(fabric)}}" for fabric in columns)
        lines.append(_cut(f"{number:8}{cells}{statements[number]}", width))
        lines += [_cut(f"        {note}", width) for note in notes(verdict, proofs)]
        lines += [f"        {line}" for line in tests_of(evidence.of(number))]
    return lines, missing


def cell(verdict: Verdict, fabric: str) -> str:
    """What is proved on one fabric: all of it, some of its parts, nothing; or nothing is promised there."""
    if fabric not in verdict.lacking:
        return "-"
    if fabric in verdict.failed:
        return "FAILED"
    count, lacking = verdict.counts[fabric], len(verdict.lacking[fabric])
    if not lacking:
        return "proved"
    return f"{count - lacking} of {count}" if lacking < count else "none"


def notes(verdict: Verdict, proofs: Proofs) -> Iterator[str]:
    """What is still to be proved, and what a fabric does not promise."""
    by_parts: dict[tuple[str, ...], list[str]] = {}
    for fabric, parts in verdict.lacking.items():
        if parts and parts != ("",):
            by_parts.setdefault(parts, []).append(fabric)
    for parts, fabrics in by_parts.items():
        yield f"lacks on {', '.join(fabrics)}: {', '.join(parts)}"
    if unbuilt := [fabric for fabric in verdict.lacking if fabric not in proofs.fabrics]:
        yield f"needs what is not built yet: {', '.join(unbuilt)}"
    for (number, fabric), reason in proofs.not_promised.items():
        if number == verdict.number:
            yield f"not promised in full by {fabric}: {reason}"


def tests_of(claims: Mapping[str, Mapping[str, Ran]]) -> Iterator[str]:
    """One line for each test function and the part it proves, however many parameters it ran with."""
    for claim, tests in claims.items():
        part = claim.removeprefix(number_of(claim)).removeprefix(":")
        functions: dict[str, Counter[tuple[str, str]]] = {}
        for test, ran in tests.items():
            counts = functions.setdefault(test.partition("[")[0], Counter())
            counts.update((ran.outcome, fabric) for fabric in ran.fabrics or ("",))
        for function, counts in sorted(functions.items()):
            told = ", ".join(
                " ".join(filter(None, (str(count), outcome, fabric and f"on {fabric}")))
                for (outcome, fabric), count in sorted(counts.items())
            )
            yield f"{function}{f' ({part})' if part else ''}: {told}"


def summary(verdicts: Iterable[Verdict]) -> list[str]:
    """How many numbers are proved under each pair of letters, and which are not."""
    by_letters: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_letters.setdefault(verdict.number.partition("-")[0], []).append(verdict)
    lines = []
    for letters, found in by_letters.items():
        missing = [verdict.number for verdict in found if not verdict.done]
        line = f"{letters}: {len(found) - len(missing)} of {len(found)} proved"
        lines.append(line + (f"; missing: {' '.join(missing)}" if missing else ""))
    return lines


def _width(fabric: str) -> int:
    return max(len(fabric), len("10 of 17")) + 2


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1] + "…"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scope", default="", help="letters or numbers to demand, e.g. CM,RF-3; nothing means all")
    scope = [part.strip().upper() for part in parser.parse_args().scope.split(",") if part.strip()]

    statements = read_statements()
    if unknown := [part for part in scope if not any(in_scope(number, [part]) for number in statements)]:
        print(f"no requirement is called {', '.join(unknown)}; see docs/requirements/", file=sys.stderr)
        return 2
    if not RESULTS.exists():
        print("the tests left no result: the run above broke off before its end", file=sys.stderr)
        return 1

    proofs, evidence = Proofs.read(statements, list(FABRICS)), Evidence.read()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PLAIN_WIDTH
    lines, missing = report(statements, proofs, evidence, scope, width=width)
    print("\n".join(lines), end="\n\n")
    print("\n".join(summary(judge(number, proofs, evidence) for number in statements if in_scope(number, scope))))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
