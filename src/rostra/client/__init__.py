"""Clients of Rostra: asyncio in `aio`, blocking sockets in `blocking`, the pure part of both in `core`."""
