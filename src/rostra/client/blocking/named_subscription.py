"""A named subscription for blocking code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from threading import Condition
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rostra.client.background_thread import BackgroundThread, MemberHandle
from rostra.client.core.groups.assigned_partition import GroupRecord
from rostra.client.core.options import MemberSettings
from rostra.errors import ClientClosed, RostraError

if TYPE_CHECKING:
    from rostra.client.blocking.driver import BlockingDriver


def background_of(driver: BlockingDriver) -> BackgroundThread:
    with driver.lock:
        if driver.core.closed:
            raise ClientClosed()
        if driver.background is not None and driver.background.failed:
            driver.background.finish()
            driver.background = None
        if driver.background is None:
            driver.background = BackgroundThread(driver.core.options, driver.background_events.append)
        return driver.background


class NamedSubscription:
    """A subscription whose position the cluster stores, as a consumer group. Made by `Client.subscribe` with a `name`.

    All members of a name share its partitions. Each record is delivered until it is acknowledged: `with record:` does
    that at the end of the block; if the block raises, the record is delivered again. Several threads may receive.

    >>> with client.subscribe("orders/#", name="billing") as records:  # doctest: +SKIP
    ...     for record in records:
    ...         with record:
    ...             bill(record.value)
    """

    def __init__(self, driver: BlockingDriver, name: str, settings: MemberSettings) -> None:
        self._driver = driver
        self.name = name
        self._settings = settings
        self._handle: MemberHandle | None = None
        self._condition = Condition()
        self._over = False

    # --- opening and closing -------------------------------------------------------------------------

    def open(self) -> Self:
        """Join the group; `with` and the first iteration do it, too."""
        if self._handle is None:
            background = background_of(self._driver)
            self._condition = Condition(background.driver.lock)
            handle = self._handle = MemberHandle(background, self._on_wake)
            try:
                background.submit(background.join(self.name, self._settings, handle)).result()
            except BaseException:
                self._over = True
                raise
        return self

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The exception of the block must not be hidden by ours.
        with suppress(*(() if kind is None else (RostraError,))):
            self.unsubscribe()

    def unsubscribe(self) -> None:
        """Leave the group. When this returns, all acknowledgements are stored; the name and its position stay."""
        if self._handle is None or self._over:
            return
        with self._condition:
            self._over = True
            self._condition.notify_all()
        if not self._driver.core.closed:
            background = self._handle.background
            background.submit(background.leave(self._handle)).result()

    # --- reading -------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[GroupRecord]:
        return self

    def __next__(self) -> GroupRecord:
        record = self.receive()
        if record is None:
            raise StopIteration
        return record

    def receive(self, timeout: float | None = None) -> GroupRecord | None:
        """The next record; None if none came within that many seconds, or after the end.

        >>> record = subscription.receive(timeout=0.5)  # doctest: +SKIP
        """
        handle = self.open()._handle
        assert handle is not None
        due = None if timeout is None else monotonic() + timeout
        while True:
            self._driver.forward_background_events()
            with self._condition:
                if self._over:
                    return None
                record = handle.take()
                if record is not None:
                    return record
                if handle.error is not None:
                    self._over = True
                    if isinstance(handle.error, ClientClosed):
                        return None
                    raise handle.error
                wait = None if due is None else due - monotonic()
                if wait is not None and wait <= 0:
                    return None
                self._condition.wait(wait)

    def _on_wake(self) -> None:
        with self._condition:
            self._condition.notify_all()

    # --- position ------------------------------------------------------------------------------------

    @property
    def topics(self) -> dict[str, dict[int, int]]:
        """The partitions of this member by topic and number, with the first offset that is not acknowledged."""
        return {} if self._handle is None else self._handle.topics

    @property
    def lag(self) -> int:
        """The number of offsets between the positions and the ends, as last reported, in this member's partitions."""
        return 0 if self._handle is None else self._handle.lag
