"""`rostra bench`: the benchmarks of a source checkout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

import rostra
from rostra.cli.exit_codes import ExitCode
from rostra.cli.output import print_error

EXAMPLES = """
rostra bench
rostra bench --only throughput,latency --quick"""


def bench(
    only: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Scenarios to run, separated by commas.", show_default="all")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer records and rounds.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Update benchmarks/RESULTS.md.")] = False,
) -> None:
    """Measure Rostra and its peers side by side; this needs a source checkout."""
    checkout = find_checkout()
    if checkout is None:
        print_error(
            "the benchmarks are not part of the installed package",
            "run `make bench` or `rostra bench` in a source checkout",
        )
        raise typer.Exit(ExitCode.FAILURE)
    command = [sys.executable, "-m", "benchmarks"]
    command += ["--only", only] if only is not None else []
    command += ["--quick"] if quick else []
    command += ["--write"] if write else []
    with subprocess.Popen(command, cwd=checkout) as running:
        try:
            code = running.wait()
        except KeyboardInterrupt:
            # The benchmarks got Ctrl-C, too; they stop their servers first.
            running.wait()
            raise
    raise typer.Exit(code)


def find_checkout() -> Path | None:
    """The directory with `benchmarks/`: this one, a parent, or the source of an editable installation."""
    here = Path.cwd()
    for directory in (here, *here.parents, *Path(rostra.__file__).resolve().parents):
        if (directory / "benchmarks" / "__main__.py").is_file() and (directory / "pyproject.toml").is_file():
            return directory
    return None
