"""Space that a node keeps for the time when its disk is full.

Changing a setting appends to a log, also the change that makes retention free space. So a node keeps a file of zeros
and deletes it when such an append finds the disk full. Records wait until it is created again, when there is space.
"""

from __future__ import annotations

import os
from pathlib import Path

NAME = "reserve"
RESERVE_BYTES = 1 << 20
SPARE_BYTES_MIN = 4 * RESERVE_BYTES
"""The reserve is not created with less free space: it would only fill the disk."""


class DiskReserve:
    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME

    def keep(self) -> bool:
        """Creates the file if it is missing and there is space for it; whether it is there."""
        try:
            space = os.statvfs(self._path.parent)
            if not self._path.exists() and space.f_bavail * space.f_frsize >= SPARE_BYTES_MIN:
                self._path.write_bytes(bytes(RESERVE_BYTES))
        except OSError:
            # A node can do without.
            self.free()
        return self._path.exists()

    def free(self) -> bool:
        """Deletes the file; False if there is none."""
        try:
            self._path.unlink()
        except OSError:
            return False
        return True
