"""One ZooKeeper server as a child process, which can be killed, wiped, and restored from a copy of its files."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from rostra.testing.process import NotReady
from rostra.testing.zookeeper.class_path import find_class_path, find_java

READY_PATIENCE_S = 120.0
POLL_S = 0.05
LOG_LINES_SHOWN = 20
MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
JAVA_FLAGS = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

# The shell holds the server: it kills it when the pipe on stdin is closed, so also when this process ends by a signal.
_GUARD = '"$@" </dev/null & child=$!; read -r _; kill -9 $child; wait $child'


class ZookeeperServer:
    """A server on a fixed port of the loopback interface. Its directory holds configuration, data and log."""

    def __init__(
        self,
        directory: Path,
        port: int,
        *,
        tick_ms: int = 500,
        quorum: Mapping[int, str] | None = None,
        number: int = 0,
        class_path: str | None = None,
        fsync: bool = True,
    ) -> None:
        self.directory = directory
        self.port = port
        self.address = f"127.0.0.1:{port}"
        self._tick_ms = tick_ms
        self._quorum = dict(quorum or {})
        """Of an ensemble: where each server talks to the others, by number."""
        self._number = number
        self._class_path = class_path
        self._fsync = fsync
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    # --- start and stop ---

    def launch(self) -> None:
        """Begins to start and does not wait."""
        command = [find_java(), *JAVA_FLAGS, "-Dzookeeper.admin.enableServer=false"]
        if not self._fsync:
            command.append("-Dzookeeper.forceSync=no")
        command += ["-cp", find_class_path(self._class_path), MAIN_CLASS, str(self._write_configuration())]
        with (self.directory / "server.log").open("ab") as log:
            self._child = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "zookeeper", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start(self) -> None:
        """Returns when the server answers clients; one of an ensemble needs the majority for that."""
        if not self.running:
            self.launch()
            self.await_ready()

    def await_ready(self) -> None:
        deadline = time.monotonic() + READY_PATIENCE_S
        while time.monotonic() < deadline and self._guarded():
            if self.mode() is not None:
                return
            time.sleep(POLL_S)
        self.sigkill()
        raise NotReady(f"the ZooKeeper server did not start; its log ends with:\n{self.end_of_log()}")

    def _guarded(self) -> bool:
        return self.running and "Error: Could not find or load main class" not in self.end_of_log()

    def sigkill(self) -> None:
        """Sends SIGKILL to the server and waits until it has ended."""
        if self._child is not None:
            assert self._child.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()
            self._child.wait()
            self._child = None

    def wait(self) -> None:
        """Waits until somebody ends it."""
        if self._child is not None:
            self._child.wait()

    # --- files ---

    def wipe(self) -> None:
        """Removes all data of a server that is not running."""
        assert not self.running
        shutil.rmtree(self.data, ignore_errors=True)

    def save(self, copy: Path) -> None:
        """Copies the data of a server that is not running."""
        assert not self.running
        shutil.copytree(self.data, copy)

    def restore(self, copy: Path) -> None:
        """Puts back the data that `save` copied."""
        self.wipe()
        shutil.copytree(copy, self.data)

    def _write_configuration(self) -> Path:
        self.data.mkdir(parents=True, exist_ok=True)
        settings = {
            "tickTime": self._tick_ms,
            "dataDir": self.data,
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            "maxClientCnxns": 0,
        }
        if self._quorum:
            settings |= {"initLimit": 100, "syncLimit": 50}
            settings |= {f"server.{number}": where for number, where in self._quorum.items()}
            (self.data / "myid").write_text(f"{self._number}\n")
        written = self.directory / "zoo.cfg"
        written.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return written

    # --- state ---

    def mode(self) -> str | None:
        """`standalone`, `leader` or `follower`; None while it serves no clients."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"srvr")
                answer = b"".join(iter(lambda: connection.recv(4096), b"")).decode(errors="replace")
        except OSError:
            return None
        return next((line[6:].strip() for line in answer.splitlines() if line.startswith("Mode: ")), None)

    def end_of_log(self) -> str:
        log = self.directory / "server.log"
        written = log.read_text(errors="replace") if log.exists() else ""
        return "\n".join(written.splitlines()[-LOG_LINES_SHOWN:])
