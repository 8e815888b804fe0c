"""Rostra: one publish/subscribe system, five fabrics, a data pipeline on Spark.

>>> async with rostra.connect() as client:  # doctest: +SKIP
...     await client.publish("orders", b"one more")

`rostra.blocking.connect` gives the same without asyncio.
"""

from rostra.client import blocking
from rostra.client.aio import Client, connect
from rostra.client.aio_producer import Producer
from rostra.client.aio_subscription import Subscription
from rostra.client.core.delivered import Delivered
from rostra.client.core.effects import Ack, Acknowledged, TopicDescription
from rostra.client.core.events import (
    ClientEvent,
    Connected,
    Disconnected,
    MayDuplicate,
    Reconnected,
    Resent,
    Resubscribed,
)
from rostra.client.core.options import Last, Offset
from rostra.errors import RostraError
from rostra.model.decode import Record
from rostra.wire.messages import PartitionState, Topic, TopicSettings

__version__ = "0.1.0"

__all__ = [
    "Ack",
    "Acknowledged",
    "Client",
    "ClientEvent",
    "Connected",
    "Delivered",
    "Disconnected",
    "Last",
    "MayDuplicate",
    "Offset",
    "PartitionState",
    "Producer",
    "Reconnected",
    "Record",
    "Resent",
    "Resubscribed",
    "RostraError",
    "Subscription",
    "Topic",
    "TopicDescription",
    "TopicSettings",
    "blocking",
    "connect",
]
