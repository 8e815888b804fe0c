"""What all producers of a client have under way together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.client.core.effects import ProducerNumber

if TYPE_CHECKING:
    from rostra.client.core.producing import Producing

TOGETHER_BYTES_MAX = 32 << 20
"""Of all producers of a client, however many there are. What one was given as its own window it may use alone."""


class Window:
    def __init__(self) -> None:
        self.bytes = 0
        """Closed into batches and not settled."""
        self.waiting: dict[ProducerNumber, Producing] = {}
        """Those that were told to wait until there is room."""
        self._was_full = False

    def full_for(self, own_bytes_max: int) -> bool:
        """Whether a producer with that window of its own must wait for the others."""
        if self.bytes < max(own_bytes_max, TOGETHER_BYTES_MAX):
            return False
        self._was_full = True
        return True

    def has_room_for(self, own_bytes_max: int) -> bool:
        return self.bytes * 4 <= max(own_bytes_max, TOGETHER_BYTES_MAX) * 3

    def settled(self, count: int) -> None:
        self.bytes -= count
        if self._was_full and self.has_room_for(0):
            self._was_full = False
            self.wake()

    def wake(self) -> None:
        """There may be room now for those that wait."""
        for producing in list(self.waiting.values()):
            producing.drained()
