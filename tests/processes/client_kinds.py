"""Lets one test run with every kind of client: the asyncio client is wrapped into blocking calls.

Results of the asyncio client are wrapped, too: a coroutine is run to its end, `async with` becomes `with`, `async for`
becomes `for`. So one test body proves that the clients have the same names and behaviour.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import uvloop

import rostra
from rostra import blocking

CLIENT_KINDS = ("blocking", "asyncio", "uvloop")


class BlockingProxy:
    """Calls an object of the asyncio client from blocking code, on a loop of the test."""

    def __init__(self, loop: asyncio.AbstractEventLoop, inner: Any) -> None:
        self._loop = loop
        self._inner = inner

    def _wrapped(self, value: Any) -> Any:
        if inspect.iscoroutine(value):
            return self._wrapped(self._loop.run_until_complete(value))
        if value is self._inner:
            return self
        if hasattr(value, "__aenter__") or hasattr(value, "__aiter__"):
            return BlockingProxy(self._loop, value)
        return value

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if not inspect.isroutine(value):
            return value

        def called(*given: Any, **named: Any) -> Any:
            return self._wrapped(value(*given, **named))

        return called

    def __enter__(self) -> Any:
        return self._wrapped(self._inner.__aenter__())

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run_until_complete(self._inner.__aexit__(exc_type, error, trace))

    def __iter__(self) -> Iterator[Any]:
        iterator = self._inner.__aiter__()
        while True:
            try:
                yield self._loop.run_until_complete(anext(iterator))
            except StopAsyncIteration:
                return

    def __next__(self) -> Any:
        return self._loop.run_until_complete(anext(self._inner))


@contextmanager
def connected(kind: str, *addresses: str, **options: Any) -> Iterator[Any]:
    """A client of this kind, closed at the end."""
    if kind == "blocking":
        with blocking.connect(*addresses, **options) as client:
            yield client
        return
    loop = uvloop.new_event_loop() if kind == "uvloop" else asyncio.new_event_loop()
    try:
        with BlockingProxy(loop, rostra.connect(*addresses, **options)) as client:
            yield client
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
