"""Keeping the machine's cores awake while bytes flow, for those who pay power for a shorter delay."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from structlog.stdlib import BoundLogger

SWITCH = Path("/dev/cpu_dma_latency")
"""Linux wakes every core within the microseconds written here, for as long as the writer holds it open."""
AT_ONCE = bytes(4)
"""No delay at all, as the 32-bit number that the system expects."""


class StayAwake:
    """Waking a core that sleeps costs more than all that a node does for a record. A core that is idle but awake takes
    no time from any program, which a node that polls does; it only takes power.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, for_ms: int, log: BoundLogger, switch: Path = SWITCH) -> None:
        self._loop = loop
        self._for_s = for_ms / 1000
        self._log = log
        self._switch = switch
        self._held: int | None = None
        self._stirred = False

    def stir(self) -> None:
        """Bytes came in."""
        self._stirred = True
        if self._for_s and self._held is None:
            self._hold()

    def _hold(self) -> None:
        try:
            self._held = os.open(self._switch, os.O_WRONLY | os.O_CLOEXEC)
            os.write(self._held, AT_ONCE)
        except OSError as error:
            self.release()
            self._for_s = 0.0
            self._log.warning("cores may sleep", reason=str(error), remedy=f"let the node write to {self._switch}")
        else:
            self._loop.call_later(self._for_s, self._look)

    def _look(self) -> None:
        """Nothing came in since the last look: the cores may sleep again."""
        if self._held is None:
            return
        if self._stirred:
            self._stirred = False
            self._loop.call_later(self._for_s, self._look)
        else:
            self.release()

    def release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            os.close(held)
