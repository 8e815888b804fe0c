"""Prints the digests of seeds as JSON, so that another process can compare them with its own."""

from __future__ import annotations

import sys

import msgspec

from rostra.safeguards import Safeguard
from rostra.simulator.seed import run_seed


def main(seeds: str, nodes: str, without: str = "", fabric: str = "raft") -> None:
    switched_off = frozenset(map(Safeguard, filter(None, without.split(","))))
    chosen = map(int, seeds.split(","))
    found = {seed: run_seed(seed, fabric=fabric, nodes=int(nodes), without=switched_off).digest for seed in chosen}
    sys.stdout.write(msgspec.json.encode(found).decode() + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
