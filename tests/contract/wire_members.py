"""Consumer group members that speak the wire protocol, and the offsets they handle.

They read no records: a member handles the offsets of its assigned partitions one by one, from the position it got, and
acknowledges them. A gap in the handled offsets is a lost record; an offset handled again after it was acknowledged is a
redelivery.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from rostra.errors import RostraError, from_wire
from rostra.wire.groups import (
    CommitPositions,
    CoordinatorLocation,
    DescribeGroup,
    FindCoordinator,
    GroupDescribed,
    GroupEnded,
    GroupJoined,
    JoinGroup,
    LeaveGroup,
    MemberAssignment,
    MemberHeartbeat,
    PartitionPosition,
    Position,
    Released,
)
from rostra.wire.messages import Agreed, ClientMessage, Failed, NodeMessage
from tests.contract.facade import Cluster
from tests.contract.raw_connections import RawConnection

NAME = "billing"
LEASE_MS = 1_000
OFFSETS_PER_ACK = 3
"""Offsets that a member handles per acknowledgement."""
SILENCE_US = 800_000
"""Silence after which a member looks for its coordinator again."""
RETRY_US = 50_000

M = TypeVar("M", bound=NodeMessage)
PartitionKey = tuple[int, int]


class HandledOffsets:
    """The offsets that all members of a group have handled and acknowledged."""

    def __init__(self) -> None:
        self.up_to: dict[PartitionKey, int] = {}
        """By partition, the first offset not yet handled."""
        self.acknowledged: dict[PartitionKey, int] = {}

    def begin(self, partition: PartitionKey, start: str, offset: int) -> int:
        if start == "latest":
            # Assume that a record was published meanwhile.
            offset = self.up_to.get(partition, 0) + 1
        assert offset <= self.up_to.get(partition, 0), (
            f"{partition} continues at {offset}: the offsets before it were lost"
        )
        assert offset >= self.acknowledged.get(partition, 0), (
            f"{partition} continues at {offset}, which was acknowledged"
        )
        return offset

    def handle(self, partition: PartitionKey, offset: int) -> None:
        assert offset <= self.up_to.get(partition, 0)
        self.up_to[partition] = max(self.up_to.get(partition, 0), offset + 1)

    def acknowledge(self, partition: PartitionKey, offset: int) -> None:
        self.acknowledged[partition] = max(self.acknowledged.get(partition, 0), offset)


class WireMember:
    """Acts only in `step`: a member that is not stepped any more has crashed silently."""

    def __init__(
        self, cluster: Cluster, member: int, handled: HandledOffsets, *patterns: str, lease_ms: int = LEASE_MS
    ) -> None:
        self.member = member
        self.partitions: dict[PartitionKey, int] = {}
        """Its assigned partitions, each with the first offset not yet handled."""
        self._assigned_at: dict[PartitionKey, int] = {}
        self.is_member = False
        self.left = False
        self.refused: list[RostraError] = []
        self.generation = 0
        self._cluster = cluster
        self._handled = handled
        self._patterns = patterns
        self._lease_ms = lease_ms
        self._on_event: list[PartitionPosition] = []
        self._unconfirmed: dict[int, dict[PartitionKey, int]] = {}
        self._final_request = -1
        self._is_joined = False
        self._request = 0
        self._next_node = member
        self._connection: RawConnection | None = None
        self._received_us = 0
        self._heartbeat_us = 0
        self._retry_us = 0

    def step(self) -> None:
        now_us = self._cluster.now_us
        if self._connection is None or self._connection.is_lost or now_us - self._received_us > SILENCE_US:
            if now_us >= self._retry_us:
                self._find_coordinator(now_us)
            return
        for message in self._connection.take():
            self._received_us = now_us
            self._handle(message)
            if self._connection is None:
                return
        if self.is_member:
            self._handle_offsets()
            if now_us >= self._heartbeat_us:
                self._heartbeat_us = now_us + self._lease_ms * 250
                self._send(MemberHeartbeat(self._next_request(), NAME, self.member, self.generation))

    def crash(self) -> None:
        """Closes its connection without leaving the group."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self.is_member = None, False

    def acknowledge_first(self) -> int:
        """Acknowledges only the first record of each partition, without reading any messages before."""
        return self._acknowledge(dict.fromkeys(self.partitions, 1))

    def was_answered(self, request: int) -> bool:
        """Whether a request has its reply, or never gets one because the connection is lost."""
        if self._connection is None or self._connection.is_lost:
            return True
        answers = [message for message in self._connection.messages if isinstance(message, Agreed | Failed)]
        return any(answer.request == request for answer in answers)

    def leave(self) -> None:
        """Acknowledges what it has handled and leaves the group."""
        self._acknowledge(self.partitions)
        self._send(LeaveGroup(self._next_request(), NAME, self.member))
        self.left = True

    # --- finding the coordinator ---

    def _find_coordinator(self, now_us: int) -> None:
        self._disconnect()
        self._retry_us = now_us + RETRY_US
        self._received_us = now_us
        nodes = self._cluster.group_nodes
        self._next_node += 1
        self._connection = self._cluster.raw_connection(nodes[self._next_node % len(nodes)])
        self._send(FindCoordinator(self._next_request(), NAME))

    def _disconnect(self) -> None:
        """Drops the connection; the partitions may stay assigned to it."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self.is_member, self._is_joined = None, False, False
        self._on_event = []
        self._unconfirmed.clear()

    def _connect(self, place: CoordinatorLocation) -> None:
        nodes = [node for node in self._cluster.running if self._cluster.address(node) == place.address]
        if not place.known or (place.address and not nodes):
            self._disconnect()
            return
        if place.address:
            assert self._connection is not None
            self._connection.close()
            self._connection = self._cluster.raw_connection(nodes[0])
        self._send(JoinGroup(self._next_request(), NAME, self.member, self._patterns, self._lease_ms))

    # --- messages ---

    def _handle(self, message: NodeMessage) -> None:
        match message:
            case CoordinatorLocation():
                self._connect(message)
            case GroupJoined():
                self._is_joined = True
            case MemberAssignment():
                self._on_event += message.partitions
                if not message.more:
                    self._on_assigned(message)
            case Agreed():
                for partition, offset in self._unconfirmed.pop(message.request, {}).items():
                    self._handled.acknowledge(partition, offset)
            case Failed() if message.request == self._final_request:
                # Its lease has expired and the partition is assigned to another member, which gets the offsets again.
                self._unconfirmed.pop(message.request, None)
            case Failed():
                self.refused.append(from_wire(message.code, message.carried))
                self._disconnect()
            case GroupEnded():
                self.refused.append(from_wire(message.code, message.carried))
                self._disconnect()
            case _:
                pass

    def _on_assigned(self, message: MemberAssignment) -> None:
        assigned = {(partition.topic, partition.partition): partition for partition in self._on_event}
        self._on_event = []
        if not self._is_joined:
            return
        self.is_member, self.generation = True, message.generation
        self._final_request = self._acknowledge(
            {partition: self.partitions[partition] for partition in self.partitions if partition not in assigned}
        )
        held = {
            partition: self.partitions[partition]
            for partition in assigned
            if self._assigned_at.get(partition) == assigned[partition].since
        }
        for partition, begin in assigned.items():
            if partition not in held:
                held[partition] = self._handled.begin(partition, begin.start, begin.value)
        self.partitions = held
        self._assigned_at = {partition: begin.since for partition, begin in assigned.items()}
        self._send(Released(self._next_request(), NAME, self.member, message.generation))

    # --- offsets ---

    def _handle_offsets(self) -> None:
        if self._unconfirmed or not self.partitions:
            return
        for partition in self.partitions:
            for _ in range(OFFSETS_PER_ACK):
                self._handled.handle(partition, self.partitions[partition])
                self.partitions[partition] += 1
        self._acknowledge(self.partitions)

    def _acknowledge(self, partitions: dict[PartitionKey, int]) -> int:
        """Sends the positions; returns the number of the request."""
        if not partitions:
            return -1
        request = self._next_request()
        self._unconfirmed[request] = dict(partitions)
        positions = tuple(Position(*partition, offset) for partition, offset in sorted(partitions.items()))
        self._send(CommitPositions(request, NAME, self.member, self.generation, positions))
        return request

    def _send(self, message: ClientMessage) -> None:
        if self._connection is not None:
            self._connection.send(message)

    def _next_request(self) -> int:
        self._request += 1
        return self._request


class MemberPool:
    """The members of one group, all stepped while a test waits."""

    def __init__(self, cluster: Cluster, *patterns: str) -> None:
        self.handled = HandledOffsets()
        self.members: list[WireMember] = []
        self._cluster = cluster
        self._patterns = patterns
        self._next_member = 0

    def join(self, *, lease_ms: int = LEASE_MS) -> WireMember:
        self._next_member += 1
        member = WireMember(self._cluster, self._next_member, self.handled, *self._patterns, lease_ms=lease_ms)
        self.members.append(member)
        return member

    def crash(self, member: WireMember) -> None:
        self.members.remove(member)
        member.crash()

    def step(self) -> None:
        for member in self.members:
            member.step()

    def await_balanced(self, count: int) -> None:
        """Waits until so many partitions are spread evenly over the members, each with one of them."""

        def balanced() -> bool:
            self.step()
            held = [partition for member in self.members for partition in member.partitions if member.is_member]
            sizes = [len(member.partitions) for member in self.members]
            return len(held) == len(set(held)) == count and max(sizes) - min(sizes) <= 1

        self._cluster.run_until(balanced, f"{count} partitions to be shared by {len(self.members)} members")

    def await_progress(self, offsets: int = 20) -> None:
        """Waits until every partition is acknowledged that much further."""
        goal = {partition: offset + offsets for partition, offset in self.handled.up_to.items()}

        def further() -> bool:
            self.step()
            return all(self.handled.acknowledged.get(partition, 0) >= offset for partition, offset in goal.items())

        self._cluster.run_until(further, f"everything to be acknowledged {offsets} further")


def request_coordinator(cluster: Cluster, message: ClientMessage, kind: type[M]) -> M | RostraError:
    """Finds the coordinator, retrying while there is none, and returns its reply."""
    answers: list[M | RostraError] = []
    connections: list[RawConnection] = []
    attempt = 0

    def answered() -> bool:
        nonlocal attempt
        if not connections or connections[0].is_lost or cluster.now_us - asked_us[0] > SILENCE_US:
            attempt += 1
            _find_coordinator(cluster, connections, asked_us, attempt)
        for reply in connections[0].take():
            if isinstance(reply, CoordinatorLocation):
                _send_to_coordinator(cluster, connections, reply, message)
            elif isinstance(reply, Failed):
                answers.append(from_wire(reply.code, reply.carried))
            elif isinstance(reply, kind):
                answers.append(reply)
        if answers and isinstance(answers[0], RostraError) and type(answers[0]).__name__ in ("Moved", "Unavailable"):
            answers.clear()
            connections[0].close()
        return bool(answers)

    asked_us = [0]
    cluster.run_until(answered, f"an answer to {message}")
    connections[0].close()
    return answers[0]


def _find_coordinator(cluster: Cluster, connections: list[RawConnection], asked_us: list[int], attempt: int) -> None:
    for raw_connection in connections:
        raw_connection.close()
    connections[:] = [cluster.raw_connection(cluster.group_nodes[attempt % len(cluster.group_nodes)])]
    connections[0].send(FindCoordinator(1, NAME))
    asked_us[0] = cluster.now_us


def _send_to_coordinator(
    cluster: Cluster, connections: list[RawConnection], place: CoordinatorLocation, message: ClientMessage
) -> None:
    nodes = [node for node in cluster.running if cluster.address(node) == place.address]
    if not place.known or (place.address and not nodes):
        connections[0].close()
        return
    if place.address:
        connections[0].close()
        connections[0] = cluster.raw_connection(nodes[0])
    connections[0].send(message)


def describe_group(cluster: Cluster) -> GroupDescribed:
    found = request_coordinator(cluster, DescribeGroup(2, NAME), GroupDescribed)
    assert isinstance(found, GroupDescribed), found
    return msgspec.structs.replace(found, request=0)


def coordinator_node(cluster: Cluster) -> int:
    """The node that coordinates the group."""
    raw_connection = cluster.raw_connection(cluster.group_nodes[0])
    raw_connection.send(FindCoordinator(1, NAME))
    found: list[CoordinatorLocation] = []

    def known() -> bool:
        found.extend(message for message in raw_connection.take() if isinstance(message, CoordinatorLocation))
        return bool(found)

    cluster.run_until(known, "the address of the coordinator")
    raw_connection.close()
    return cluster.owner("_groups", found[0].partition)
