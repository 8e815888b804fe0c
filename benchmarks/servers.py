"""Server processes of one benchmark run: on loopback, in a temporary folder, never left behind."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

STOP_TIMEOUT_S = 10.0
LOG = "server.log"


class ServerFailed(Exception):
    """A server ended or stayed silent while it should have come up; carries the end of its log."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def port_answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Servers:
    """Starts servers and stops every one of them when the `with` block ends, however it ends."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []
        self._folder = Path(tempfile.mkdtemp(prefix="rostra-bench-"))
        self._folders = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # A second Ctrl-C must not leave half of the servers running.
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self.stop_all()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
            signal.signal(signal.SIGINT, previous)

    def new_folder(self, name: str) -> Path:
        self._folders += 1
        folder = self._folder / f"{self._folders:03d}-{name}"
        folder.mkdir()
        return folder

    def start(
        self,
        command: Sequence[str | Path],
        folder: Path,
        port: int,
        *,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> int:
        """Start one server, wait until its port answers, and return its process id."""
        pid = self.launch(command, folder, environment=environment)
        try:
            self.await_port(pid, folder, port, time.monotonic() + timeout_s)
        except ServerFailed as error:
            raise ServerFailed(f"{Path(command[0]).name}: {error}") from None
        return pid

    def launch(
        self, command: Sequence[str | Path], folder: Path, *, environment: Mapping[str, str] | None = None
    ) -> int:
        """Begin to start one server and do not wait for it."""
        with (folder / LOG).open("wb") as log:
            # A session of its own: Ctrl-C reaches this program alone, which stops its servers.
            process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        self._running.append(process)
        return process.pid

    def await_port(self, pid: int, folder: Path, port: int, deadline: float) -> None:
        """Until a server that was launched answers."""
        (process,) = (process for process in self._running if process.pid == pid)
        while not port_answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise ServerFailed(log_end(folder))
            time.sleep(0.05)

    def stop(self, pids: Sequence[int], patience_s: float = STOP_TIMEOUT_S) -> None:
        """Stop these servers and all they started, and forget them: ask all, then insist."""
        stopping = [process for process in reversed(self._running) if process.pid in pids]
        for process in stopping:
            signal_session(process.pid, signal.SIGTERM)
        deadline = time.monotonic() + patience_s
        for process in stopping:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        for process in stopping:
            # The session id is the pid, so children that forked away are reached too.
            signal_session(process.pid, signal.SIGKILL)
            process.wait()
        self._running = [process for process in self._running if process.pid not in pids]

    def stop_all(self) -> None:
        self.stop([process.pid for process in self._running])


def signal_session(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def log_end(folder: Path) -> str:
    lines = (folder / LOG).read_text(errors="replace").splitlines()
    return " | ".join(lines[-5:]) or "silent"
