"""Prints every requirement, the tests that carry it and whether they passed; fails while one in scope is missing."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.requirements import RESULTS, Evidence, in_scope, read_statements, report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scope", default="", help="letters or numbers to demand, e.g. CM,RF-3; nothing means all")
    scope = [part.strip().upper() for part in parser.parse_args().scope.split(",") if part.strip()]

    statements = read_statements()
    strangers = [part for part in scope if not any(in_scope(number, [part]) for number in statements)]
    if strangers:
        print(f"no requirement is called {', '.join(strangers)}; see docs/requirements/", file=sys.stderr)
        return 2
    if not RESULTS.exists():
        print("the tests left no result: the run above broke off before its end", file=sys.stderr)
        return 1

    lines, missing = report(statements, Evidence.read(), scope)
    print("\n".join(lines))
    demanded = sum(in_scope(number, scope) for number in statements)
    print(f"\n{demanded - len(missing)} of {demanded} proved" + (f"; missing: {' '.join(missing)}" if missing else ""))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
