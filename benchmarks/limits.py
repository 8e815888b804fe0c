"""Measures limits of this machine: bytes through a Python relay, and fdatasync."""

import os
import socket
import sys
import time
from pathlib import Path

from benchmarks.contender import Endpoint, Stage
from benchmarks.harness import RoleOutcome, Trial, run_trial
from benchmarks.servers import Servers, free_port

CHUNK_BYTES = 64 << 10
SYNCS = 300


class RelayLimit:
    """64 KiB chunks from one process through a uvloop relay to another."""

    def __init__(self, servers: Servers) -> None:
        folder = servers.new_folder("relay")
        self._inlet_port, self._outlet_port = free_port(), free_port()
        program = Path(__file__).with_name("relay_server.py")
        pid = servers.start(
            [sys.executable, program, str(self._inlet_port), str(self._outlet_port)],
            folder,
            self._inlet_port,
        )
        self.endpoint = Endpoint(port=self._inlet_port, pids=(pid,), folder=folder)

    def trial(self, total_bytes: int) -> Trial:
        """A trial whose records are bytes."""
        chunk = os.urandom(CHUNK_BYTES)

        def publisher(stage: Stage) -> RoleOutcome:
            with socket.create_connection(("127.0.0.1", self._inlet_port)) as connection:
                stage.ready()
                stage.wait_for_start()
                for _ in range(total_bytes // CHUNK_BYTES):
                    connection.sendall(chunk)
                stage.finished()
            return RoleOutcome()

        def subscriber(stage: Stage) -> RoleOutcome:
            buffer = bytearray(1 << 20)
            received = 0
            with socket.create_connection(("127.0.0.1", self._outlet_port)) as connection:
                connection.settimeout(stage.timeout_s)
                stage.ready()
                while received < total_bytes and (arrived := connection.recv_into(buffer)):
                    received += arrived
                stage.finished()
            return RoleOutcome(received=received)

        return run_trial(publisher, [subscriber], self.endpoint.pids)


def fdatasync_delays_s(folder: Path) -> list[float]:
    """The time of fdatasync after each 64 KiB append."""
    chunk = os.urandom(CHUNK_BYTES)
    descriptor = os.open(folder / "fdatasync", os.O_CREAT | os.O_WRONLY)
    delays_s = []
    try:
        for _ in range(SYNCS):
            os.write(descriptor, chunk)
            began = time.perf_counter()
            os.fdatasync(descriptor)
            delays_s.append(time.perf_counter() - began)
    finally:
        os.close(descriptor)
    return delays_s
