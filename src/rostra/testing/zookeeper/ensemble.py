"""Several ZooKeeper servers that form one service."""

from __future__ import annotations

import time
from pathlib import Path

from rostra.testing.process import NotReady
from rostra.testing.reserved_address import ReservedAddress
from rostra.testing.zookeeper.server import POLL_S, READY_PATIENCE_S, ZookeeperServer

SERVERS = 3


class ZookeeperEnsemble:
    """Servers on reserved ports of the loopback interface, whose data is not synced to disk.

    `with ZookeeperEnsemble(directory) as ensemble:` starts them and kills them at the end.
    """

    def __init__(self, directory: Path, *, servers: int = SERVERS, tick_ms: int = 500) -> None:
        self._reserved = [ReservedAddress() for _ in range(3 * servers)]
        ports = [int(reserved.address.rpartition(":")[2]) for reserved in self._reserved]
        quorum = {
            number: f"127.0.0.1:{ports[servers + index]}:{ports[2 * servers + index]}"
            for index, number in enumerate(range(1, servers + 1))
        }
        self.servers = tuple(
            ZookeeperServer(
                directory / f"zookeeper-{number}",
                ports[index],
                tick_ms=tick_ms,
                quorum=quorum if servers > 1 else None,
                number=number,
                fsync=False,
            )
            for index, number in enumerate(quorum)
        )
        for server in self.servers:
            server.directory.mkdir(parents=True, exist_ok=True)

    @property
    def hosts(self) -> str:
        """The addresses of all servers, as clients take them."""
        return ",".join(server.address for server in self.servers)

    def start(self) -> None:
        """Starts all servers that do not run; returns when each answers clients."""
        for server in self.servers:
            if not server.running:
                server.launch()
        for server in self.servers:
            server.await_ready()

    def sigkill(self) -> None:
        for server in self.servers:
            server.sigkill()

    def leader(self) -> ZookeeperServer:
        """The server that leads now; waits for an election that is under way."""
        deadline = time.monotonic() + READY_PATIENCE_S
        while time.monotonic() < deadline:
            for server in self.servers:
                if server.running and server.mode() in ("leader", "standalone"):
                    return server
            time.sleep(POLL_S)
        raise NotReady(f"the ZooKeeper servers elected no leader:\n{self.servers[0].end_of_log()}")

    def wipe(self) -> None:
        """Kills all servers and removes their data; `start` begins an empty service."""
        self.sigkill()
        for server in self.servers:
            server.wipe()

    def save(self, directory: Path) -> None:
        """Kills all servers and copies their data."""
        self.sigkill()
        for server in self.servers:
            server.save(directory / server.directory.name)

    def restore(self, directory: Path) -> None:
        """Kills all servers and puts back the data that `save` copied."""
        self.sigkill()
        for server in self.servers:
            server.restore(directory / server.directory.name)

    def __enter__(self) -> ZookeeperEnsemble:
        try:
            self.start()
        except BaseException:
            self.sigkill()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.sigkill()
