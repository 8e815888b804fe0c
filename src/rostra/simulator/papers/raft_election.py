"""Elections of one Raft group on virtual time, from fresh timers until somebody leads.

The groups are those of the product; here are only time, messages with a delay, and a disk that takes no time.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

import msgspec

from rostra.fabric.api import Echo, FabricEffect, Now, Persist, Recovered, Send
from rostra.fabric.consensus.hard_state import GroupConfig, GroupConfigAt, HardState
from rostra.fabric.consensus.messages import GroupMessage
from rostra.fabric.consensus.raft_group import RaftGroup
from rostra.fabric.consensus.roles import Role
from rostra.fabric.raft.settings import RaftSettings
from rostra.model.ids import NodeId, Partition, PartitionIndex, TopicId
from rostra.safeguards import ALL_ON, Safeguard, Without

HERE = Partition(TopicId(7), PartitionIndex(0))
EVENTS_MAX = 100_000
"""A thousand times what an election takes."""


class Electorate(msgspec.Struct, frozen=True):
    """Who votes, and how long timeouts and messages last."""

    servers: int
    alive: int
    timeout_ms_min: int
    timeout_ms_max: int
    delay_ms_min: float
    delay_ms_max: float
    pre_vote: bool

    def __str__(self) -> str:
        pre_vote = "PreVote" if self.pre_vote else "no PreVote"
        delays = f"{self.delay_ms_min:g} to {self.delay_ms_max:g} ms"
        return f"{self.alive} of {self.servers} servers, {delays}, {pre_vote}"


class SimulatedElection:
    """One election. `run` returns when there is a leader."""

    def __init__(self, electorate: Electorate, random: Random) -> None:
        self._electorate = electorate
        self._random = random
        self._us = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._deadlines: dict[NodeId, int] = {}
        voters = tuple(NodeId(number) for number in range(1, electorate.servers + 1))
        settings = RaftSettings(
            election_timeout_ms_min=electorate.timeout_ms_min, election_timeout_ms_max=electorate.timeout_ms_max
        )
        without: Without = ALL_ON if electorate.pre_vote else frozenset({Safeguard.PRE_VOTE})
        self._groups = {
            node: RaftGroup(
                node,
                Recovered(HERE, 0, 0, ()),
                HardState(configs=(GroupConfigAt(0, 0, GroupConfig(voters)),)),
                settings=settings,
                random=random,
                next_token=self._next_number,
                without=without,
            )
            for node in voters[: electorate.alive]
        }

    def run(self) -> tuple[float, int]:
        """Milliseconds until there was a leader, and its term."""
        for node, group in self._groups.items():
            group.start(Now(0, 0))
            self._step(node)
        for _ in range(EVENTS_MAX):
            self._us, _, action = heappop(self._heap)
            action()
            for group in self._groups.values():
                if group.role is Role.LEADER:
                    return self._us / 1000, group.term
        raise AssertionError(f"no leader after {EVENTS_MAX} events: {self._electorate}")

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _later(self, delay_us: int, action: Callable[[], None]) -> None:
        heappush(self._heap, (self._us + delay_us, self._next_number(), action))

    def _step(self, node: NodeId) -> None:
        group = self._groups[node]
        for effect in group.take_effects():
            self._carry_out(node, effect)
        at_us = group.deadline_us
        if at_us is not None and at_us != self._deadlines.get(node):
            self._deadlines[node] = at_us
            self._later(max(at_us - self._us, 0), lambda: self._fire(node, at_us))

    def _fire(self, node: NodeId, at_us: int) -> None:
        if self._groups[node].deadline_us == at_us:
            del self._deadlines[node]
            self._groups[node].deadline_passed(Now(self._us, self._us))
            self._step(node)

    def _carry_out(self, node: NodeId, effect: FabricEffect) -> None:
        if isinstance(effect, Send):
            message, peer = effect.message, effect.peer
            if peer in self._groups and isinstance(message, GroupMessage):
                between = (self._electorate.delay_ms_min, self._electorate.delay_ms_max)
                delay_us = int(self._random.uniform(*between) * 1000)
                self._later(delay_us, lambda: self._receive(node, peer, message))
        elif isinstance(effect, Persist):
            for following in effect.then:
                self._carry_out(node, following)
        elif isinstance(effect, Echo):
            self._groups[node].persisted(Now(self._us, self._us), effect.number)
            self._step(node)

    def _receive(self, sender: NodeId, receiver: NodeId, message: GroupMessage) -> None:
        self._groups[receiver].receive(Now(self._us, self._us), sender, message, None)
        self._step(receiver)


def elections(electorate: Electorate, count: int, seed: int = 1) -> tuple[list[float], float]:
    """The times of so many elections, ascending, and the share that needed more than one term."""
    random = Random(f"{seed}/{electorate}")
    results = [SimulatedElection(electorate, random).run() for _ in range(count)]
    return sorted(time_ms for time_ms, _ in results), sum(term > 1 for _, term in results) / count
