"""What a node counts: plain integers, so that counting costs an addition and no lock."""

from __future__ import annotations

from collections import Counter

SYNC_BOUNDS_MS = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Counters:
    def __init__(self) -> None:
        self.bytes_in = 0
        self.bytes_out = 0
        self.peer_bytes_in = 0
        self.peer_bytes_out = 0
        self.batches_in = 0
        self.bytes_appended = 0
        self.pushes = 0
        self.refused: Counter[str] = Counter()
        self.violations: Counter[str] = Counter()
        self.connections = 0
        self.reads = 0
        self.sync_ms = [0] * (len(SYNC_BOUNDS_MS) + 1)
        self.sync_total_ms = 0.0

    def synced(self, took_ms: float) -> None:
        self.sync_total_ms += took_ms
        for at, bound in enumerate(SYNC_BOUNDS_MS):
            if took_ms <= bound:
                self.sync_ms[at] += 1
                return
        self.sync_ms[-1] += 1
