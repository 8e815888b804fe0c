"""One node and its current step: who it is, the time, and the effects so far. Every part of a fabric gets this."""

from __future__ import annotations

from rostra.fabric.api import Echo, FabricEffect, Now, Persist
from rostra.model.ids import NodeId

BOOT_BITS = 22
TOKEN_BITS = 40


class NodeContext:
    def __init__(self, node: NodeId, address: str, peer_address: str) -> None:
        self.node = node
        self.address = address
        """For clients."""
        self.peer_address = peer_address
        """For other nodes."""
        self.boot = 0
        """How often this node was started; durable before the first message leaves."""
        self.step_downs = 0
        """How often this node stopped owning a partition since the start."""
        self.now = Now(0, 0)
        self.out: list[FabricEffect] = []
        self._token = 0

    def begin_step(self, now: Now) -> None:
        self.now = now
        self.out = []

    def start(self, hard_states: dict[str, bytes], key: str) -> None:
        """Takes the next boot number. Its echo says that it is durable: otherwise two starts could share it."""
        self.boot = int.from_bytes(hard_states.get(key, b""), "little") + 1
        self.out.append(Persist(key, self.boot.to_bytes(8, "little"), (Echo(key, self.boot),)))

    def next_token(self) -> int:
        # Even tokens above 0: the broker's reads have odd tokens, a replay uses 0.
        self._token += 2
        return self._token

    def boot_token(self, token: int) -> int:
        """The token as sent to peers, unique across restarts, so that late answers are not mistaken."""
        return (self.boot % (1 << BOOT_BITS) << TOKEN_BITS) + token

    def own_token(self, sent: int) -> int | None:
        """The token behind one that a peer returned; None if it was sent before the last start."""
        token = sent % (1 << TOKEN_BITS)
        return token if sent == self.boot_token(token) else None
