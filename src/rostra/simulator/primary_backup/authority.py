"""A simulated authority: decides correctly, but requests and answers are late, lost, repeated and out of order."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from rostra.fabric.primary_backup.authority import Answer, Decided, Proposal, UnknownOutcome, decide
from rostra.fabric.primary_backup.configuration import (
    Change,
    Configuration,
    CopyPolicy,
    NewPrimaryEpoch,
    RemovalReason,
    RemoveMember,
    next_configuration,
)
from rostra.model.ids import NodeId
from rostra.safeguards import Without
from rostra.simulator.clock import Clock
from rostra.simulator.primary_backup.scenario import PartitionScenario
from rostra.simulator.trace import Trace


class Newest(msgspec.Struct, frozen=True):
    """What the authority says unasked: the newest configuration, who should have a copy, and who is missing."""

    configuration: Configuration
    assigned: tuple[NodeId, ...]
    missing: frozenset[NodeId]


class Decision(msgspec.Struct, frozen=True):
    """One row of the authority's history. A change of the assignment is a row too."""

    newest: Newest
    change: Change | None


class SimulatedAuthority:
    def __init__(
        self,
        clock: Clock,
        trace: Trace,
        random: Random,
        scenario: PartitionScenario,
        without: Without,
        first: Configuration,
        assigned: tuple[NodeId, ...],
    ) -> None:
        self._clock = clock
        self._trace = trace
        self._random = random
        self._scenario = scenario
        self._without = without
        self.policy: CopyPolicy = scenario.policy
        self.reliable = False
        self.configuration = first
        self.assigned = assigned
        self.missing: set[NodeId] = set()
        self.history = [Decision(self.newest, None)]
        self.decided = 0
        self.void = 0
        self.superseded = 0
        self.lost = 0
        self.answer: Callable[[NodeId, int, int, Answer], None] = lambda _node, _boot, _token, _answer: None
        """Delivers an answer to a node in one of its lives."""
        self.notify: Callable[[NodeId, Newest], None] = lambda _node, _newest: None
        self.nodes: tuple[NodeId, ...] = ()

    @property
    def newest(self) -> Newest:
        return Newest(self.configuration, self.assigned, frozenset(self.missing))

    # --- proposals ---

    def propose(self, node: NodeId, boot: int, proposal: Proposal) -> None:
        if self._chance(self._scenario.false_unknown):
            self._clock.after(self._delay(), self.answer, node, boot, proposal.token, UnknownOutcome())
        if self._chance(self._scenario.proposal_loss):
            self.lost += 1
            return
        self._clock.after(self._delay(), self._arrived, node, boot, proposal)

    def _arrived(self, node: NodeId, boot: int, proposal: Proposal) -> None:
        answer = decide(
            self.configuration,
            proposal.expected_version,
            proposal.change,
            self.policy,
            self.missing,
            self._without,
        )
        if isinstance(answer, Decided):
            self._enter(answer.configuration, proposal.change, f"by {node}")
        else:
            self.superseded += 1
        if self._chance(self._scenario.answer_loss):
            self.lost += 1
        else:
            self._clock.after(self._delay(), self.answer, node, boot, proposal.token, answer)

    def enter(self, change: Change) -> None:
        """A change that follows from the authority's own state, whatever the version."""
        following = next_configuration(self.configuration, change, self.policy, self.missing, self._without)
        self._enter(following, change, "itself")

    def _enter(self, following: Configuration, change: Change, origin: str) -> None:
        self.decided += 1
        former = msgspec.structs.replace(self.configuration, version=following.version)
        self.void += former == following
        self.configuration = following
        self.history.append(Decision(self.newest, change))
        self._trace.note("authority", "decided", str(following).encode(), f"{change} {origin}: {following}")
        for node in self.nodes:
            self.tell(node)

    # --- what it learns of nodes ---

    def believe_missing(self, node: NodeId) -> None:
        self.missing.add(node)
        self.enter(RemoveMember(node, RemovalReason.MISSING))

    def heard_again(self, node: NodeId, *, started: bool) -> None:
        """A node has started, or one that was believed missing is heard. A member that starts takes over from a
        missing primary; so does one that is heard again."""
        was_missing = node in self.missing
        self.missing.discard(node)
        if (started or was_missing) and node in self.configuration.nodes and self.configuration.primary in self.missing:
            self.enter(NewPrimaryEpoch(node))

    def assign(self, nodes: tuple[NodeId, ...]) -> None:
        self.assigned = nodes
        self.history.append(Decision(self.newest, None))
        self._trace.note("authority", "assigned", b"", nodes)
        for node in self.nodes:
            self.tell(node)

    # --- the newest configuration ---

    def tell(self, node: NodeId) -> None:
        if not self._chance(self._scenario.notice_loss):
            self._clock.after(self._delay(), self.notify, node, self.newest)

    def _delay(self) -> int:
        highest_us = 5_000 if self.reliable else self._scenario.authority_delay_max_us
        return self._random.randint(1_000, highest_us)

    def _chance(self, share: float) -> bool:
        return not self.reliable and share > 0 and self._random.random() < share
