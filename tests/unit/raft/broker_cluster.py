"""Whole brokers on Raft: a single node, or several whose messages a test delivers."""

from __future__ import annotations

from collections import deque
from random import Random

import msgspec

from rostra.broker.api import Boot, BrokerEffect, BrokerInput
from rostra.fabric.api import PeerReceived, Send
from rostra.fabric.cluster.metadata_entries import ClusterMember
from rostra.fabric.consensus.roles import Role
from rostra.fabric.raft.machine import Raft
from rostra.model.ids import NodeId, Partition
from tests.unit.broker.broker_driver import BrokerDriver
from tests.unit.broker.list_log import ListLog, recovered


class RaftBroker(BrokerDriver):
    """A broker driver that exposes its fabric."""

    def __init__(
        self,
        raft: Raft | None = None,
        logs: dict[Partition, ListLog] | None = None,
        hard: dict[str, bytes] | None = None,
    ) -> None:
        self.raft = raft or Raft(NodeId(2), "here:1", random=Random(1))
        super().__init__(fabric=self.raft, logs=logs, hard=hard)

    def again(self) -> RaftBroker:
        for log in self.logs.values():
            log.generation = 0
        broker = RaftBroker(None, self.logs, self.hard)
        broker.now = self.now
        broker.start()
        return broker


class ClusterBroker(RaftBroker):
    """One broker of a cluster; its messages wait in `sent`."""

    def __init__(self, raft: Raft, logs: dict[Partition, ListLog] | None, hard: dict[str, bytes] | None) -> None:
        self.sent: deque[tuple[NodeId, Send]] = deque()
        super().__init__(raft, logs, hard)

    def step(self, given: BrokerInput) -> list[BrokerEffect]:
        effects = super().step(given)
        self.sent.extend((self.raft.node, effect) for effect in effects if isinstance(effect, Send))
        return effects


class BrokerCluster:
    """Brokers that receive messages at once, unless one is `down`; every message is encoded and decoded."""

    def __init__(self, nodes: int = 3) -> None:
        self.members = tuple(ClusterMember(NodeId(n), f"client:{n}", f"peer:{n}") for n in range(1, nodes + 1))
        self.down: set[int] = set()
        self.brokers = {member.node: self._make(member, None, None) for member in self.members}
        for broker in self.brokers.values():
            broker.step(_boot_of(broker))

    def _make(
        self, member: ClusterMember, logs: dict[Partition, ListLog] | None, hard: dict[str, bytes] | None
    ) -> ClusterBroker:
        raft = Raft(member.node, member.address, member.peer_address, founders=self.members, random=Random(member.node))
        return ClusterBroker(raft, logs, hard)

    def __getitem__(self, node: int) -> ClusterBroker:
        return self.brokers[NodeId(node)]

    def restart(self, node: int) -> ClusterBroker:
        """On what its disk had; what it sent and was not delivered is lost."""
        old = self[node]
        for log in old.logs.values():
            log.generation = 0
            log.batches = list(log.synced)
        member = next(member for member in self.members if member.node == node)
        new = self.brokers[member.node] = self._make(member, old.logs, old.hard)
        new.now = old.now
        self.down.discard(node)
        new.step(_boot_of(new))
        return new

    def run(self, ms: int = 1) -> None:
        """Time passes in steps of a millisecond; disks and links are quick."""
        for _ in range(ms):
            for broker in self.brokers.values():
                broker.advance_ms(1)
            for node, broker in self.brokers.items():
                if node not in self.down:
                    broker.settle()
            self.deliver()

    def deliver(self) -> None:
        while any(broker.sent for broker in self.brokers.values()):
            for broker in self.brokers.values():
                while broker.sent:
                    sender, send = broker.sent.popleft()
                    if sender not in self.down and send.peer not in self.down and send.peer in self.brokers:
                        self.pass_on(sender, send)
            for node, broker in self.brokers.items():
                if node not in self.down:
                    broker.settle()

    def pass_on(self, sender: NodeId, send: Send) -> None:
        message: object = msgspec.msgpack.decode(msgspec.msgpack.encode(send.message), type=type(send.message))
        payload = bytearray(b"".join(send.payload)) if send.payload else None
        self.brokers[send.peer].step(PeerReceived(sender, message, payload))

    def owner(self, partition: Partition) -> ClusterBroker | None:
        for node, broker in self.brokers.items():
            group = broker.raft.groups.get(partition)
            if node not in self.down and group is not None and group.role is Role.LEADER and group.knows_commit:
                return broker
        return None

    def run_until_owned(self, partition: Partition) -> ClusterBroker:
        for _ in range(5_000):
            owner = self.owner(partition)
            if owner is not None:
                return owner
            self.run(1)
        raise AssertionError("nobody owns the partition")

    def run_until_ready(self) -> None:
        for _ in range(5_000):
            if all(broker.listening for node, broker in self.brokers.items() if node not in self.down):
                return
            self.run(1)
        raise AssertionError("not ready")


def _boot_of(broker: ClusterBroker) -> Boot:
    return Boot(dict(broker.hard), tuple(recovered(part, log) for part, log in sorted(broker.logs.items())))
