"""All replicas of a node, behind one heartbeat per pair of nodes and one timer for all deadlines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from rostra.fabric.api import Echo, Send
from rostra.fabric.links.deadline_queue import NEVER_US, DeadlineQueue
from rostra.fabric.links.messages import NodeHeartbeat, NodeHeartbeatReply, PartitionHeartbeat
from rostra.fabric.links.node_context import NodeContext
from rostra.fabric.replication.replica import Replica
from rostra.model.ids import NodeId, Partition

R = TypeVar("R", bound=Replica)


class ReplicaSet(Generic[R]):
    """After every call of a replica, `collect` takes over its effects, its deadline and whether it sends heartbeats."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self.replicas: dict[Partition, R] = {}
        self.deadlines = DeadlineQueue()
        self.became_owner: Callable[[R], None] = lambda replica: None
        """Called when this node became the owner of a partition."""
        self._partition_by_key: dict[str, Partition] = {}
        self._heartbeat_partitions: dict[Partition, R] = {}
        """Replicas owned here that are not quiescent and have followers."""
        self._answered_peers: dict[NodeId, None] = {}
        """Peers whose heartbeats were answered since the last own heartbeat."""

    def add(self, replica: R) -> None:
        self.replicas[replica.partition] = replica
        self._partition_by_key[replica.hard_state_key] = replica.partition

    def remove(self, partition: Partition) -> R | None:
        replica = self.replicas.pop(partition, None)
        if replica is not None:
            self._heartbeat_partitions.pop(partition, None)
            self._partition_by_key.pop(replica.hard_state_key, None)
        return replica

    def collect(self, replica: R) -> None:
        """Takes over what the replica's last call has changed."""
        if replica.observer is not None:
            self.take_effects(replica)
        elif replica.out:
            self._context.out += replica.out
            replica.out = []
        if replica.is_owner:
            if not replica.was_owner:
                replica.was_owner = True
                self.became_owner(replica)
            sends = not replica.quiescent and bool(replica.sender.progress)
            if sends is not replica.sends_heartbeats:
                self._set_heartbeats(replica, sends)
            if sends and replica.wants_heartbeat:
                self.send_heartbeats((replica,))
        elif replica.was_owner:
            replica.was_owner = False
            self._set_heartbeats(replica, False)
            self._context.step_downs += 1
        deadline_us = replica.deadline_us
        if deadline_us is not None and deadline_us < replica.queued_us:
            self._queue_deadline(replica, deadline_us)

    def take_effects(self, replica: R) -> None:
        effects = replica.out
        if replica.observer is not None:
            replica.out = []
            self._context.out += replica.observer(effects)
        elif effects:
            self._context.out += effects
            replica.out = []

    def persisted(self, given: Echo) -> None:
        """The hard state of one of the replicas is durable."""
        partition = self._partition_by_key.get(given.key)
        replica = self.replicas.get(partition) if partition is not None else None
        if replica is not None:
            replica.persisted(self._context.now, given.number)
            self.collect(replica)

    def peer_lost(self, peer: NodeId) -> None:
        """The peer is down or restarted: wakes quiescent replicas that rely on its heartbeat."""
        for replica in list(self.replicas.values()):
            if replica.quiescent or replica.is_owner:
                replica.peer_lost(self._context.now, peer)
                self.collect(replica)

    # --- heartbeats ---

    def _set_heartbeats(self, replica: R, sends: bool) -> None:
        replica.sends_heartbeats = sends
        if sends:
            self._heartbeat_partitions[replica.partition] = replica
        else:
            self._heartbeat_partitions.pop(replica.partition, None)

    def heartbeat_round(self, peers: Iterable[NodeId]) -> None:
        """Sends the heartbeats of all replicas; of `peers` also those get one that would get none otherwise."""
        idle = [peer for peer in peers if peer not in self._answered_peers]
        self._answered_peers.clear()
        self.send_heartbeats(tuple(self._heartbeat_partitions.values()), idle)

    def send_heartbeats(self, replicas: Iterable[R], idle: Iterable[NodeId] = ()) -> None:
        """Sends one message per node for these replicas, and an empty one to each of `idle` that gets none."""
        context = self._context
        by_peer: dict[NodeId, list[PartitionHeartbeat]] = {peer: [] for peer in idle}
        for replica in replicas:
            for peer, heartbeat in replica.heartbeats(context.now):
                by_peer.setdefault(peer, []).append(heartbeat)
            self.take_effects(replica)
        idle_heartbeat = NodeHeartbeat(context.boot, (), context.peer_address, context.step_downs)
        context.out += [
            Send(
                peer,
                NodeHeartbeat(context.boot, tuple(heartbeats), context.peer_address, context.step_downs)
                if heartbeats
                else idle_heartbeat,
            )
            for peer, heartbeats in by_peer.items()
        ]

    def heartbeat_received(self, peer: NodeId, message: NodeHeartbeat) -> None:
        context = self._context
        replies = []
        for heartbeat in message.partitions:
            replica = self.replicas.get(heartbeat.partition)
            if replica is not None:
                reply = replica.heartbeat_received(context.now, peer, heartbeat)
                if reply is not None:
                    replies.append(reply)
                self.collect(replica)
        if replies:
            self._answered_peers[peer] = None
            context.out.append(Send(peer, NodeHeartbeatReply(context.boot, tuple(replies), context.step_downs)))

    def heartbeat_answered(self, peer: NodeId, message: NodeHeartbeatReply) -> None:
        for reply in message.partitions:
            replica = self.replicas.get(reply.partition)
            if replica is not None:
                replica.heartbeat_answered(self._context.now, peer, reply)
                self.collect(replica)

    # --- deadlines ---

    def _queue_deadline(self, replica: R, at_us: int) -> None:
        replica.queued_us = at_us
        self.deadlines.push(replica.partition, at_us)

    def deadlines_passed(self) -> None:
        """The timer for the earliest deadline fired."""
        now = self._context.now
        while (due := self.deadlines.pop_due(now.mono_us)) is not None:
            at_us, partition = due
            replica = self.replicas.get(partition)
            if replica is None or replica.queued_us != at_us:
                continue
            replica.queued_us = NEVER_US
            if replica.deadline_us is None:
                continue
            if replica.deadline_us <= now.mono_us:
                replica.deadline_passed(now)
                self.collect(replica)
            else:
                self._queue_deadline(replica, replica.deadline_us)
