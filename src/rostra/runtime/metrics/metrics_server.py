"""A small HTTP server: metrics for Prometheus, and the state of the node for probes.

`/health` is 200 while the process works, also with problems that need no restart, which it lists; 503 if only a restart
helps. `/ready` is 200 while the node accepts publishes and works with its cluster; otherwise 503 with the reasons.
"""

from __future__ import annotations

import asyncio

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from rostra.runtime.node_health import NodeHealth

REQUEST_BYTES_MAX = 8192
TIMEOUT_S = 5.0


class MetricsServer:
    """Answers one GET per connection; anything else is 404 or a closed connection."""

    def __init__(self, registry: CollectorRegistry, health: NodeHealth) -> None:
        self._registry = registry
        self._health = health
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> str:
        self._server = await asyncio.start_server(self._answer, host, port, limit=REQUEST_BYTES_MAX)
        bound = self._server.sockets[0].getsockname()
        return f"{bound[0]}:{bound[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ", 2)[1] if head.startswith(b"GET ") else b""
            writer.write(self._response(path))
            await writer.drain()
        except (TimeoutError, OSError, EOFError, asyncio.LimitOverrunError, IndexError):
            pass
        finally:
            writer.close()

    def _response(self, path: bytes) -> bytes:
        if path == b"/metrics":
            status, kind, body = "200 OK", CONTENT_TYPE_LATEST, generate_latest(self._registry)
        elif path == b"/health":
            status, kind, body = _state(self._health.problems(), failed=bool(self._health.fatal()))
        elif path == b"/ready":
            problems = self._health.problems()
            status, kind, body = _state(problems, failed=bool(problems))
        else:
            status, kind, body = "404 Not Found", "text/plain", b"try /metrics, /health or /ready\n"
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        return head.encode() + body


def _state(problems: list[str], *, failed: bool) -> tuple[str, str, bytes]:
    status = "503 Service Unavailable" if failed else "200 OK"
    body = "".join(f"{problem}\n" for problem in problems) or "ok\n"
    return status, "text/plain; charset=utf-8", body.encode()
