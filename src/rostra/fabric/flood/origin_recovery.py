"""Recovery at start: asks the other brokers how much they have of this broker's own partitions.

The broker accepts nothing before it has the answers. If another broker has more than its own log, if its log is
damaged, or if no broker answers, it starts a new incarnation with new origin partitions, so that no offset is used
twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.fabric.api import Send
from rostra.fabric.flood.messages import ENTRIES_PER_MESSAGE, RecoveryReply, RecoveryRequest
from rostra.fabric.flood.origin_partition import VectorEntry
from rostra.model.ids import NodeId, Partition
from rostra.safeguards import Safeguard

if TYPE_CHECKING:
    from rostra.fabric.flood.machine import Flood


class OriginRecovery:
    def __init__(self, flood: Flood) -> None:
        self._flood = flood
        self._started_us = 0
        self._answered: dict[NodeId, None] = {}
        self._ends: dict[Partition, int] = {}
        """The highest reported end of each of this broker's own partitions."""
        self.done = False

    def start(self) -> None:
        self._started_us = self._flood.now.mono_us
        self.tick()

    def tick(self) -> None:
        """Repeats requests to brokers that have not answered, and decides when enough have or time is up."""
        flood = self._flood
        if self.done:
            return
        others = flood.ring.others()
        waiting = [member.node for member in others if member.node not in self._answered]
        if not others and flood.joins and not flood.topics.by_name:
            # A new broker that has reached no member yet.
            return
        # After a first answer, brokers that may be dead are waited for less long.
        patience_ms = flood.settings.recovery_timeout_ms // 2 if self._answered else flood.settings.recovery_timeout_ms
        late = flood.now.mono_us - self._started_us >= patience_ms * 1000
        if waiting and not late:
            flood.out += [Send(node, RecoveryRequest(flood.boot)) for node in waiting]
            return
        self.done = True
        flood.finish_recovery(self._needs_new_incarnation(alone=bool(others) and not self._answered))

    def _needs_new_incarnation(self, *, alone: bool) -> bool:
        flood = self._flood
        # Internal partitions exist here only, so the own log is complete.
        own = [topic.own for topic in flood.topics.by_name.values() if topic.own is not None and not topic.own.local]
        if Safeguard.NEW_INCARNATION in flood.without:
            return False
        if own and (alone or flood.was_damaged):
            return True
        for origin_partition in own:
            log = flood.logs.get(origin_partition.partition)
            have = log.end if log is not None else 0
            if (log is not None and log.damaged_at is not None) or self._ends.get(origin_partition.partition, 0) > have:
                return True
        return False

    def request_received(self, peer: NodeId, message: RecoveryRequest) -> None:
        """Answers also during its own recovery: two brokers that ask each other may both have just started."""
        flood = self._flood
        entries = [
            VectorEntry(partition, log.end)
            for partition, log in sorted(flood.logs.items())
            if log.origin_partition.origin == peer and not log.is_origin
        ]
        for at in range(0, max(len(entries), 1), ENTRIES_PER_MESSAGE):
            more = at + ENTRIES_PER_MESSAGE < len(entries)
            flood.out.append(
                Send(peer, RecoveryReply(message.boot, tuple(entries[at : at + ENTRIES_PER_MESSAGE]), more))
            )

    def reply_received(self, peer: NodeId, message: RecoveryReply) -> None:
        if self.done or message.boot != self._flood.boot:
            return
        for entry in message.entries:
            self._ends[entry.partition] = max(entry.end, self._ends.get(entry.partition, 0))
        if not message.more:
            self._answered[peer] = None
            self.tick()
