"""A node as a child process, which can be killed and restarted on the same files and port."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal
from urllib.request import urlopen

import msgspec

from rostra import blocking
from rostra.fabric.registry import DEFAULT
from rostra.testing.metrics import Metrics
from rostra.testing.reserved_address import ReservedAddresses

READY_PATIENCE_S = 120.0
STOP_PATIENCE_S = 60.0
METRICS_PATIENCE_S = 60.0
POLL_S = 0.005
LOG_LINES_SHOWN = 20


class NotReady(RuntimeError):
    """The child did not start; the message has the end of its log."""


class NodeLogLine(msgspec.Struct, frozen=True):
    """One line of a node's log. The fields of the event are in `about`."""

    event: str
    level: str
    about: dict[str, object]


class ProcessNode:
    """`rostra serve` in its own process. Created by `rostra.testing.process_node`.

    >>> with rostra.testing.process_node() as node:  # doctest: +SKIP
    ...     node.sigkill()
    ...     node.restart()
    """

    def __init__(
        self,
        directory: Path,
        *,
        listen: str = "127.0.0.1:0",
        peer_listen: str = "127.0.0.1:0",
        join: tuple[str, ...] = (),
        fabric: str = DEFAULT,
        fabric_settings: Mapping[str, int | bool | str] | None = None,
        fsync: Literal["commit", "never"] = "commit",
        metrics: str = "off",
        arguments: tuple[str, ...] = (),
    ) -> None:
        self.directory = directory
        self.log_file = directory / "node.log"
        self.address = ""
        """Where clients connect; kept across restarts."""
        self.peer_address = ""
        """Where other nodes connect; kept across restarts."""
        self.metrics_address = ""
        self._listen = listen
        self._peer_listen = peer_listen
        self.join = join
        self._fabric = fabric
        self._fabric_settings = dict(fabric_settings or {})
        self._fsync = fsync
        self._metrics = metrics
        self._arguments = arguments
        self._child: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._reserved = ReservedAddresses()

    # --- start and stop ---

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Returns when clients can connect."""
        if not self.running:
            self.launch()
            self.await_ready()

    def launch(self) -> None:
        """Begins to start and does not wait."""
        if self.running:
            return
        self._release()
        # Settings of the user who runs the tests must not affect them.
        settings = self.directory / "node.toml"
        settings.write_text("")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ROSTRA_")}
        self._log_start = self.log_file.stat().st_size if self.log_file.exists() else 0
        with self.log_file.open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "rostra.testing.child", *self._command(settings)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                # Ctrl-C in a terminal reaches the parent only, which then stops the child.
                start_new_session=True,
            )

    def _command(self, settings: Path) -> list[str]:
        return [
            *("serve", "--config", str(settings), "--log-level", "info"),
            *("--data", str(self.directory / "node")),
            *("--listen", self.address or self._reserved.fix(self._listen)),
            *("--peer-listen", self.peer_address or self._reserved.fix(self._peer_listen)),
            *(part for address in self.join for part in ("--join", address)),
            *("--metrics", self.metrics_address or self._reserved.fix(self._metrics)),
            *("--fabric", self._fabric),
            *(part for name, value in self._fabric_settings.items() for part in ("--set", f"{name}={value}")),
            *("--fsync", self._fsync),
            *self._arguments,
        ]

    def await_ready(self) -> None:
        deadline = time.monotonic() + READY_PATIENCE_S
        while time.monotonic() < deadline:
            for line in self.log_lines(self._log_start):
                if line.event == "listening":
                    self.address = str(line.about["address"])
                    self.peer_address = str(line.about["peers"])
                    self.metrics_address = str(line.about.get("metrics", ""))
                    return
            if not self.running:
                break
            time.sleep(POLL_S)
        self.sigkill()
        raise NotReady(f"the node did not start; its log ends with:\n{self.end_of_log()}")

    def pause(self) -> None:
        """Sends SIGSTOP: the node hangs, its connections stay open."""
        self.interrupt(signal.SIGSTOP)

    def resume(self) -> None:
        self.interrupt(signal.SIGCONT)

    def kill(self) -> None:
        self.sigkill()

    def sigkill(self) -> None:
        """Sends SIGKILL and waits until the process has ended."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._release()

    def interrupt(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Sends a signal and does not wait."""
        if self._child is not None:
            self._child.send_signal(number)

    def wait(self, patience_s: float = STOP_PATIENCE_S) -> int:
        """Waits until the process has ended; returns its exit code."""
        assert self._child is not None
        code = self._child.wait(patience_s)
        self._release()
        return code

    def stop(self, patience_s: float = STOP_PATIENCE_S) -> int:
        """Stops gracefully and returns the exit code; kills a node that does not stop in time."""
        if self._child is None:
            return 0
        self._child.terminate()
        self.resume()
        try:
            return self.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.sigkill()
            return -signal.SIGKILL

    def restart(self) -> None:
        """Starts again on the same files and port, after a graceful stop unless it was killed."""
        self.stop()
        self.start()

    def _release(self) -> None:
        if self._child is not None and self._child.poll() is not None:
            if self._child.stdin is not None:
                self._child.stdin.close()
            self._child = None

    # --- use ---

    def client(self, *, name: str = "rostra-testing") -> blocking.Client:
        """A blocking client of this node."""
        return blocking.connect(self.address, name=name)

    def metrics(self) -> Metrics:
        """The current metrics of the node, which must have a metrics address."""
        with urlopen(f"http://{self.metrics_address}/metrics", timeout=METRICS_PATIENCE_S) as answer:
            return Metrics(answer.read().decode())

    # --- log ---

    def log_lines(self, log_start: int = 0) -> list[NodeLogLine]:
        """The lines that the node has logged, from a position in the file on."""
        if not self.log_file.exists():
            return []
        with self.log_file.open("rb") as log:
            log.seek(log_start)
            # A last line without its end is still being written.
            return [found for line in log.read().split(b"\n")[:-1] if (found := _log_line(line)) is not None]

    def end_of_log(self) -> str:
        written = self.log_file.read_text(errors="replace") if self.log_file.exists() else ""
        return "\n".join(written.splitlines()[-LOG_LINES_SHOWN:])


def _log_line(line: bytes) -> NodeLogLine | None:
    try:
        about = msgspec.json.decode(line, type=dict[str, object])
    except msgspec.DecodeError:
        return None
    return NodeLogLine(str(about.pop("event", "")), str(about.pop("level", "")), about)
