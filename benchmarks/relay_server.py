"""A relay that looks at nothing: bytes in at one port, out at another. Run as a program.

No broker written in Python can pass bytes on faster than this on the same machine.
"""

import asyncio
import sys
from typing import cast

import uvloop

BUFFER_BYTES = 1 << 20
WRITE_BUFFER_BYTES = 4 << 20


class Outlet(asyncio.Protocol):
    """The receiving side; it stops the inlet while the receiver is behind."""

    def __init__(self, relay: "Relay") -> None:
        self._relay = relay

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._relay.outlet = cast("asyncio.Transport", transport)
        self._relay.outlet.set_write_buffer_limits(WRITE_BUFFER_BYTES)

    def pause_writing(self) -> None:
        if self._relay.inlet is not None:
            self._relay.inlet.pause_reading()

    def resume_writing(self) -> None:
        if self._relay.inlet is not None:
            self._relay.inlet.resume_reading()


class Inlet(asyncio.BufferedProtocol):
    """The sending side."""

    def __init__(self, relay: "Relay") -> None:
        self._relay = relay
        self._buffer = memoryview(bytearray(BUFFER_BYTES))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._relay.inlet = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._relay.outlet is not None:
            self._relay.outlet.write(bytes(self._buffer[:nbytes]))


class Relay:
    inlet: asyncio.Transport | None = None
    outlet: asyncio.Transport | None = None


async def serve(inlet_port: int, outlet_port: int) -> None:
    relay = Relay()
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Outlet(relay), "127.0.0.1", outlet_port)
    # The inlet listens last: its port is the one that tells the relay is up.
    inlets = await loop.create_server(lambda: Inlet(relay), "127.0.0.1", inlet_port)
    await inlets.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), int(sys.argv[2])))
