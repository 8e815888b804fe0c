"""A user for blocking code: a queue of the records of its topics."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from rostra.client.blocking.named_subscription import NamedSubscription
from rostra.client.core.effects import Ack
from rostra.client.core.options import MemberSettings, check_group_name
from rostra.errors import AlreadySubscribed, GroupExists, NotSubscribed, UnknownGroup
from rostra.model.decode import Record
from rostra.model.ids import check_topic_name

if TYPE_CHECKING:
    from rostra.client.blocking.client import Client
    from rostra.client.blocking.driver import BlockingDriver

NO_TOPIC = "_nothing"
"""Stands for no topic, because joining a group without topics keeps those it has."""


class User:
    """A named subscription with a simple interface: subscribe and receive. Made by `Client.create_user`.

    Records of its topics wait in the cluster, as long as the topics retain them. `receive` takes the next record and
    acknowledges it.

    >>> with client.create_user("alice") as alice:  # doctest: +SKIP
    ...     alice.subscribe("news")
    ...     record = alice.receive(timeout=5.0)
    """

    def __init__(self, client: Client, driver: BlockingDriver, name: str) -> None:
        check_group_name(name)
        self._client = client
        self._driver = driver
        self.name = name
        self._subscription: NamedSubscription | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def create(self) -> None:
        """Create the user; `GroupExists` if it exists."""
        try:
            self._client.describe_subscription(self.name)
        except UnknownGroup:
            self._join_briefly()
        else:
            raise GroupExists(self.name)

    def topics(self) -> tuple[str, ...]:
        """The topics it is subscribed to."""
        described = self._client.describe_subscription(self.name)
        return tuple(topic for topic in described.patterns if topic != NO_TOPIC)

    def subscribe(self, topic: str) -> None:
        """Queue the topic's records for the user from now on. The topic is created if it does not exist."""
        check_topic_name(topic)
        described = self._client.describe_subscription(self.name)
        if topic in described.patterns:
            raise AlreadySubscribed(self.name, topic)
        topics = [known for known in described.patterns if known != NO_TOPIC]
        self._stop_receiving()
        self._join_briefly(*topics, topic)
        if any(part.topic == topic for part in described.partitions):
            # It was subscribed before: skip what was published since then.
            self._client.reset_subscription(self.name, "latest", topic=topic)

    def unsubscribe(self, topic: str) -> None:
        """Receive nothing more of the topic, including records that wait."""
        topics = self.topics()
        if topic not in topics:
            raise NotSubscribed(self.name, topic)
        self._stop_receiving()
        self._join_briefly(*([known for known in topics if known != topic] or [NO_TOPIC]))

    def publish(self, topic: str, value: bytes | None) -> Ack:
        """The same as `Client.publish`."""
        return self._client.publish(topic, value)

    def receive(self, timeout: float | None = None) -> Record | None:
        """Take the next record, or wait for one; None if none came within that many seconds."""
        if self._subscription is None:
            self._client.describe_subscription(self.name)
            self._subscription = self._open_subscription().open()
        record = self._subscription.receive(timeout)
        if record is not None:
            record.ack()
        return record

    def close(self) -> None:
        """Stop receiving; the remaining records wait."""
        self._stop_receiving()

    def destroy(self) -> None:
        """Delete the user and its queue."""
        self._stop_receiving()
        self._client.delete_subscription(self.name)

    # --- group membership ----------------------------------------------------------------------------

    def _open_subscription(self, *topics: str) -> NamedSubscription:
        return NamedSubscription(self._driver, self.name, MemberSettings(topics, "latest", alter=bool(topics)))

    def _join_briefly(self, *topics: str) -> None:
        """Join and leave, which stores these topics and where they start."""
        with self._open_subscription(*topics):
            pass

    def _stop_receiving(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.unsubscribe()
