"""Prints the digests of seeds as JSON: for a process that wants to compare its own with those of another."""

from __future__ import annotations

import sys

import msgspec

from rostra.safeguards import Safeguard
from rostra.simulator.seed import run_seed


def main(seeds: str, fabric: str, without: str = "") -> None:
    switched_off = frozenset(map(Safeguard, filter(None, without.split(","))))
    found = {seed: run_seed(seed, fabric, without=switched_off).digest for seed in map(int, seeds.split(","))}
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
