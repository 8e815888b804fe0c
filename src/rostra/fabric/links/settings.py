"""Settings of the links between nodes."""

from __future__ import annotations

import msgspec


class LinkSettings(msgspec.Struct, frozen=True):
    heartbeat_ms: int = 50

    @property
    def heartbeat_us(self) -> int:
        return self.heartbeat_ms * 1000
