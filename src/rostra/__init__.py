"""Rostra: durable publish/subscribe.

>>> async with rostra.connect() as client:  # doctest: +SKIP
...     await client.publish("orders", b"one more")

`rostra.blocking.connect` is the same client without asyncio.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rostra import blocking
    from rostra.client.aio.client import Client, connect
    from rostra.client.aio.named_subscription import NamedSubscription
    from rostra.client.aio.producer import Producer
    from rostra.client.aio.subscription import Subscription
    from rostra.client.aio.user import User
    from rostra.client.core.effects import (
        Ack,
        Acknowledged,
        SinkDecision,
        SubscriptionDescription,
        SubscriptionPartition,
        TopicDescription,
    )
    from rostra.client.core.events import (
        ClientEvent,
        Connected,
        DeadLettered,
        DeliveryPaused,
        Disconnected,
        LeaseExpired,
        MayDuplicate,
        MembershipLost,
        Reconnected,
        Redelivered,
        Resent,
        Resubscribed,
        Retrying,
        Skipped,
        TopicAppeared,
        TopicGone,
    )
    from rostra.client.core.groups.assigned_partition import GroupRecord
    from rostra.client.core.options import Last, Offset, Time
    from rostra.client.core.sink_requests import SinkTask
    from rostra.client.core.subscription.delivered_batch import DeliveredBatch
    from rostra.errors import RostraError
    from rostra.model.cluster import ClusterState, CopyState, NodeState, PlacedPartition
    from rostra.model.decode import Record
    from rostra.wire.groups import GroupMember, GroupSummary
    from rostra.wire.messages import PartitionState, PublisherState, Topic, TopicSettings
    from rostra.wire.sinks import StagedPart

__version__ = "0.1.0"

__all__ = [
    "Ack",
    "Acknowledged",
    "Client",
    "ClientEvent",
    "ClusterState",
    "Connected",
    "CopyState",
    "DeadLettered",
    "DeliveredBatch",
    "DeliveryPaused",
    "Disconnected",
    "GroupMember",
    "GroupRecord",
    "GroupSummary",
    "Last",
    "LeaseExpired",
    "MayDuplicate",
    "MembershipLost",
    "NamedSubscription",
    "NodeState",
    "Offset",
    "PartitionState",
    "PlacedPartition",
    "Producer",
    "PublisherState",
    "Reconnected",
    "Record",
    "Redelivered",
    "Resent",
    "Resubscribed",
    "Retrying",
    "RostraError",
    "SinkDecision",
    "SinkTask",
    "Skipped",
    "StagedPart",
    "Subscription",
    "SubscriptionDescription",
    "SubscriptionPartition",
    "Time",
    "Topic",
    "TopicAppeared",
    "TopicDescription",
    "TopicGone",
    "TopicSettings",
    "User",
    "blocking",
    "connect",
]

_MODULES = {
    "Ack": "rostra.client.core.effects",
    "Acknowledged": "rostra.client.core.effects",
    "Client": "rostra.client.aio.client",
    "ClientEvent": "rostra.client.core.events",
    "ClusterState": "rostra.model.cluster",
    "Connected": "rostra.client.core.events",
    "CopyState": "rostra.model.cluster",
    "DeadLettered": "rostra.client.core.events",
    "DeliveryPaused": "rostra.client.core.events",
    "DeliveredBatch": "rostra.client.core.subscription.delivered_batch",
    "Disconnected": "rostra.client.core.events",
    "GroupMember": "rostra.wire.groups",
    "GroupSummary": "rostra.wire.groups",
    "Redelivered": "rostra.client.core.events",
    "GroupRecord": "rostra.client.core.groups.assigned_partition",
    "LeaseExpired": "rostra.client.core.events",
    "Last": "rostra.client.core.options",
    "MayDuplicate": "rostra.client.core.events",
    "MembershipLost": "rostra.client.core.events",
    "NamedSubscription": "rostra.client.aio.named_subscription",
    "NodeState": "rostra.model.cluster",
    "Offset": "rostra.client.core.options",
    "PartitionState": "rostra.wire.messages",
    "PlacedPartition": "rostra.model.cluster",
    "Producer": "rostra.client.aio.producer",
    "PublisherState": "rostra.wire.messages",
    "Reconnected": "rostra.client.core.events",
    "Record": "rostra.model.decode",
    "Resent": "rostra.client.core.events",
    "Resubscribed": "rostra.client.core.events",
    "Retrying": "rostra.client.core.events",
    "RostraError": "rostra.errors",
    "SinkDecision": "rostra.client.core.effects",
    "SinkTask": "rostra.client.core.sink_requests",
    "Skipped": "rostra.client.core.events",
    "StagedPart": "rostra.wire.sinks",
    "Subscription": "rostra.client.aio.subscription",
    "SubscriptionDescription": "rostra.client.core.effects",
    "SubscriptionPartition": "rostra.client.core.effects",
    "Time": "rostra.client.core.options",
    "Topic": "rostra.wire.messages",
    "TopicAppeared": "rostra.client.core.events",
    "TopicDescription": "rostra.client.core.effects",
    "TopicGone": "rostra.client.core.events",
    "TopicSettings": "rostra.wire.messages",
    "User": "rostra.client.aio.user",
    "blocking": "rostra.blocking",
    "connect": "rostra.client.aio.client",
}
"""The module of each public name. Imported when first used: `rostra --help` and nodes need none of them."""


if not TYPE_CHECKING:
    # Hidden from type checkers, which would otherwise accept any name.
    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = import_module(_MODULES[name])
        found: object = module if name == "blocking" else getattr(module, name)
        globals()[name] = found
        return found
