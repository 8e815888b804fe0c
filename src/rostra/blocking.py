"""The client for blocking code, with the same names as the one for asyncio.

>>> with rostra.blocking.connect() as client:  # doctest: +SKIP
...     client.publish("orders", b"one more")
"""

from rostra.client.blocking.client import Client, connect
from rostra.client.blocking.named_subscription import NamedSubscription
from rostra.client.blocking.producer import Producer
from rostra.client.blocking.subscription import Subscription
from rostra.client.blocking.user import User

__all__ = ["Client", "NamedSubscription", "Producer", "Subscription", "User", "connect"]
