"""Runs a node as a process until a signal stops it."""

from __future__ import annotations

import asyncio
import gc
import signal

import uvloop

from rostra.runtime import log_output
from rostra.runtime.disk.files import claim_descriptors
from rostra.runtime.node import Node
from rostra.runtime.settings import NodeSettings


def serve(settings: NodeSettings, *, log_level: str = "info", log_json: bool | None = None) -> bool:
    """Blocks until SIGINT or SIGTERM; a second signal stops at once. True if all pending work was finished."""
    log_output.configure(log_level, json=log_json)
    claim_descriptors()
    return uvloop.run(_serve(settings))


async def _serve(settings: NodeSettings) -> bool:
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    again = asyncio.Event()

    def ask() -> None:
        (again if asked.is_set() else asked).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ask)
    # A start with thousands of topics allocates much and frees little.
    gc.set_threshold(50_000, 20, 50)
    node = Node(settings)
    # A node that joins a cluster may wait long for an answer.
    starting = asyncio.create_task(node.start())
    asking = asyncio.create_task(asked.wait())
    await asyncio.wait([starting, asking], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
        return True
    starting.result()
    _freeze_startup_objects()
    await asking
    stopping = asyncio.create_task(node.stop())
    hurrying = asyncio.create_task(again.wait())
    await asyncio.wait([stopping, hurrying], return_when=asyncio.FIRST_COMPLETED)
    hurrying.cancel()
    if not stopping.done():
        node.abandon()
        stopping.cancel()
        return False
    return stopping.result()


def _freeze_startup_objects() -> None:
    """Excludes the objects of the start from garbage collection, which would pause delivery."""
    gc.collect()
    gc.freeze()
