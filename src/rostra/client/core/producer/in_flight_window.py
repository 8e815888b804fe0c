"""The limit on the bytes that all producers of a client have in flight together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.client.core.effects import ProducerNumber

if TYPE_CHECKING:
    from rostra.client.core.producer.producer_state import ProducerState

CLIENT_WINDOW_BYTES = 32 << 20
"""The limit for all producers of a client, unless one of them was given a larger window."""


class InFlightWindow:
    def __init__(self) -> None:
        self.bytes = 0
        """In closed batches that are not settled."""
        self.bytes_max = CLIENT_WINDOW_BYTES
        self.waiting: dict[ProducerNumber, ProducerState] = {}
        """Producers that wait for `Resume`, for whichever reason."""
        self._blocked = False
        """A producer waits for this limit. Those that wait for their own window check it themselves."""

    def raise_limit(self, own_bytes_max: int) -> None:
        """Allow at least the window that a producer was given."""
        self.bytes_max = max(self.bytes_max, own_bytes_max)

    def full(self) -> bool:
        if self.bytes < self.bytes_max:
            return False
        self._blocked = True
        return True

    def has_space(self) -> bool:
        """Whether a quarter is free, the same share as each producer waits for in its own window."""
        if self.bytes * 4 <= self.bytes_max * 3:
            return True
        self._blocked = True
        return False

    def settled(self, count: int) -> None:
        self.bytes -= count
        if self._blocked and self.bytes * 4 <= self.bytes_max * 3:
            self._blocked = False
            self.wake()

    def wake(self) -> None:
        """Resume the waiting producers that have space now."""
        for producer in list(self.waiting.values()):
            producer.drained()
