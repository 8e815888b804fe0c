"""The client without its sockets: what happens and the time go in, effects come out.

The asyncio client, the blocking client and the simulator drive the same core.
"""

from rostra.client.core.core import Core

__all__ = ["Core"]
