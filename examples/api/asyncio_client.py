"""Examples of the asyncio client for docs/api.md. The docstring of each names what it is an example of."""

import asyncio

import rostra
from rostra.errors import InvalidArgument, TopicExists


async def connecting(address: str) -> None:
    """connect, Client"""
    client: rostra.Client = await rostra.connect(address)
    print(client.connected)
    await client.close()  # or: async with rostra.connect(address) as client


async def publishing(address: str) -> None:
    """Ack, Record, Client.publish"""
    async with rostra.connect(address) as client:
        ack: rostra.Ack = await client.publish("orders", b"milk", key=b"customer-7", headers=[("shop", b"north")])
        print(ack.topic, ack.partition, ack.offset)
        async with client.subscribe("orders", start=rostra.Offset(ack.offset)) as records:
            record: rostra.Record = await anext(aiter(records))
            print(record.offset, record.key, record.value, record.headers, record.timestamp_us)


async def producing(address: str) -> None:
    """Producer, Acknowledged, Client.producer"""

    def acknowledged(batch: rostra.Acknowledged) -> None:
        print(batch.partition, batch.offset, batch.count)

    async with rostra.connect(address) as client:
        producer: rostra.Producer = client.producer("clicks", on_ack=acknowledged)
        async with producer:
            for number in range(1_000):
                await producer.send(b"%d" % number)
            await producer.flush()
            print(producer.acked)


async def subscribing(address: str) -> None:
    """Subscription, Last, Offset, Time, Client.subscribe"""
    async with rostra.connect(address) as client:
        for number in range(3):
            await client.publish("prices", b"%d" % number)
        for start in (rostra.Last(2), rostra.Offset(2), rostra.Time(0)):
            subscription: rostra.Subscription = client.subscribe("prices", start=start)
            async with subscription:
                record = await anext(aiter(subscription))
                print(start, record.value)


async def reading_batches(address: str) -> None:
    """DeliveredBatch, Subscription.batches"""
    async with rostra.connect(address) as client:
        await client.publish("prices", b"10")
        async with client.subscribe("prices", start="earliest") as subscription:
            batch: rostra.DeliveredBatch
            async for batch in subscription.batches():
                print(batch.topic, batch.offsets(), batch.values())
                break


async def sharing(address: str) -> None:
    """NamedSubscription, GroupRecord"""
    async with rostra.connect(address) as client:
        await client.publish("payments", b"100")
        subscription: rostra.NamedSubscription = client.subscribe("payments", name="billing", start="earliest")
        async with subscription:
            record: rostra.GroupRecord | None = await subscription.receive(timeout=5.0)
            if record is not None:
                async with record:  # acknowledged at the end of the block; delivered again if it fails
                    print(record.value, record.tries)


async def positions(address: str) -> None:
    """SubscriptionDescription, SubscriptionPartition, GroupMember, GroupSummary"""
    async with rostra.connect(address) as client:
        async with client.subscribe("payments", name="audit", start="earliest"):
            described: rostra.SubscriptionDescription = await client.describe_subscription("audit")
            members: tuple[rostra.GroupMember, ...] = described.members
            held: tuple[rostra.SubscriptionPartition, ...] = described.partitions
            print(described.lag, len(members), [(part.topic, part.partition, part.offset) for part in held])
        summaries: tuple[rostra.GroupSummary, ...] = await client.list_subscriptions()
        print([(summary.name, summary.members) for summary in summaries])
        await client.reset_subscription("audit", "latest")
        await client.delete_subscription("audit")


