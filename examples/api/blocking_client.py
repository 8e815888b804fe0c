"""Examples of the blocking client for docs/api.md. The docstring of each names what it is an example of."""

import rostra
import rostra.blocking


def connecting(address: str) -> None:
    """blocking, connect, Client"""
    client: rostra.blocking.Client = rostra.blocking.connect(address)
    with client:
        print(client.connected, client.publish("orders", b"milk").offset)


def producing(address: str) -> None:
    """Producer"""
    with rostra.blocking.connect(address) as client:
        producer: rostra.blocking.Producer = client.producer("clicks", linger_ms=5)
        with producer:
            producer.send_many([b"%d" % number for number in range(10_000)])
            producer.flush()
            print(producer.acked)


def subscribing(address: str) -> None:
    """Subscription"""
    with rostra.blocking.connect(address) as client:
        client.publish("prices", b"10")
        subscription: rostra.blocking.Subscription = client.subscribe("prices", start=rostra.Last(1))
        with subscription:
            print(next(subscription).value)


def sharing(address: str) -> None:
    """NamedSubscription"""
    with rostra.blocking.connect(address) as client:
        client.publish("payments", b"100")
        subscription: rostra.blocking.NamedSubscription = client.subscribe(
            "payments", name="shipping", start="earliest", tries=3, dead_letter="payments/failed"
        )
        with subscription:
            record = subscription.receive(timeout=5.0)
            if record is not None:
                with record:
                    print(record.value)


def users(address: str) -> None:
    """User"""
    with rostra.blocking.connect(address) as client:
        bob: rostra.blocking.User = client.create_user("bob")
        with bob:
            bob.subscribe("news")
            bob.publish("news", b"hello")
            record = bob.receive(timeout=5.0)
            print(record.value if record is not None else "nothing yet")
        bob.destroy()
