"""The pause before a retry."""

from __future__ import annotations

from random import Random

from rostra.client.core.options import Options


class Backoff:
    """Exponential backoff with jitter, so that the clients of a lost node do not reconnect all at once."""

    def __init__(self, options: Options, random: Random) -> None:
        self._options = options
        self._random = random

    def pause_us(self, failures: int) -> int:
        options = self._options
        full_ms = min(options.backoff_ms << min(failures, 16), options.backoff_ms_max)
        return int(full_ms * 1000 * (0.5 + self._random.random() / 2))
