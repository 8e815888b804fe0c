"""`python -m rostra.simulator --seeds 0:200`: the simulator without the rest of the command line."""

from __future__ import annotations

import argparse
import os
import sys

from rostra.errors import UsageError
from rostra.safeguards import Safeguard
from rostra.simulator.command import FABRICS, NODES, simulate

EXIT_USAGE = 2
EXIT_READER_GONE = 141


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m rostra.simulator", description="Run seeds and check every guarantee."
    )
    parser.add_argument("--seeds", default="0:100", help="FIRST:END, the end excluded, or one seed")
    parser.add_argument("--fabric", default="raft", choices=FABRICS)
    parser.add_argument("--nodes", type=int, default=0, choices=(0, *NODES), help="0 means 3 to 15, as the seed draws")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0 means one per core")
    parser.add_argument("--without", action="append", default=[], choices=[one.value for one in Safeguard])
    parser.add_argument("--rerun", default="0%", help="share of seeds to rerun in another process, e.g. 5%%")
    parser.add_argument("--trace", action="store_true", help="print everything that happens in a single seed")
    parser.add_argument("-o", "--output", default="table", choices=("table", "json"))
    given = parser.parse_args()
    try:
        rerun = float(given.rerun.removesuffix("%")) / (100 if given.rerun.endswith("%") else 1)
        return simulate(
            given.seeds, given.fabric, given.workers, given.without, rerun, given.trace, given.output, given.nodes
        )
    except BrokenPipeError:
        # The reader closed the pipe; the rest of the buffer must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_READER_GONE
    except (UsageError, ValueError) as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE


if __name__ == "__main__":
    sys.exit(main())
