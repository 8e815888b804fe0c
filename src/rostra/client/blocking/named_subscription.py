"""A named subscription for blocking code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from threading import Condition
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rostra.client.background import Background, MemberHandle
from rostra.client.core.groups.assigned_partition import GroupRecord
from rostra.client.core.options import MemberSettings
from rostra.errors import ClientClosed, RostraError

if TYPE_CHECKING:
    from rostra.client.blocking.driver import BlockingDriver


def background_of(driver: BlockingDriver) -> Background:
    with driver.lock:
        if driver.core.closed:
            raise ClientClosed()
        if driver.background is not None and driver.background.broken:
            driver.background.finish()
            driver.background = None
        if driver.background is None:
            driver.background = Background(driver.core.options, driver.overheard.append)
        return driver.background


class NamedSubscription:
    """Records of a subscription whose position the cluster keeps. Made by `Client.subscribe` with a `name`.

    All who use one name share its partitions. Each record is handed out until it is acknowledged: `with record:` does
    that at the end of the block, and hands it out again if the block fails. Several threads may take from one.

    >>> with client.subscribe("orders/#", name="billing") as records:  # doctest: +SKIP
    ...     for record in records:
    ...         with record:
    ...             bill(record.value)
    """

    def __init__(self, driver: BlockingDriver, name: str, settings: MemberSettings) -> None:
        self._driver = driver
        self.name = name
        self._settings = settings
        self._desk: MemberHandle | None = None
        self._news = Condition()
        self._over = False

    # --- opening and closing -------------------------------------------------------------------------

    def open(self) -> Self:
        """Become a member; `with` and the first iteration do it too."""
        if self._desk is None:
            background = background_of(self._driver)
            self._news = Condition(background.driver.lock)
            desk = self._desk = MemberHandle(background, self._woken)
            try:
                background.begin(background.join(self.name, self._settings, desk)).result()
            except BaseException:
                self._over = True
                raise
        return self

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A block that failed has a reason of its own, which must not be hidden by ours.
        with suppress(*(() if kind is None else (RostraError,))):
            self.unsubscribe()

    def unsubscribe(self) -> None:
        """Leave the others to it. When this returns, what was acknowledged is kept; the name stays."""
        if self._desk is None or self._over:
            return
        with self._news:
            self._over = True
            self._news.notify_all()
        if not self._driver.core.closed:
            background = self._desk.background
            background.begin(background.leave(self._desk)).result()

    # --- reading -------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[GroupRecord]:
        return self

    def __next__(self) -> GroupRecord:
        record = self.receive()
        if record is None:
            raise StopIteration
        return record

    def receive(self, timeout: float | None = None) -> GroupRecord | None:
        """The next record, or None when none came within that many seconds, or there will be none.

        >>> record = subscription.receive(timeout=0.5)  # doctest: +SKIP
        """
        desk = self.open()._desk
        assert desk is not None
        due = None if timeout is None else monotonic() + timeout
        while True:
            self._driver.retell()
            with self._news:
                if self._over:
                    return None
                record = desk.take()
                if record is not None:
                    return record
                if desk.error is not None:
                    self._over = True
                    if isinstance(desk.error, ClientClosed):
                        return None
                    raise desk.error
                wait = None if due is None else due - monotonic()
                if wait is not None and wait <= 0:
                    return None
                self._news.wait(wait)

    def _woken(self) -> None:
        with self._news:
            self._news.notify_all()

    # --- where it stands -----------------------------------------------------------------------------

    @property
    def topics(self) -> dict[str, dict[int, int]]:
        """What this member holds, by topic and partition, and the first offset of each that is not acknowledged."""
        return {} if self._desk is None else self._desk.topics

    @property
    def lag(self) -> int:
        """How many offsets lie between its positions and the ends, as last heard, in what this member holds."""
        return 0 if self._desk is None else self._desk.lag
