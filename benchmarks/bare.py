"""A connection without a client library: sends messages unchanged and counts answers."""

import socket
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self, TypeVar

from benchmarks.harness import TrialFailed
from rostra.wire.features import FEATURES
from rostra.wire.frames import FROM_NODE, FrameReader, encode
from rostra.wire.messages import ClientMessage, Failed, Hello, NodeMessage, Welcome

PATIENCE_S = 60.0
FRAME_BYTES_MAX = 64 << 20
CHUNK_BYTES = 1 << 18

M = TypeVar("M")


class BareConnection:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._reader: FrameReader[NodeMessage] = FrameReader(FROM_NODE, FRAME_BYTES_MAX)
        self._heard: list[NodeMessage] = []
        self.ask([Hello(0, 1, 1, FEATURES)], Welcome)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def ask(self, messages: Iterable[ClientMessage], kind: type[M], each: int = 1) -> list[M]:
        """Sends all messages at once; returns one answer of this kind for each."""
        frames = [encode(message) for message in messages]
        self.send(frames)
        return self.hear(kind, each * len(frames))

    def send(self, frames: Sequence[bytes]) -> None:
        self._socket.sendall(b"".join(frames))

    def hear(self, kind: type[M], count: int) -> list[M]:
        """Returns the next answers of this kind; others are kept for later, but a refusal ends the trial."""
        found: list[M] = []
        while True:
            rest: list[NodeMessage] = []
            for message in self._heard:
                if isinstance(message, Failed):
                    raise TrialFailed(f"refused: {message}")
                if isinstance(message, kind) and len(found) < count:
                    found.append(message)
                else:
                    rest.append(message)
            self._heard = rest
            if len(found) == count:
                return found
            chunk = self._socket.recv(CHUNK_BYTES)
            if not chunk:
                raise TrialFailed(f"closed while waiting for {kind.__name__}")
            self._heard += [message for message, _ in self._reader.feed(chunk)]
