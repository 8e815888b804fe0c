"""The gate between hard state and messages: a message leaves only when the hard state it depends on is durable.

`flush` ends every step. If hard state changed, it is written, and the messages of the step follow it; until it is
durable inputs are deferred, in order, so that every message depends on durable state only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rostra.fabric.api import Buffer, Echo, FabricEffect, Persist, Send
from rostra.model.ids import NodeId
from rostra.safeguards import Safeguard, Without


class HardStateGate:
    __slots__ = (
        "_after_persist",
        "_deferred",
        "_deferred_max",
        "_dirty",
        "_persist_number",
        "_persists_first",
        "_sends",
        "hard_state_key",
        "out",
        "persisting",
    )

    def __init__(self, key: str, deferred_max: int, without: Without) -> None:
        self.hard_state_key = key
        self.out: list[FabricEffect] = []
        self.persisting = False
        """The hard state is being written; inputs are deferred until it is durable."""
        self._sends: list[FabricEffect] = []
        self._dirty = False
        self._persist_number = 0
        self._after_persist: list[Callable[[], None]] = []
        self._deferred: deque[Callable[[], None]] = deque()
        self._deferred_max = deferred_max
        self._persists_first = Safeguard.PERSIST_BEFORE_REPLY not in without

    # --- of the subclass ---

    def pack_hard_state(self) -> bytes:
        """The hard state as it is to be written."""
        raise NotImplementedError

    def hard_state_durable(self) -> None:
        """The hard state is durable now; runs before the deferred inputs."""

    # --- effects ---

    def take_effects(self) -> list[FabricEffect]:
        """Returns the effects since the last call."""
        effects, self.out = self.out, []
        return effects

    def send(self, peer: NodeId, message: object, payload: tuple[Buffer, ...] = ()) -> None:
        self._sends.append(Send(peer, message, payload))

    # --- hard state ---

    def hard_state_changed(self) -> None:
        """The hard state is to be written at the end of this step, before its messages leave."""
        self._dirty = True

    def run_after_persist(self, action: Callable[[], None]) -> None:
        """Runs the action when the hard state that was just changed is durable."""
        self._after_persist.append(action)

    def defer(self, action: Callable[[], None], *, sent: bool = False) -> None:
        """Queues an input until the hard state is durable. Beyond the bound, messages are dropped; disk results not."""
        if not sent or len(self._deferred) < self._deferred_max:
            self._deferred.append(action)

    def flush(self) -> None:
        """Ends a step: writes changed hard state, and sends the messages once it is durable."""
        if not self._dirty:
            if self._sends:
                self.out += self._sends
                self._sends = []
            return
        sends, self._sends = self._sends, []
        if not self._persists_first:
            self.out += sends
            sends = []
        self._dirty = False
        self.persisting = True
        self._persist_number += 1
        self.out.append(self.persist((*sends, Echo(self.hard_state_key, self._persist_number))))

    def persist(self, then: tuple[FabricEffect, ...] = ()) -> Persist:
        return Persist(self.hard_state_key, self.pack_hard_state(), then)

    def continue_after_persist(self, number: int) -> None:
        """The hard state is durable: runs the actions and inputs that waited for it."""
        if not self.persisting or number != self._persist_number:
            return
        self.persisting = False
        self.hard_state_durable()
        retries, self._after_persist = self._after_persist, []
        for retry in retries:
            retry()
        self.flush()
        while self._deferred and not self.persisting:
            self._deferred.popleft()()
