"""What is wrong with a node: for its HTTP endpoints `/health` and `/ready`, and for its metrics."""

from __future__ import annotations

import os
from typing import NamedTuple

from rostra.broker.broker import Broker
from rostra.broker.disk import Disk
from rostra.errors import DiskFull

FREE_BYTES_MIN = 5 << 20
"""With so much free space, more than the largest batch, a disk that refused a write counts as usable again."""


class DiskSpace(NamedTuple):
    free_bytes: int
    total_bytes: int


class NodeHealth:
    """Reads the state of a node when asked.

    A node is *healthy* while its process can go on: one that must be restarted is not. It is *ready* while it accepts
    publishes and works with its cluster.
    """

    def __init__(self, broker: Broker, disk: Disk, directory: str) -> None:
        self._broker = broker
        self._disk = disk
        self._directory = directory

    @property
    def disk_full(self) -> bool:
        """Free space counts, too: the disk tells that it is not full any more only with the next record."""
        return self._disk.full and self.disk_space().free_bytes < FREE_BYTES_MIN

    def disk_space(self) -> DiskSpace:
        found = os.statvfs(self._directory)
        return DiskSpace(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)

    def fatal(self) -> list[str]:
        """Problems that only a restart ends."""
        broken = self._broker.broken
        return [] if broken is None else [str(broken)]

    def problems(self) -> list[str]:
        """Everything that keeps the node from accepting publishes now."""
        found = self.fatal()
        if self.disk_full:
            found.append(str(DiskFull()))
        if self._broker.stopping:
            found.append("the node is stopping")
        cluster = self._broker.fabric.problem()
        return [*found, cluster] if cluster else found
