"""The faults: which of them a seed injects and how often, and how often each took effect.

Each seed draws its own subset (swarm testing), because faults that are always on hide each other's bugs.
"""

from __future__ import annotations

from enum import StrEnum
from random import Random
from typing import Any

import msgspec

from rostra.simulator.clock import MS_US, SECOND_US


class Fault(StrEnum):
    """Rows of the summary; each counts how often the fault took effect, not how often it was attempted."""

    CUT = "connections cut"
    DROPPED = "messages dropped"
    TORN_FRAME = "frames torn"
    HALF_OPEN = "half-open links"
    DELAYED = "messages delayed"
    REORDERED = "messages reordered"
    PAUSED = "inputs delayed by pauses"
    KILLED = "processes killed"
    POWER_CUT = "power cuts"
    CUT_SYNC = "syncs cut short"
    CRASH_IN_IO = "crashes during disk I/O"
    LOST_BYTES = "bytes lost"
    TORN_WRITE = "writes torn"
    FLIPPED = "bits flipped"
    DISK_FULL = "writes refused (disk full)"
    FAILED_SYNC = "syncs failed"
    FAILED_WRITE = "writes failed"
    SLOW_SYNC = "slow syncs"
    SKEWED = "batches under clock skew"
    STOPPED = "graceful restarts"
    PEER_LOST = "peer messages lost"
    PEER_DUPLICATED = "peer messages duplicated"
    PEER_REORDERED = "peer messages reordered"
    PEER_REPLAYED = "peer messages replayed late"
    PEER_SLOW = "peer messages on slow links"
    PEER_BROKEN = "peer links broken"
    ONE_WAY = "peer messages stopped by one-way splits"
    HALVES = "peer messages stopped by two-sided splits"
    ISOLATED = "peer messages stopped by isolated nodes"
    BRIDGE = "peer messages stopped by bridge splits"
    RING = "peer messages stopped by ring splits"
    FLAP = "peer messages stopped by flapping splits"
    POWER_CUT_ALL = "power cuts of all nodes"
    JOINED = "nodes joined"
    REMOVED = "nodes removed"
    LEFT_DOWN = "nodes left down at healing"
    MOVED = "clients moved to another node"


CLUSTER_FAULTS = tuple(Fault)[list(Fault).index(Fault.PEER_LOST) :]
"""Faults that need more than one node."""


class FaultCounts:
    """How often each fault took effect in one seed."""

    def __init__(self) -> None:
        self.counts: dict[Fault, int] = dict.fromkeys(Fault, 0)

    def add(self, fault: Fault, count: int = 1) -> None:
        self.counts[fault] += count


