"""Notation of Unix socket addresses."""

from __future__ import annotations

UNIX = "unix:"
"""Prefix of the path of a Unix socket where an address is expected."""
UNIX_PATH_BYTES_MAX = 107
"""The limit of Linux."""
