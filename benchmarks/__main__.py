"""`python -m benchmarks`: fetches the peers, measures, prints, and fails if a target is missed."""

import argparse
import signal
import sys
from pathlib import Path

from rich.console import Console

from benchmarks import fetch

SCENARIOS = (
    "relay",
    "throughput",
    "fanout",
    "latency",
    "memory",
    "stall",
    "catchup",
    "many",
    "cluster",
    "ring",
    "trace",
    "pipeline",
)
RESULTS = Path(__file__).parent / "RESULTS.md"
LOG_COLUMNS = 160
EXIT_MISSED = 1
EXIT_INTERRUPTED = 130


def main() -> int:
    arguments = parse_arguments()
    console = Console()
    if not console.is_terminal:
        console = Console(width=LOG_COLUMNS)
    # An ordinary kill cleans up like Ctrl-C, and a background shell must not take Ctrl-C away:
    # the servers stop with the `with` block they belong to.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        console.print("fetching the peers' clients")
        fetch.install_clients()
        # Only now can the modules that import those clients be imported.
        from benchmarks.suite import run_suite

        findings = run_suite(console, arguments.only, is_quick=arguments.quick)
    except KeyboardInterrupt:
        console.print("interrupted; all servers are stopped")
        return EXIT_INTERRUPTED
    from benchmarks.report import markdown, print_report

    print_report(console, findings)
    if arguments.write:
        RESULTS.write_text(markdown(findings) + kept_of_soak())
        console.print(f"written: benchmarks/{RESULTS.name}")
    missed = findings.missed()
    console.print(f"{len(findings.verdicts) - len(missed)} of {len(findings.verdicts)} targets met")
    return EXIT_MISSED if missed else 0


def kept_of_soak() -> str:
    """The section of the last `make soak`, which is not measured here and is kept."""
    _, heading, rest = RESULTS.read_text().partition("\n## Soak\n") if RESULTS.exists() else ("", "", "")
    return heading + rest


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure Rostra and its peers side by side on this machine.",
        epilog="example: python -m benchmarks --only throughput,latency --quick",
    )
    parser.add_argument(
        "--only",
        type=scenario_names,
        default=SCENARIOS,
        metavar="NAMES",
        help=f"comma-separated: {','.join(SCENARIOS)} (default: all)",
    )
    parser.add_argument("--quick", action="store_true", help="fewer records and rounds, ~5 minutes")
    parser.add_argument("--write", action="store_true", help="update benchmarks/RESULTS.md")
    return parser.parse_args()


def scenario_names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in SCENARIOS]
    if unknown:
        known = ", ".join(SCENARIOS)
        raise argparse.ArgumentTypeError(f"no scenario {unknown[0]!r}; there are: {known}")
    return names


if __name__ == "__main__":
    sys.exit(main())
