"""Redis streams on three servers: a master and two replicas, WAIT before a record counts as acknowledged."""

from collections.abc import Iterable
from pathlib import Path

import redis

from benchmarks import fetch
from benchmarks.contender import Durability, Endpoint, Pace, Stage, chunks
from benchmarks.peers.redis_streams import READ_RECORDS, SERVER_CONF, RedisStreams
from benchmarks.servers import Servers, free_port
from benchmarks.trio import Launch, node_folders, start_together, wait_until

TRANSACTION_RECORDS = 4000
"""Records before each WAIT, which holds its connection up: the best of those tried."""

TRANSACTION_BYTES = 4 << 20

REPLICATION_CONF = """\
repl-diskless-sync-delay 0
repl-backlog-size 256mb
"""


class RedisReplicas(RedisStreams):
    """`WAIT 2` counts all three servers, `WAIT 1` a majority.

    A replica with appendfsync always answers WAIT after the fsync: it writes what it owes to its log before it writes
    to its connections. WAITAOF, which promises the same, came with Redis 7.2, and Debian has an older one.
    """

    def __init__(self, *, wait: int) -> None:
        super().__init__(appendfsync="always")
        self._wait = wait
        self.name = f"Redis, 3 servers, WAIT {wait}"
        self.durability = Durability.ALL_FSYNC if wait == 2 else Durability.MAJORITY_FSYNC
        self.settings = (
            "master and two replicas, appendonly yes, appendfsync always on all, no snapshots, no rewrite",
            f"redis-py with hiredis, {TRANSACTION_RECORDS} XADD in a pipelined MULTI, then WAIT {wait}",
            f"XREAD BLOCK COUNT {READ_RECORDS} at the master, repl-backlog-size 256mb",
        )

    def start(self, servers: Servers) -> Endpoint:
        root = fetch.debian_root("redis-server")
        folder = servers.new_folder("redis-3")
        folders = node_folders(folder)
        ports = [free_port() for _ in folders]
        launches = [self._launch(root, own, port, ports[0]) for own, port in zip(folders, ports, strict=True)]
        pids = start_together(servers, launches)
        return Endpoint(port=ports[0], pids=pids, folder=folder, ports=tuple(ports))

    def _launch(self, root: Path, folder: Path, port: int, master_port: int) -> Launch:
        conf = folder / "redis.conf"
        following = "" if port == master_port else f"replicaof 127.0.0.1 {master_port}\n"
        own = SERVER_CONF.format(port=port, folder=folder, appendfsync=self._appendfsync)
        conf.write_text(own + REPLICATION_CONF + following)
        environment = {"LD_LIBRARY_PATH": fetch.library_path(root)}
        return Launch([root / "usr/bin/redis-server", conf], folder, port, environment)

    def create(self, endpoint: Endpoint, topic: str) -> None:
        """The stream makes itself; this waits until both replicas follow."""
        client = redis.Redis(port=endpoint.port)
        wait_until(lambda: following(client) == 2, "two replicas that follow")
        client.close()

    def publish(self, endpoint: Endpoint, topic: str, stage: Stage, messages: Iterable[bytes]) -> None:
        client = redis.Redis(port=endpoint.port)
        client.ping()
        stage.ready()
        stage.wait_for_start()
        for chunk in chunks(messages, TRANSACTION_RECORDS, TRANSACTION_BYTES):
            pipeline = client.pipeline(transaction=False)
            # Without MULTI each server would fsync for every 16 KiB that it reads from a connection.
            pipeline.execute_command("MULTI")
            for message in chunk:
                pipeline.execute_command("XADD", topic, "*", "v", message)
            pipeline.execute_command("EXEC")
            pipeline.execute_command("WAIT", self._wait, 0)
            *_, stored, replicas = pipeline.execute()
            self._require_copies(len(stored) == len(chunk), replicas)
        stage.finished()

    def publish_paced(self, endpoint: Endpoint, topic: str, stage: Stage, pace: Pace) -> None:
        client = redis.Redis(port=endpoint.port)
        client.ping()
        stage.ready()
        stage.wait_for_start()
        for value in pace.values():
            pipeline = client.pipeline(transaction=False)
            pipeline.execute_command("XADD", topic, "*", "v", value)
            pipeline.execute_command("WAIT", self._wait, 0)
            stored, replicas = pipeline.execute()
            self._require_copies(bool(stored), replicas)
        stage.finished()

    def _require_copies(self, is_stored: bool, replicas: int) -> None:
        if not is_stored or replicas < self._wait:
            raise RuntimeError(f"{replicas} of {self._wait} replicas have the records")


def following(client: redis.Redis) -> int:
    state = client.info("replication")
    replicas = (state.get(f"slave{number}") for number in range(2))
    return sum(replica is not None and replica["state"] == "online" for replica in replicas)
