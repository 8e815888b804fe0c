"""The reason why a connection failed, with the same text in both clients."""

from __future__ import annotations

import os


def reason_of(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.errno:
        # Resolver errors have negative numbers, which strerror does not know.
        return os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)
    return str(error)
