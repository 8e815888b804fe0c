"""A user for asyncio: a queue of the records of its topics."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from rostra.client.aio.named_subscription import NamedSubscription
from rostra.client.core.effects import Ack
from rostra.client.core.options import MemberSettings, check_group_name
from rostra.errors import AlreadySubscribed, GroupExists, NotSubscribed, UnknownGroup
from rostra.model.decode import Record
from rostra.model.ids import check_topic_name

if TYPE_CHECKING:
    from rostra.client.aio.client import Client
    from rostra.client.aio.driver import AsyncioDriver

NO_TOPIC = "_nothing"
"""Stands for no topic, because joining a group without topics keeps those it has."""


class User:
    """A named subscription with a simple interface: subscribe and receive. Made by `Client.create_user`.

    Records of its topics wait in the cluster, as long as the topics retain them. `receive` takes the next record and
    acknowledges it.

    >>> async with await client.create_user("alice") as alice:  # doctest: +SKIP
    ...     await alice.subscribe("news")
    ...     record = await alice.receive(timeout=5.0)
    """

    def __init__(self, client: Client, driver: AsyncioDriver, name: str) -> None:
        check_group_name(name)
        self._client = client
        self._driver = driver
        self.name = name
        self._subscription: NamedSubscription | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def create(self) -> None:
        """Create the user; `GroupExists` if it exists."""
        try:
            await self._client.describe_subscription(self.name)
        except UnknownGroup:
            await self._join_briefly()
        else:
            raise GroupExists(self.name)

    async def topics(self) -> tuple[str, ...]:
        """The topics it is subscribed to."""
        described = await self._client.describe_subscription(self.name)
        return tuple(topic for topic in described.patterns if topic != NO_TOPIC)

    async def subscribe(self, topic: str) -> None:
        """Queue the topic's records for the user from now on. The topic is created if it does not exist."""
        check_topic_name(topic)
        described = await self._client.describe_subscription(self.name)
        if topic in described.patterns:
            raise AlreadySubscribed(self.name, topic)
        topics = [known for known in described.patterns if known != NO_TOPIC]
        await self._stop_receiving()
        await self._join_briefly(*topics, topic)
        if any(part.topic == topic for part in described.partitions):
            # It was subscribed before: skip what was published since then.
            await self._client.reset_subscription(self.name, "latest", topic=topic)

    async def unsubscribe(self, topic: str) -> None:
        """Receive nothing more of the topic, including records that wait."""
        topics = await self.topics()
        if topic not in topics:
            raise NotSubscribed(self.name, topic)
        await self._stop_receiving()
        await self._join_briefly(*([known for known in topics if known != topic] or [NO_TOPIC]))

    async def publish(self, topic: str, value: bytes | None) -> Ack:
        """The same as `Client.publish`."""
        return await self._client.publish(topic, value)

    async def receive(self, timeout: float | None = None) -> Record | None:
        """Take the next record, or wait for one; None if none came within that many seconds."""
        if self._subscription is None:
            await self._client.describe_subscription(self.name)
            self._subscription = await self._open_subscription().open()
        record = await self._subscription.receive(timeout)
        if record is not None:
            record.ack()
        return record

    async def close(self) -> None:
        """Stop receiving; the remaining records wait."""
        await self._stop_receiving()

    async def destroy(self) -> None:
        """Delete the user and its queue."""
        await self._stop_receiving()
        await self._client.delete_subscription(self.name)

    # --- group membership ----------------------------------------------------------------------------

    def _open_subscription(self, *topics: str) -> NamedSubscription:
        return NamedSubscription(self._driver, self.name, MemberSettings(topics, "latest", alter=bool(topics)))

    async def _join_briefly(self, *topics: str) -> None:
        """Join and leave, which stores these topics and where they start."""
        async with self._open_subscription(*topics):
            pass

    async def _stop_receiving(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.unsubscribe()
