"""The operator of a seed: asks to remove a member, and retries until the request succeeds."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from rostra.client.core.effects import Result
from rostra.errors import RostraError
from rostra.simulator.clients.applications import Application
from rostra.simulator.clients.simulated_client import SimulatedClient
from rostra.simulator.clock import MS_US, SECOND_US


class Operator(Application):
    def __init__(
        self,
        client: SimulatedClient,
        random: Random,
        node: int,
        begins_us: int,
        ends_us: int,
        *,
        is_allowed: Callable[[], bool],
    ) -> None:
        super().__init__(client, random, [], ends_us)
        self._node = node
        self._begins_us = begins_us
        self._is_allowed = is_allowed
        self.requested = False

    def begin(self) -> None:
        self.clock.at(self._begins_us, self._send_request)

    def _send_request(self) -> None:
        if self.over:
            return
        if not self._is_allowed():
            self.later(100 * MS_US, SECOND_US, self._send_request)
            return
        self.requested = True
        self.history.operations += 1
        call = self.client.call(f"remove node {self._node}", self._answered)
        self.client.core.remove_member(self.clock.now_us, call, self._node)
        self.client.run_effects()

    def _answered(self, result: Result | RostraError) -> None:
        if isinstance(result, RostraError):
            self.later(100 * MS_US, SECOND_US, self._send_request)
