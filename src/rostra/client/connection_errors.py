"""Why a connection failed, in the same words in both clients."""

from __future__ import annotations

import os


def reason_of(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.errno:
        # Names that cannot be resolved have numbers of their own, below zero.
        return os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)
    return str(error)
