"""Random operations of consumer group members, which read and acknowledge their partitions."""

from __future__ import annotations

from rostra.errors import NotAMember, StaleGeneration
from rostra.safeguards import ALL_ON, Without
from rostra.wire.groups import CommitPositions, PartitionPosition, Position, ResetGroup
from rostra.wire.messages import Agreed, Failed, Subscribed, Unsubscribe, Unsubscribed
from tests.unit.broker.group_member_client import LEASE_MS, GroupMemberClient, make_groups
from tests.unit.broker.random_operations import OPERATOR, TopicPartition, operation, records_of
from tests.unit.broker.random_publisher_operations import RandomPublisherOperations

MEMBERS_MAX = 3
HEARTBEAT_MS = 300


class RandomGroupOperations(RandomPublisherOperations):
    """Members release partitions at a later step, not at once, so that other operations happen in between."""

    def __init__(self, seed: int, without: Without = ALL_ON) -> None:
        super().__init__(seed, without)
        self.clients: dict[int, GroupMemberClient] = {}
        self.joined_total = 0
        self.heartbeat_us = 0
        self.since: dict[tuple[int, tuple[int, int]], int] = {}
        """Since which generation a member knows that it holds a partition."""
        make_groups(self.driver, OPERATOR)

    def client(self, drawn: int) -> GroupMemberClient:
        return self.clients[sorted(self.clients)[drawn % len(self.clients)]]

    def _connect_member(self, member: int) -> GroupMemberClient:
        self.members_from = min(self.members_from, 1 << 20)
        client = self.clients[member] = GroupMemberClient(self.driver, member, conn=(1 << 20) + self.next_number())
        return client

    # --- membership ---

    @operation()
    def join(self) -> None:
        if len(self.clients) < MEMBERS_MAX:
            self.joined_total += 1
            assert self._connect_member(self.joined_total).join("t/+") is None

    @operation(who=9)
    def leave(self, *, who: int) -> None:
        if self.clients:
            client = self.client(who)
            assert client.leave() is None
            del self.clients[client.member]

    @operation(who=9)
    def die(self, *, who: int) -> None:
        """A member whose lease expired is refused."""
        if not self.clients:
            return
        deleted = self.client(who)
        del self.clients[deleted.member]
        self.pass_ms(LEASE_MS + 200, 0)
        deleted.receive()
        assert isinstance(deleted.ended[-1], NotAMember)
        for partition in sorted(deleted.assigned):
            assert isinstance(deleted.move(0, partition), NotAMember)

    @operation(who=9)
    def reconnect(self, *, who: int) -> None:
        if self.clients:
            old = self.client(who)
            self.driver.disconnect(old.conn)
            self._return(old)

    def _return(self, old: GroupMemberClient) -> None:
        new = self._connect_member(old.member)
        new.in_use = old.in_use
        assert new.join("t/+") is None

    def restarted(self) -> None:
        super().restarted()
        self.fire()
        for member in sorted(self.clients):
            self._return(self.clients[member])

    def wait_for_throttle(self) -> None:
        super().wait_for_throttle()
        if self.driver.now.mono_us - self.heartbeat_us > HEARTBEAT_MS * 1000:
            self.heartbeat()

    def heartbeat(self) -> None:
        self.heartbeat_us = self.driver.now.mono_us
        for member in sorted(self.clients):
            assert self.clients[member].heartbeat() is None

    # --- reading ---

    @operation(who=9, count=9)
    def work(self, *, who: int, count: int) -> None:
        """A member handles some records of each partition that it holds, and acknowledges them."""
        if not self.clients:
            return
        client = self.client(who)
        client.receive()
        assert client.release() is None
        for partition in sorted(client.assigned):
            location = self._find_partition(partition)
            # While it handles one partition, its assignment may change.
            if location is not None and partition in client.assigned:
                self._check_start(client, partition)
                self._handle(client, partition, location, count)

    def _check_start(self, client: GroupMemberClient, partition: tuple[int, int]) -> None:
        given, known = client.assigned[partition], self.reference.positions.get(partition)
        if self.since.get((client.member, partition)) != given.since:
            self.since[client.member, partition] = given.since
            expected = ("earliest", 0) if known is None else ("offset", known)
            assert (given.start, given.value) == expected

    def _find_partition(self, partition: tuple[int, int]) -> TopicPartition | None:
        candidates = self.topic_partitions()
        return next((one for one in candidates if (self.topic_id(one), one[1]) == partition), None)

    def _handle(
        self, client: GroupMemberClient, partition: tuple[int, int], location: TopicPartition, count: int
    ) -> None:
        self.read_all(location)
        first = self.partition(location).first
        at = self.reference.positions.get(partition, first)
        number = self.next_number()
        begun = self.answer(self._subscribe(location, number, "offset", at))
        if isinstance(begun, Failed):
            assert begun.code == "OffsetOutOfRange" and (at < first or at > self.partition(location).end)
            at = first
            begun = self.ask(self._subscribe(location, number, "offset", at), Subscribed)
        got = [record for record in records_of(self.pushes.pop((OPERATOR, number), []), at) if record.delivered]
        self.ask(Unsubscribe(self.driver.request(), number), Unsubscribed)
        assert got == self.partition(location).shown(at)
        done = got[: count + 1]
        at = done[-1].offset + 1 if done else at
        assert client.move(at, partition) is None
        self.reference.positions[partition] = at

    @operation(who=9, power=1, synced=1)
    def crash_while_acknowledging(self, *, who: int, power: int, synced: int) -> None:
        """Commits that were not answered before a crash may be stored or not; answered ones are."""
        parts = sorted(self.client(who).assigned) if self.clients else []
        location = self._find_partition(parts[who % len(parts)]) if parts else None
        if location is None:
            return
        client, partition, to = self.client(who), parts[who % len(parts)], self.partition(location).end
        commit = CommitPositions(
            self.driver.request(), client.name, client.member, client.generation, (Position(*partition, to),)
        )
        self.driver.send(client.conn, commit)
        if synced:
            self.driver.settle()
        agreed = commit.request in [one.request for one in self.driver.received(client.conn, Agreed)]
        self.start_again(bool(power), False)
        found = self._given(partition)
        if agreed or (found.start, found.value) == ("offset", to):
            self.reference.positions[partition] = to
        known = self.reference.positions.get(partition)
        assert (found.start, found.value) == (("earliest", 0) if known is None else ("offset", known))

    def _given(self, partition: tuple[int, int]) -> PartitionPosition:
        """Where the current holder of the partition begins; the partition may have been between two members."""
        for client in [*self.clients.values()]:
            if partition in client.assigned:
                return client.assigned[partition]
            assert client.release() is None
        self.settle()
        return next(client.assigned[partition] for client in self.clients.values() if partition in client.assigned)

    @operation(who=9, other=9)
    def commit_foreign_position(self, *, who: int, other: int) -> None:
        """A member cannot commit a position of a partition that another one holds."""
        if len(self.clients) < 2:
            return
        client = self.client(who)
        client.receive()
        foreign = sorted(self.reference.positions.keys() - client.assigned.keys() - client.in_use)
        if foreign:
            assert isinstance(client.move(0, foreign[other % len(foreign)]), StaleGeneration)

    @operation(location=9, offset=20)
    def reset(self, *, location: int, offset: int) -> None:
        """Positions can be reset only while the group has no members."""
        where = self.choose_partition(location)
        partition = self.topic_id(where), where[1]
        to = (self.partition(where).end + 1) * offset // 20
        message = ResetGroup(self.driver.request(), "billing", (Position(*partition, to),))
        if not self.joined_total:
            return
        answer = self.answer(message)
        if self.clients:
            assert isinstance(answer, Failed) and answer.code == "GroupBusy"
        else:
            assert isinstance(answer, Agreed), answer
            self.reference.positions[partition] = to

    # --- invariants ---

    def settle(self) -> None:
        super().settle()
        held: set[tuple[int, int]] = set()
        for client in self.clients.values():
            client.receive()
            assert not held & client.in_use, "one member holds a partition"
            held |= client.in_use

    def finish(self) -> None:
        """In the end every record was read by a member."""
        self.settle()
        self.pass_ms(300, 0)
        for _ in range(MEMBERS_MAX + 1):
            for at in range(len(self.clients)):
                self.work(who=at, count=1 << 30)
        if self.clients:
            parts = {
                (self.topic_id(location), location[1]): self.partition(location) for location in self.topic_partitions()
            }
            assert {partition for client in self.clients.values() for partition in client.assigned} == parts.keys()
            for key, partition in parts.items():
                assert partition.shown(self.reference.positions[key]) == []
