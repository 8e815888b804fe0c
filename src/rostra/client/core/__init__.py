"""The sans-IO part of the client: inputs and the time go in, effects come out.

The asyncio client, the blocking client and the simulator drive the same core.
"""

from rostra.client.core.core import Core

__all__ = ["Core"]
