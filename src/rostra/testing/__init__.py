"""Real nodes for tests: inside this process, or as a child process that can be killed.

>>> import rostra.testing
>>> with rostra.testing.node() as node, node.client() as client:
...     client.publish("greetings", b"hello").offset
0

With pytest the fixture `rostra_node` gives one too. Nothing here is imported before it is used, so that installing
Rostra does not slow down the start of pytest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rostra.broker.settings import BrokerSettings
    from rostra.testing.embedded import EmbeddedNode
    from rostra.testing.process import ProcessNode

__all__ = ["node", "process_node"]


@contextmanager
def node(
    *,
    directory: str | Path | None = None,
    listen: str = "127.0.0.1:0",
    fsync: Literal["commit", "never"] = "commit",
    metrics: str = "",
    stop_deadline_ms: int = 10_000,
    limits: BrokerSettings | None = None,
    log_level: str = "warning",
) -> Iterator[EmbeddedNode]:
    """A node inside this process, on a thread of its own, with real sockets and real files.

    Its directory is a temporary one unless named; its port is a free one unless named.
    """
    from rostra.testing.embedded import EmbeddedNode
    from rostra.testing.places import a_directory

    with a_directory(directory) as place:
        started = EmbeddedNode(
            place,
            listen=listen,
            fsync=fsync,
            metrics=metrics,
            stop_deadline_ms=stop_deadline_ms,
            limits=limits,
            log_level=log_level,
        )
        started.start()
        try:
            yield started
        finally:
            started.stop()


@contextmanager
def process_node(
    *,
    directory: str | Path | None = None,
    listen: str = "127.0.0.1:0",
    fsync: Literal["commit", "never"] = "commit",
    metrics: str = "off",
    arguments: tuple[str, ...] = (),
) -> Iterator[ProcessNode]:
    """A node as a child process, which ends with the block, and with this process however that ends."""
    from rostra.testing.places import a_directory
    from rostra.testing.process import ProcessNode

    with a_directory(directory) as place:
        started = ProcessNode(place, listen=listen, fsync=fsync, metrics=metrics, arguments=arguments)
        try:
            started.start()
            yield started
        finally:
            started.stop()
