"""The coordinator of consumer groups (named subscriptions): membership, assignment, committed positions.

A group's state lives in one partition of the internal topic `_groups`, chosen by the hash of its name; the owner of
that partition is its coordinator. Every decision is a control batch in that partition's log before any member learns of
it, and replies wait for the commit. So every copy has the same `GroupTable`, and the next owner continues where this
one stopped. Only connections and lease times are in memory: a new owner gives every member a fresh lease.

The rebalance protocol is cooperative; members keep working while partitions move:

1. `JoinGroup` (`join.py`). The fabric first confirms the topic table, so that no matching topic is missed. Then the
member, the new generation and the changed assignments are logged in one batch (`GroupStore.change`). 2. `rebalance`
(`rebalance.py`) computes the new assignment with `assign` (`assignor.py`). A free partition is given to its new member
at once. A partition that another member holds is only *revoked*: logged with the generation of the revocation. 3. Each
member whose set changes gets its whole set (`MemberAssignment`). It stops reading partitions that are missing from it,
commits their positions and sends `Released` with the generation that it has seen. 4. `Released` frees the partitions
revoked up to that generation; a second rebalance gives them to their new members. 5. `CommitPositions` commits
positions. It is fenced: refused with `StaleGeneration` unless the member holds the partition since a generation that it
knows. 6. Every message of a member renews its lease; an idle one sends `MemberHeartbeat`. When a lease expires
(`maintenance.py`), the member is removed and its partitions are free at once; this counts as a try of the first
unacknowledged record in each.

Rebalances are also triggered by topics that are created or deleted and by a change of the coordinator
(`maintenance.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, assert_never

from rostra.broker.api import Conn
from rostra.broker.groups import description
from rostra.broker.groups.group_table import ConsumerGroup, GroupDeleted, GroupPartitionKey, PositionsCommitted
from rostra.broker.groups.join import GroupJoin
from rostra.broker.groups.maintenance import GroupMaintenance
from rostra.broker.groups.store import GroupChange, GroupStore, released
from rostra.broker.partition.served_partition import ServedPartition
from rostra.broker.sessions import Session
from rostra.broker.topics.coordinator_locator import CoordinatorLocator
from rostra.broker.topics.internal_topics import GROUPS_TOPIC
from rostra.errors import (
    GroupBusy,
    LimitExceeded,
    NotAMember,
    RostraError,
    StaleGeneration,
    UnknownGroup,
    UnknownPartition,
    UnknownTopic,
)
from rostra.safeguards import Safeguard
from rostra.wire.groups import (
    CommitPositions,
    DeleteGroup,
    DescribeGroup,
    JoinGroup,
    LeaveGroup,
    ListGroups,
    MemberHeartbeat,
    Released,
    ResetGroup,
)
from rostra.wire.messages import Agreed, NodeMessage

if TYPE_CHECKING:
    from rostra.broker.broker import Broker

Coordinated = (
    JoinGroup
    | Released
    | CommitPositions
    | MemberHeartbeat
    | LeaveGroup
    | ListGroups
    | DescribeGroup
    | ResetGroup
    | DeleteGroup
)


class Coordinator:
    """One per broker, for all partitions of `_groups` that it owns."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        settings = broker.settings
        # Where each node has its own groups, one partition is enough.
        partitions = settings.group_partitions if broker.fabric.guarantees.groups_span_nodes else 1
        self.locator = CoordinatorLocator(broker, GROUPS_TOPIC, partitions, settings.group_segment_bytes)
        self._store = GroupStore(broker)
        self._joins = GroupJoin(broker, self._store)
        self._maintenance = GroupMaintenance(broker, self._store, self._joins)
        self._fences = Safeguard.GENERATION_FENCING not in broker.without

    # --- events ---

    def waiting(self) -> bool:
        return self._joins.is_confirming or self.locator.waiting()

    def confirmed(self, token: int) -> bool:
        """True if the token belongs to a group request."""
        if not self._joins.confirmed(token):
            return self.locator.confirmed(token)
        self._maintenance.set_timer()
        return True

    def refused(self, token: int, error: RostraError) -> bool:
        """True if the token belongs to a group request."""
        if not self._joins.refused(token, error):
            return self.locator.refused(token, error)
        self._maintenance.set_timer()
        return True

    def storage_failed(self, error: RostraError) -> None:
        """Nothing is acknowledged here any more."""
        self.locator.storage_failed(error)

    def positions(self) -> Iterator[tuple[str, ServedPartition, int]]:
        """Name, partition and position, of groups coordinated here in partitions served here."""
        table = self._broker.topic_table
        for coordinating in table.partitions():
            if coordinating.topic != GROUPS_TOPIC or not coordinating.owner:
                continue
            for name, group in sorted(coordinating.derived.groups.groups.items()):
                for (topic, index), row in sorted(group.partitions.items()):
                    served = table.find(topic, index)
                    if row.start == "offset" and not isinstance(served, RostraError):
                        yield name, served, row.value

    def serving(self, served: ServedPartition) -> None:
        """The fabric announced the owner of a partition."""
        if served.topic == GROUPS_TOPIC:
            self._maintenance.serving(served)

    def state_rewound(self, served: ServedPartition) -> None:
        """The log was truncated or inspected again, which changed the group table."""
        if served.topic == GROUPS_TOPIC:
            self._maintenance.state_rewound(served)

    def topic_changed(self, topic: str) -> None:
        """The topic was created or deleted, or got a partition."""
        self._maintenance.topic_changed(topic)

    def connection_lost(self, conn: Conn) -> None:
        self._store.connections.connection_lost(conn)

    def drained(self, conn: Conn) -> None:
        self._store.drained(conn)

    def timer(self) -> None:
        self._maintenance.timer()

    # --- requests ---

    def answer(self, conn: Conn, session: Session, message: Coordinated) -> None:
        broker = self._broker
        served = broker.over_limit(session) or self._partition_for(message)
        if isinstance(served, RostraError):
            broker.refuse(conn, message.request, served)
            return
        match message:
            case JoinGroup():
                self._joins.join(conn, session, message)
                self._maintenance.set_timer()
            case MemberHeartbeat():
                self._heartbeat(conn, served, message)
            case CommitPositions():
                self._commit_positions(conn, session, served, message)
            case Released():
                self._release(conn, session, served, message)
            case LeaveGroup():
                self._leave(conn, session, served, message)
            case ListGroups():
                self._reply_state(
                    conn, session, served, description.page(served.derived.groups, message), message.request
                )
            case DescribeGroup():
                self._describe(conn, session, served, message)
            case ResetGroup():
                self._reset(conn, session, served, message)
            case DeleteGroup():
                self._delete(conn, session, served, message)
            case _:
                assert_never(message)

    def _partition_for(self, message: Coordinated) -> ServedPartition | RostraError:
        """The partition of `_groups` that the request is about, if this node owns it."""
        if not isinstance(message, ListGroups):
            return self._store.partition_of(message.name)
        known = self._broker.topic_table.by_name(GROUPS_TOPIC)
        if known is None:
            return UnknownTopic(GROUPS_TOPIC)
        if message.partition >= len(known.partitions):
            return UnknownPartition(GROUPS_TOPIC, message.partition)
        return self._store.if_owned(known.partitions[message.partition])

    def _reply_state(
        self, conn: Conn, session: Session, served: ServedPartition, message: NodeMessage, request: int
    ) -> None:
        """Replies when the state that is shown is committed."""
        self._broker.proposer.reply_when_committed(conn, session, served, served.end - 1, message, request)

    def _reply_logged(
        self, conn: Conn, session: Session, served: ServedPartition, last: int | RostraError, request: int
    ) -> None:
        """Replies when the batch that ends at `last` is committed; refuses if there is an error."""
        if isinstance(last, RostraError):
            self._broker.refuse(conn, request, last)
        else:
            self._broker.proposer.reply_when_committed(conn, session, served, last, Agreed(request), request)

    # --- members ---

    def _membership_error(self, conn: Conn, group: ConsumerGroup | None, name: str, member: int) -> RostraError | None:
        """Why this connection may not act for the member, if so."""
        if group is None:
            return NotAMember(name, member)
        connections = self._store.connections
        is_there = member in group.members and connections.conn_of((name, member)) == conn
        if is_there:
            connections.heard((name, member), self._broker.now.mono_us)
        return None if is_there or not self._fences else NotAMember(name, member)

    def _heartbeat(self, conn: Conn, served: ServedPartition, message: MemberHeartbeat) -> None:
        error = self._membership_error(conn, served.derived.groups.get(message.name), message.name, message.member)
        if error is not None:
            self._broker.refuse(conn, message.request, error)
        else:
            self._broker.reply(conn, Agreed(message.request))

    def _commit_positions(
        self, conn: Conn, session: Session, served: ServedPartition, message: CommitPositions
    ) -> None:
        group = served.derived.groups.get(message.name)
        error = self._membership_error(conn, group, message.name, message.member) or self._fencing_error(group, message)
        if error is not None:
            self._broker.refuse(conn, message.request, error)
        elif not message.positions:
            self._broker.reply(conn, Agreed(message.request))
        else:
            moved = PositionsCommitted(
                message.name, tuple((one.topic, one.partition, one.offset, one.tries) for one in message.positions)
            )
            self._reply_logged(
                conn, session, served, self._broker.proposer.append_control(served, [moved]), message.request
            )

    def _fencing_error(self, group: ConsumerGroup | None, message: CommitPositions) -> RostraError | None:
        if group is None or not self._fences:
            return None
        for position in message.positions:
            row = group.partitions.get(GroupPartitionKey(position.topic, position.partition))
            if row is None or row.holder != message.member or message.generation < row.since:
                return StaleGeneration(message.name, group.generation)
        return None

    def _release(self, conn: Conn, session: Session, served: ServedPartition, message: Released) -> None:
        group = served.derived.groups.get(message.name)
        error = self._membership_error(conn, group, message.name, message.member)
        if group is None or error is not None:
            self._broker.refuse(conn, message.request, error or NotAMember(message.name, message.member))
            return
        done_with = [
            key
            for key, row in group.partitions.items()
            if row.holder == message.member and 0 < row.revoked <= message.generation
        ]
        if not done_with:
            self._broker.reply(conn, Agreed(message.request))
            return
        changed = self._store.change(served, group, [], group.members, released(group, done_with))
        self._answer(conn, session, served, group, changed, message.request)

    def _leave(self, conn: Conn, session: Session, served: ServedPartition, message: LeaveGroup) -> None:
        group = served.derived.groups.get(message.name)
        if group is None or message.member not in group.members:
            self._broker.reply(conn, Agreed(message.request))
            return
        changed = self._store.remove_members(served, group, [message.member], died=False)
        self._answer(conn, session, served, group, changed, message.request)

    def _answer(
        self,
        conn: Conn,
        session: Session,
        served: ServedPartition,
        group: ConsumerGroup,
        changed: GroupChange | RostraError,
        request: int,
    ) -> None:
        """Replies to the request, then sends new assignments to the members affected."""
        if isinstance(changed, RostraError):
            self._broker.refuse(conn, request, changed)
            return
        self._reply_logged(conn, session, served, changed.last, request)
        self._store.send_assignments(served, group, changed)

    # --- administration ---

    def _describe(self, conn: Conn, session: Session, served: ServedPartition, message: DescribeGroup) -> None:
        group = served.derived.groups.get(message.name)
        if group is None:
            self._broker.refuse(conn, message.request, UnknownGroup(message.name))
        else:
            shown = description.described(self._broker.topic_table, group, message)
            self._reply_state(conn, session, served, shown, message.request)

    def _without_members(self, served: ServedPartition, name: str) -> ConsumerGroup | RostraError:
        group = served.derived.groups.get(name)
        if group is None:
            return UnknownGroup(name)
        return GroupBusy(name, len(group.members)) if group.members else group

    def _reset(self, conn: Conn, session: Session, served: ServedPartition, message: ResetGroup) -> None:
        group = self._without_members(served, message.name)
        last: int | RostraError
        if isinstance(group, RostraError):
            last = group
        else:
            positions = {GroupPartitionKey(one.topic, one.partition): one for one in message.positions}
            bound = self._broker.settings.partitions_per_group_max
            if len(positions.keys() | group.partitions.keys()) > bound:
                last = LimitExceeded("partitions_per_group_max", bound)
            else:
                rows = tuple((*key, one.offset, one.tries) for key, one in sorted(positions.items()))
                last = self._broker.proposer.append_control(served, [PositionsCommitted(message.name, rows)])
        self._reply_logged(conn, session, served, last, message.request)

    def _delete(self, conn: Conn, session: Session, served: ServedPartition, message: DeleteGroup) -> None:
        group = self._without_members(served, message.name)
        last = (
            group
            if isinstance(group, RostraError)
            else self._broker.proposer.append_control(served, [GroupDeleted(message.name)])
        )
        self._reply_logged(conn, session, served, last, message.request)