class FaultPlan(msgspec.Struct, frozen=True):
    """The faults of one seed. An interval of zero means never; a probability is per message or per sync."""

    delay_us: tuple[int, int]
    spike: float
    spike_us: int
    bytes_per_ms: int
    cut_every_us: int
    half_open: float
    pause_every_us: int
    pause_us: int
    kill_every_us: int
    power_every_us: int
    crash_in_io: float
    """Share of kills and power cuts that come between two disk operations, also those of a start."""
    down_us: int
    stop_every_us: int
    flip_every_us: int
    full_every_us: int
    full_us: int
    sync_fails: float
    write_fails: float
    skew_every_us: int
    skew_us: int
    sync_us: tuple[int, int]
    slow: float
    slow_us: int
    turn_us: int
    nodes: int
    joiners: int
    """How many of the nodes join later."""
    removes: bool
    """Whether an operator removes a node; at least three remain."""
    streams: bool
    """Whether messages between nodes keep their order, as on a connection, or travel like datagrams."""
    peer_loss: float
    peer_duplicate: float
    peer_reorder: float
    slow_links: int
    slow_link_us: int
    split_every_us: int
    split_us: int
    splits: tuple[str, ...]
    flapping: float
    """Share of splits that open and close every 43 ms."""
    all_power_every_us: int
    move_every_us: int
    """How often a client loses its node and must use another one for a while."""
    move_us: int
    replay_us: int
    """How late a copy of a datagram may arrive; zero for none."""
    heartbeat_ms: int
    minority_stays_down: bool
    """Whether only a majority restarts at first when faults end."""
    syncs: bool = True
    """False for nodes with `fsync=never`, which get no power cuts."""

    def with_nodes(self, nodes: int) -> FaultPlan:
        """The same faults for another number of nodes; at least three nodes are founders that remain."""
        joiners = min(self.joiners, max(nodes - 3, 0))
        return msgspec.structs.replace(self, nodes=nodes, joiners=joiners, removes=self.removes and nodes > 3)

    @staticmethod
    def none() -> FaultPlan:
        """A plan without faults, for one node; messages and syncs still take time."""
        drawn = FaultPlan.draw(Random("fair weather"))
        no_intervals = {name: 0 for name in FaultPlan.__struct_fields__ if name.endswith("_every_us")}
        no_chances = dict.fromkeys(
            (
                *("spike", "half_open", "crash_in_io", "sync_fails", "write_fails", "slow"),
                *("peer_loss", "peer_duplicate", "peer_reorder", "flapping"),
            ),
            0.0,
        )
        quiet = {
            "slow_links": 0,
            "minority_stays_down": False,
            "replay_us": 0,
            "nodes": 1,
            "joiners": 0,
            "removes": False,
            "streams": True,
        }
        return msgspec.structs.replace(drawn, **no_intervals, **no_chances, **quiet)

    @staticmethod
    def draw(random: Random) -> FaultPlan:
        def every(chance: float, low_s: float, high_s: float) -> int:
            return int(random.uniform(low_s, high_s) * SECOND_US) if random.random() < chance else 0

        def maybe(chance: float, low: float, high: float) -> float:
            return random.uniform(low, high) if random.random() < chance else 0.0

        fastest = random.randint(50, 800)
        drawn = FaultPlan(
            delay_us=(fastest, fastest + random.randint(50, 3_000)),
            spike=maybe(0.5, 0.002, 0.05),
            spike_us=random.choice((5, 40, 300)) * MS_US,
            bytes_per_ms=random.choice((100, 2_000, 20_000)),
            cut_every_us=every(0.6, 0.7, 8),
            half_open=maybe(0.5, 0.1, 0.6),
            pause_every_us=every(0.4, 1, 10),
            pause_us=random.choice((5, 80, 1_500)) * MS_US,
            kill_every_us=every(0.4, 2, 12),
            power_every_us=every(0.5, 2, 12),
            crash_in_io=maybe(0.6, 0.2, 0.8),
            down_us=random.choice((10, 200, 2_500)) * MS_US,
            stop_every_us=every(0.25, 4, 15),
            flip_every_us=every(0.2, 5, 20),
            full_every_us=every(0.35, 1, 10),
            full_us=random.choice((2, 60, 2_000)) * MS_US,
            sync_fails=maybe(0.2, 0.002, 0.02),
            write_fails=maybe(0.15, 0.002, 0.02),
            skew_every_us=every(0.4, 1, 8),
            skew_us=random.choice((2, 500, 20_000)) * MS_US,
            sync_us=(200, random.choice((400, 1_500, 5_000))),
            slow=maybe(0.4, 0.01, 0.1),
            slow_us=random.choice((30, 200, 900)) * MS_US,
            turn_us=random.choice((0, 30, 400)),
            **_draw_nodes(random),
        )
        if random.random() < 0.1:
            return msgspec.structs.replace(drawn, syncs=False, power_every_us=0, sync_fails=0.0)
        return drawn


NODES_MAX = 15
SIZES = (*(3,) * 10, *(4,) * 4, *(5,) * 4, 6, 6, 7, 7, 9, 12, NODES_MAX)
"""Numbers of nodes to draw from: mostly few, because a seed with more takes longer and reaches less."""
JOINERS_MAX = 4
SHAPES = (Fault.ONE_WAY, Fault.HALVES, Fault.ISOLATED, Fault.BRIDGE, Fault.RING)


def _draw_nodes(random: Random) -> dict[str, Any]:
    """Draws the part of the plan that concerns several nodes."""
    nodes = random.choice(SIZES)
    streams = random.random() < 0.5
    return {
        "nodes": nodes,
        "joiners": random.randint(0, min(nodes - 3, JOINERS_MAX)),
        "removes": nodes > 3 and random.random() < 0.5,
        "streams": streams,
        "peer_loss": 0.0 if streams or random.random() < 0.4 else random.uniform(0.002, 0.08),
        "peer_duplicate": 0.0 if streams or random.random() < 0.4 else random.uniform(0.005, 0.1),
        "peer_reorder": 0.0 if streams or random.random() < 0.4 else random.uniform(0.005, 0.1),
        "slow_links": random.choice((0, 0, 1, 3)),
        "slow_link_us": random.choice((20, 80, 200)) * MS_US,
        "split_every_us": int(random.uniform(1.5, 8) * SECOND_US) if random.random() < 0.75 else 0,
        "split_us": random.choice((300, 1_500, 5_000)) * MS_US,
        "splits": tuple(random.sample(SHAPES, random.randint(1, len(SHAPES)))),
        "flapping": random.choice((0.0, 0.2, 0.8)),
        "all_power_every_us": int(random.uniform(6, 20) * SECOND_US) if random.random() < 0.3 else 0,
        "move_every_us": int(random.uniform(1, 5) * SECOND_US) if random.random() < 0.4 else 0,
        "move_us": random.choice((300, 2_000)) * MS_US,
        "replay_us": 0 if streams or random.random() < 0.7 else random.choice((2, 15)) * SECOND_US,
        "heartbeat_ms": random.choice((500, 700, 900)),
        "minority_stays_down": random.random() < 0.5,
    }
