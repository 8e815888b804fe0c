"""Keeping cores of the machine awake while bytes flow, for those who pay power for a shorter delay."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from structlog.stdlib import BoundLogger

SWITCH = Path("/dev/cpu_dma_latency")
"""Linux wakes every core within the microseconds written here, for as long as the writer holds it open."""
AT_ONCE = bytes(4)
"""No delay at all, as the 32-bit number that the system expects."""
CORES = Path("/sys/devices/system/cpu")
CORE_SWITCH = "power/pm_qos_resume_latency_us"
"""The same for one core. What is written there stays, whatever becomes of the writer."""
CORE_AT_ONCE = "n/a"
"""No delay at all; a plain 0 means that any will do."""
GUARD = 'read -r _; while [ $# -gt 0 ]; do printf %s "$2" > "$1"; shift 2; done'


class Switch(Protocol):
    """What keeps cores awake. Both raise OSError where that is not allowed."""

    def hold(self) -> None:
        """Said again while it is held: somebody else may have let go of what both want."""

    def release(self) -> None: ...


class AllCores:
    """The system lets go of it with the process, however that ends."""

    def __init__(self, switch: Path = SWITCH) -> None:
        self._switch = switch
        self._held: int | None = None

    def __str__(self) -> str:
        return str(self._switch)

    def hold(self) -> None:
        if self._held is None:
            self._held = os.open(self._switch, os.O_WRONLY | os.O_CLOEXEC)
            os.write(self._held, AT_ONCE)

    def release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            os.close(held)


class SomeCores:
    """So many of the cores that this process may use. A machine whose cores all stay awake may have to share them: what
    is gained in the middle is lost by the slowest.

    A core that is awake already is somebody else's, and left to them. For a process that is killed, a child that
    outlives it puts everything back.
    """

    def __init__(self, count: int, cores: Path = CORES) -> None:
        chosen = sorted(os.sched_getaffinity(0))[:count]
        self._switches = [cores / f"cpu{core}" / CORE_SWITCH for core in chosen]
        self._before: dict[Path, str] = {}
        self._guard: subprocess.Popen[bytes] | None = None

    def __str__(self) -> str:
        return ", ".join(map(str, self._switches))

    def hold(self) -> None:
        found = {switch: switch.read_text(encoding="ascii").strip() for switch in self._switches}
        asleep = {switch: before for switch, before in found.items() if before != CORE_AT_ONCE}
        if not asleep:
            return
        # The guard first, which must know of all of them: a kill may come at any moment.
        known, self._before = self._before, {**self._before, **asleep}
        if self._before != known or self._guard is None:
            self._guard_anew()
        for switch in asleep:
            switch.write_text(CORE_AT_ONCE, encoding="ascii")

    def _guard_anew(self) -> None:
        """Its input ends when this process does. A session of its own: Ctrl-C is not meant for it."""
        self._dismiss_guard()
        pairs = [text for switch, before in self._before.items() for text in (str(switch), before)]
        command = ["/bin/sh", "-c", GUARD, "sh", *pairs]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def _dismiss_guard(self) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.kill()
            guard.communicate()

    def release(self) -> None:
        before, self._before = self._before, {}
        for switch, text in before.items():
            switch.write_text(text, encoding="ascii")
        self._dismiss_guard()


def switch_of(cores: int) -> Switch:
    """That of so many cores; of all, if 0."""
    return SomeCores(cores) if cores else AllCores()


class StayAwake:
    """Waking a core that sleeps costs more than all that a node does for a record. A core that is idle but awake takes
    no time from any program, which a node that polls does; it only takes power.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, for_ms: int, log: BoundLogger, make_switch: Callable[[], Switch]
    ) -> None:
        self._loop = loop
        self._for_s = for_ms / 1000
        self._log = log
        self._switch = make_switch() if for_ms else None
        self._held = False
        self._stirred = False

    def stir(self) -> None:
        """Bytes came in."""
        self._stirred = True
        if self._switch is not None and not self._held:
            self._hold(self._switch)

    def _hold(self, switch: Switch) -> None:
        try:
            switch.hold()
        except OSError as error:
            self.release()
            self._switch = None
            self._log.warning("cores may sleep", reason=str(error), remedy=f"let the node write to {switch}")
        else:
            self._held = True
            self._loop.call_later(self._for_s, self._look)

    def _look(self) -> None:
        """Nothing came in since the last look: the cores may sleep again."""
        if not self._held or self._switch is None:
            return
        if self._stirred:
            self._stirred = False
            self._hold(self._switch)
        else:
            self.release()

    def release(self) -> None:
        self._held = False
        if self._switch is not None:
            with suppress(OSError):
                self._switch.release()
