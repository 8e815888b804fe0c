"""Clients and nodes raise typed errors only."""

from __future__ import annotations

from rostra.errors import RemoteError, RostraError
from rostra.simulator.history import History


def check(history: History) -> list[str]:
    found = list(history.exceptions)
    told = [failed.error for failed in history.failed.values()]
    told += [subscription.ended for subscription in history.subscriptions if subscription.ended is not None]
    found += [f"an untyped error was reported: {error!r}" for error in told if not isinstance(error, RostraError)]
    found += [f"an unknown error was reported: {error!r}" for error in told if isinstance(error, RemoteError)]
    return found