async def topics(address: str) -> None:
    """Topic, TopicSettings, TopicDescription, PartitionState, PublisherState"""
    async with rostra.connect(address) as client:
        topic: rostra.Topic = await client.create_topic("alarms", partitions=2, ownership="exclusive")
        settings: rostra.TopicSettings = topic.settings
        print(topic.name, settings.partitions, settings.retention_ms)
        async with client.producer("alarms", strength=5) as producer:
            await producer.send(b"smoke", partition=0)
            await producer.flush()
            described: rostra.TopicDescription = await client.describe_topic("alarms")
            first: rostra.PartitionState = described.partitions[0]
            publishers: tuple[rostra.PublisherState, ...] = first.publishers
            print(first.first, first.commit, [publisher.strength for publisher in publishers])
        await client.alter_topic("alarms", retention_ms=3_600_000)
        await client.delete_topic("alarms")


async def clusters(address: str) -> None:
    """ClusterState, NodeState, PlacedPartition, CopyState"""
    async with rostra.connect(address) as client:
        await client.publish("orders", b"tea")
        state: rostra.ClusterState = await client.describe_cluster()
        nodes: tuple[rostra.NodeState, ...] = state.nodes
        print(state.fabric, [(node.name, node.alive) for node in nodes])
        placed: rostra.PlacedPartition = next(one for one in state.partitions if one.topic == "orders")
        copies: tuple[rostra.CopyState, ...] = placed.copies
        print(placed.commit, [copy.match for copy in copies])


async def users(address: str) -> None:
    """User"""
    async with rostra.connect(address) as client:
        alice: rostra.User = await client.create_user("alice")
        async with alice:
            await alice.subscribe("news")
            await alice.publish("news", b"hello")
            record = await alice.receive(timeout=5.0)
            print(record.value if record is not None else "nothing yet")
        await alice.destroy()


def told(event: rostra.ClientEvent) -> str:
    match event:
        case rostra.Connected(address) | rostra.Reconnected(address):
            return f"connected to {address}"
        case rostra.Disconnected(address, reason):
            return f"lost {address}: {reason}"
        case rostra.Resubscribed(topic, partition, offset) | rostra.Skipped(topic, partition, _, offset):
            return f"{topic}/{partition} continues at {offset}"
        case rostra.Retrying(topic, partition, reason) | rostra.MayDuplicate(topic, partition, _, reason):
            return f"{topic}/{partition}: {reason}"
        case rostra.Resent(topic, partition, _, records):
            return f"{records} records for {topic}/{partition} were sent again"
        case rostra.LeaseExpired(topic, partition):
            return f"the publisher of {topic}/{partition} was silent for too long"
        case rostra.TopicAppeared(topic) | rostra.TopicGone(topic):
            return f"{topic} was created or deleted"
        case rostra.Redelivered(topic, _, offset, tries) | rostra.DeadLettered(topic, _, offset, tries):
            return f"the record at {offset} of {topic} failed {tries} times"
        case rostra.DeliveryPaused(name, unacknowledged):
            return f"{name} waits for the acknowledgement of {unacknowledged} records"
        case rostra.MembershipLost(name, reason):
            return f"{name} joined again: {reason}"


async def events(address: str) -> None:
    """ClientEvent, Connected, Disconnected, Reconnected, Resubscribed, Skipped, Resent, MayDuplicate, Retrying,
    LeaseExpired, TopicAppeared, TopicGone, Redelivered, DeadLettered, DeliveryPaused, MembershipLost
    """
    async with rostra.connect(address, on_event=lambda event: print(told(event))) as client:
        await client.publish("orders", b"bread")


async def failures(address: str) -> None:
    """RostraError"""
    async with rostra.connect(address) as client:
        await client.create_topic("returns")
        try:
            await client.create_topic("returns")
        except TopicExists as error:
            print(error.topic, error.retryable, error)
        text: object = "no bytes"
        try:
            await client.publish("returns", text)  # type: ignore[arg-type]
        except InvalidArgument as error:
            print(error)  # value must be bytes, not str; use text.encode()
        except rostra.RostraError as error:
            print("any other error of Rostra:", error)


async def without_waiting(address: str) -> None:
    """Producer.send_nowait"""
    async with rostra.connect(address) as client, client.producer("clicks") as producer:
        producer.send_nowait(b"one")
        await asyncio.sleep(0)
        await producer.flush()
