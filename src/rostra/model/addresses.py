"""How addresses are written that are no host and port."""

from __future__ import annotations

UNIX = "unix:"
"""Before the path of a socket in the file system, where an address is expected."""
UNIX_PATH_BYTES_MAX = 107
"""What the system takes."""
