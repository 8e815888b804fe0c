"""The client for blocking code, with the same names as the one for asyncio.

>>> with rostra.blocking.connect() as client:  # doctest: +SKIP
...     client.publish("orders", b"one more")
"""

from rostra.client.blocking import Client, connect
from rostra.client.blocking_named import NamedSubscription
from rostra.client.blocking_producer import Producer
from rostra.client.blocking_subscription import Subscription
from rostra.client.blocking_user import User

__all__ = ["Client", "NamedSubscription", "Producer", "Subscription", "User", "connect"]
