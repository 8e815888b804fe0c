"""Redis streams with an append-only file, synced on every write or once a second."""

import time
from collections.abc import Iterable, Sequence
from itertools import repeat

import redis

from benchmarks import fetch
from benchmarks.contender import Durability, Endpoint, Pace, PacedContender, Stage, chunks
from benchmarks.records import Inbox
from benchmarks.servers import Servers, free_port

PIPELINE_RECORDS = 500
PIPELINE_BYTES = 1 << 20
READ_RECORDS = 2000

SERVER_CONF = """\
bind 127.0.0.1
port {port}
dir {folder}
daemonize no
save ""
appendonly yes
appendfsync {appendfsync}
auto-aof-rewrite-percentage 0
"""


class RedisStreams(PacedContender):
    def __init__(self, *, appendfsync: str) -> None:
        self._appendfsync = appendfsync
        self.name = f"Redis streams, {appendfsync}"
        always = appendfsync == "always"
        self.durability = Durability.FSYNC if always else Durability.FSYNC_LATER
        self.settings = (
            f"appendonly yes, appendfsync {appendfsync}, no snapshots, no rewrite",
            f"redis-py with hiredis, pipelines of {PIPELINE_RECORDS} XADD without MULTI",
            f"XREAD BLOCK COUNT {READ_RECORDS}",
        )

    def start(self, servers: Servers) -> Endpoint:
        root = fetch.debian_root("redis-server")
        folder = servers.new_folder("redis")
        port = free_port()
        conf = folder / "redis.conf"
        conf.write_text(SERVER_CONF.format(port=port, folder=folder, appendfsync=self._appendfsync))
        pid = servers.start(
            [root / "usr/bin/redis-server", conf],
            folder,
            port,
            environment={"LD_LIBRARY_PATH": fetch.library_path(root)},
        )
        return Endpoint(port=port, pids=(pid,), folder=folder)

    def publish(self, endpoint: Endpoint, topic: str, stage: Stage, messages: Iterable[bytes]) -> None:
        client = redis.Redis(port=endpoint.port)
        client.ping()
        stage.ready()
        stage.wait_for_start()
        for chunk in chunks(messages, PIPELINE_RECORDS, PIPELINE_BYTES):
            pipeline = client.pipeline(transaction=False)
            for message in chunk:
                pipeline.execute_command("XADD", topic, "*", "v", message)
            pipeline.execute()
        stage.finished()

    def publish_paced(self, endpoint: Endpoint, topic: str, stage: Stage, pace: Pace) -> None:
        client = redis.Redis(port=endpoint.port)
        client.ping()
        stage.ready()
        stage.wait_for_start()
        for value in pace.values():
            client.execute_command("XADD", topic, "*", "v", value)
        stage.finished()

    def subscribe(self, endpoint: Endpoint, topic: str, stage: Stage, inboxes: Sequence[Inbox]) -> None:
        clients = [redis.Redis(port=endpoint.port) for _ in inboxes]
        positions = list(repeat(b"0", len(inboxes)))
        stage.ready()
        deadline = time.monotonic() + stage.timeout_s
        while not all(inbox.is_full() for inbox in inboxes) and time.monotonic() < deadline:
            for at, (client, inbox) in enumerate(zip(clients, inboxes, strict=True)):
                answer = client.execute_command(
                    "XREAD", "BLOCK", 1000, "COUNT", READ_RECORDS, "STREAMS", topic, positions[at]
                )
                if answer:
                    entries = entries_of(answer)
                    inbox.extend([fields[b"v"] for _, fields in entries])
                    positions[at] = entries[-1][0]
        stage.finished()


def entries_of(answer: object) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """The client answers in one of two shapes, by protocol version."""
    match answer:
        case dict():
            (((entries,),),) = (tuple(answer.values()),)
        case [[_, entries]]:
            pass
        case _:
            raise TypeError(f"unexpected answer to XREAD: {answer!r:.200}")
    return entries  # type: ignore[no-any-return]
