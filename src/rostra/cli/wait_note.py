"""Tells, after a second, what a command waits for, and again whenever that changes.

The reason is the last one that a node gave. Without one the cluster is asked over a connection of its own, which also a
node without a majority answers. It looks again after growing pauses, since the first reason may be a guess.
"""

from __future__ import annotations

from threading import Lock, Timer

from rostra.cli.output import print_note
from rostra.errors import RostraError

PATIENCE_S = 1.0
PAUSE_MAX_S = 8.0
ASK_MS = 2_000


class WaitNote:
    """`begin` when a wait begins or enters its next phase, `done` when it ends.

    `reason` may come at any time before `done`: a record that is not acknowledged may be reported while more are sent.
    """

    def __init__(self, addresses: tuple[str, ...]) -> None:
        self._addresses = addresses
        self._lock = Lock()
        self._timer: Timer | None = None
        self._reason = ""
        self._printed = ""

    def begin(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._look_after(PATIENCE_S)

    def reason(self, reason: str) -> None:
        self._reason = reason

    def done(self) -> None:
        with self._lock:
            timer, self._timer = self._timer, None
            self._reason = self._printed = ""
        if timer is not None:
            timer.cancel()

    def _look_after(self, pause_s: float) -> None:
        self._timer = timer = Timer(pause_s, lambda: self._look(timer, pause_s))
        timer.daemon = True
        timer.start()

    def _look(self, timer: Timer, pause_s: float) -> None:
        reason = self._reason or self._ask()
        with self._lock:
            if self._timer is not timer:
                return
            if reason != self._printed:
                self._printed = reason
                print_note(f"note: {reason}; still waiting (Ctrl-C ends)")
            self._look_after(min(2 * pause_s, PAUSE_MAX_S))

    def _ask(self) -> str:
        from rostra import blocking

        shown = ", ".join(self._addresses)
        try:
            with blocking.connect(
                *self._addresses, name="rostra-cli-wait", connect_timeout_ms=ASK_MS, call_timeout_ms=ASK_MS
            ) as client:
                state = client.describe_cluster()
        except RostraError as error:
            return f"no answer from {shown}: {error.summary}"
        down = [node.name for node in state.nodes if not node.alive]
        if 2 * len(down) >= len(state.nodes) and down:
            return f"{len(down)} of {len(state.nodes)} members are down ({', '.join(down)}): no majority"
        return f"no answer from {shown} yet"
