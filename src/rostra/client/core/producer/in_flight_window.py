"""What all producers of a client have under way together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.client.core.effects import ProducerNumber

if TYPE_CHECKING:
    from rostra.client.core.producer.producer_state import ProducerState

CLIENT_WINDOW_BYTES = 32 << 20
"""Of all producers of a client, however many there are, unless one of them was given a larger window of its own."""


class InFlightWindow:
    def __init__(self) -> None:
        self.bytes = 0
        """Closed into batches and not settled."""
        self.bytes_max = CLIENT_WINDOW_BYTES
        self.waiting: dict[ProducerNumber, ProducerState] = {}
        """Those that were told to wait until there is room, for whichever reason."""
        self._blocked = False
        """Somebody waits for this bound: who waits for one of its own looks again by itself."""

    def raise_limit(self, own_bytes_max: int) -> None:
        """A producer may use what it was given as its own window."""
        self.bytes_max = max(self.bytes_max, own_bytes_max)

    def full(self) -> bool:
        if self.bytes < self.bytes_max:
            return False
        self._blocked = True
        return True

    def has_space(self) -> bool:
        """A quarter is free, as each producer waits for in its own window."""
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
        """There may be room now for those that wait."""
        for producer in list(self.waiting.values()):
            producer.drained()
