"""How much memory a process has in use."""

from __future__ import annotations

import gc
import os
from pathlib import Path

GROWTH_BYTES_MAX = 64 << 20


def resident_bytes(pid: int | None = None) -> int:
    """Of the process itself unless another is named."""
    if pid is None:
        gc.collect()
    pages = Path(f"/proc/{pid or os.getpid()}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
