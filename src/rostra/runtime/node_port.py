"""What sockets and disk workers see of their node."""

from __future__ import annotations

from typing import Any, Protocol

from rostra.broker.api import BrokerInput
from rostra.model.ids import NodeId
from rostra.runtime.metrics.counters import Counters


class NodePort(Protocol):
    """Takes inputs for the broker. `end_turn` sends and stores what the inputs of a turn caused."""

    @property
    def counters(self) -> Counters: ...
    @property
    def log(self) -> Any: ...
    @property
    def closed(self) -> bool:
        """True once the node takes no more input; what arrives from then on is dropped."""

    def name_of(self, node: NodeId) -> str:
        """The name of a member, its address if it has none, or its id if it is not known."""

    def peer_named(self, node: NodeId, name: str) -> None:
        """A peer has said in its handshake what it is called."""

    def step(self, given: BrokerInput) -> None: ...
    def end_turn(self) -> None: ...
    def extend_polling(self) -> None:
        """Bytes have arrived and were handled; more may follow soon."""
