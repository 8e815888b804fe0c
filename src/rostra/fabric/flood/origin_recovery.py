"""Recovery at start: asks the other brokers how much they have of this broker's own partitions.

The broker accepts nothing before it has the answers. If another broker has more than its own log, if its log is
damaged, or if no broker answers, it starts a new incarnation with new origin partitions, so that no offset is used
twice.
"""

from __future__ import annotations

from collections.abc import Callable

from rostra.fabric.api import Send
from rostra.fabric.flood.context import FloodContext
from rostra.fabric.flood.messages import ENTRIES_PER_MESSAGE, RecoveryReply, RecoveryRequest
from rostra.fabric.flood.origin_partition import VectorEntry
from rostra.fabric.flood.ring import Ring
from rostra.fabric.flood.topics import FloodTopics
from rostra.model.ids import NodeId, Partition
from rostra.safeguards import Safeguard


class OriginRecovery:
    """`joins`: this broker joins a ring through others, and founds none."""

    def __init__(self, context: FloodContext, ring: Ring, topics: FloodTopics, joins: bool) -> None:
        self._context = context
        self._ring = ring
        self._topics = topics
        self._joins = joins
        self._started_us = 0
        self._answered: dict[NodeId, None] = {}
        self._ends: dict[Partition, int] = {}
        """The highest reported end of each of this broker's own partitions."""
        self.done = False
        self.was_damaged = False
        """Whether the previous run found its own records damaged."""
        self.finished: Callable[[bool], None] = lambda new_incarnation: None
        """Called when enough have answered; says whether a new incarnation is needed."""

    def start(self) -> None:
        self._started_us = self._context.now.mono_us
        self.tick()

    def tick(self) -> None:
        """Repeats requests to brokers that have not answered, and decides when enough have or time is up."""
        context = self._context
        if self.done:
            return
        others = self._ring.others()
        waiting = [member.node for member in others if member.node not in self._answered]
        if not others and self._joins and not self._topics.by_name:
            # A new broker that has reached no member yet.
            return
        # After a first answer, brokers that may be dead are waited for less long.
        patience_ms = (
            context.settings.recovery_timeout_ms // 2 if self._answered else context.settings.recovery_timeout_ms
        )
        late = context.now.mono_us - self._started_us >= patience_ms * 1000
        if waiting and not late:
            context.out += [Send(node, RecoveryRequest(context.boot)) for node in waiting]
            return
        self.done = True
        self.finished(self._needs_new_incarnation(alone=bool(others) and not self._answered))

    def _needs_new_incarnation(self, *, alone: bool) -> bool:
        context = self._context
        # Internal partitions exist here only, so the own log is complete.
        own = [topic.own for topic in self._topics.by_name.values() if topic.own is not None and not topic.own.local]
        if Safeguard.NEW_INCARNATION in context.without:
            return False
        if own and (alone or self.was_damaged):
            return True
        for origin_partition in own:
            log = context.logs.get(origin_partition.partition)
            have = log.end if log is not None else 0
            if (log is not None and log.damaged_at is not None) or self._ends.get(origin_partition.partition, 0) > have:
                return True
        return False

    def request_received(self, peer: NodeId, message: RecoveryRequest) -> None:
        """Answers also during its own recovery: two brokers that ask each other may both have just started."""
        context = self._context
        entries = [
            VectorEntry(partition, log.end)
            for partition, log in sorted(context.logs.items())
            if log.origin_partition.origin == peer and not log.is_origin
        ]
        for at in range(0, max(len(entries), 1), ENTRIES_PER_MESSAGE):
            more = at + ENTRIES_PER_MESSAGE < len(entries)
            context.out.append(
                Send(peer, RecoveryReply(message.boot, tuple(entries[at : at + ENTRIES_PER_MESSAGE]), more))
            )

    def reply_received(self, peer: NodeId, message: RecoveryReply) -> None:
        if self.done or message.boot != self._context.boot:
            return
        for entry in message.entries:
            self._ends[entry.partition] = max(entry.end, self._ends.get(entry.partition, 0))
        if not message.more:
            self._answered[peer] = None
            self.tick()
