"""Fails a test during which an event loop swallowed an exception, which it only logs otherwise."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


class _Collected(logging.Handler):
    """Exceptions in callbacks, and of tasks whose result nobody awaited, in whatever thread of this process."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []
        self.setFormatter(logging.Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


@pytest.fixture(autouse=True)
def loop_errors() -> Iterator[None]:
    collected = _Collected()
    logger = logging.getLogger("asyncio")
    logger.addHandler(collected)
    yield
    logger.removeHandler(collected)
    assert not collected.texts, "\n".join(collected.texts)
