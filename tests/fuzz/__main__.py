"""Replays one round: python -m tests.fuzz SEED ROUND."""

from __future__ import annotations

import sys

from tests.fuzz.rig import Round

if __name__ == "__main__":
    seed, number = map(int, sys.argv[1:3])
    tally = Round(seed, number).run()
    for name in tally.__struct_fields__:
        print(name, getattr(tally, name))
