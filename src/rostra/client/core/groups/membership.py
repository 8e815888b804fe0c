"""One member of a consumer group: joining, heartbeats, assigned partitions and the commit of positions.

Coordinator. A group is stored in one partition of `_groups`; the owner of that partition coordinates it. The membership
is a follower of that partition's route: when the owner changes or the link is lost, it sends JoinGroup again under the
same member id and keeps its partitions.

Lease. Every message to the coordinator is answered, and an answer renews the lease from the time the message was sent.
Heartbeats are sent several times per lease. A member without an answer for its whole lease may have been replaced: it
delivers nothing until a new assignment says what it holds. If the coordinator has removed it (`NotAMember`), it joins
again.

Assignment. The coordinator sends the complete list of partitions with a generation, possibly in several messages.
Partitions that are missing in it are *revoked*: nothing more is delivered from them, their last positions are
committed, and they are dropped when nothing is unacknowledged, or after `REVOKE_MS_MAX`. Then `Released` tells the
coordinator that they may go to others. New partitions are subscribed to at the position in the assignment.

Positions. Per partition, the lowest offset that is not acknowledged. Changed positions are committed together, one
request at a time, some time after an acknowledgement or after many. A commit under an old generation is refused
(`StaleGeneration`): a revoked partition in it has gone to another member and is dropped; without one, the member joins
again to learn its assignment.

Leaving commits the positions first, then sends LeaveGroup; unacknowledged records go to other members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto
from functools import partial
from typing import Protocol

from rostra.client.core.effects import CallNumber, ClientEffect, Done, Fail, Finish, Notify, SubscriptionNumber
from rostra.client.core.events import MembershipLost
from rostra.client.core.groups.assigned_partition import AckedPosition, AckHandler, AssignedPartition
from rostra.client.core.groups.dispatcher import COMMIT_MS, DeadLetters, Dispatcher
from rostra.client.core.links.node_link import NodeLink
from rostra.client.core.options import MemberSettings, wire_start
from rostra.client.core.routing.coordinator_request import OnReply, Reply, Rpc
from rostra.client.core.routing.partition_route import PartitionRoute
from rostra.errors import ClientClosed, GroupError, NotAMember, RostraError, StaleGeneration, TimedOut
from rostra.wire.groups import (
    PARTITIONS_PER_PAGE_MAX,
    CommitPositions,
    GroupJoined,
    JoinGroup,
    LeaveGroup,
    MemberAssignment,
    MemberHeartbeat,
    PartitionPosition,
    Position,
    Released,
)
from rostra.wire.messages import ClientMessage

REVOKE_MS_MAX = 60_000
"""Unacknowledged records of a revoked partition may be acknowledged for this long; then another member gets them."""
HEARTBEATS_PER_LEASE = 4

PartitionKey = tuple[int, int]
MessageOf = Callable[[int], ClientMessage]


class MembershipHost(DeadLetters, Protocol):
    """What a membership needs from its client."""

    def find(self, now_us: int, membership: Membership) -> None: ...
    def open_feed(
        self, now_us: int, membership: Membership, assigned: AssignedPartition, part: PartitionPosition
    ) -> None: ...
    def close_feed(self, assigned: AssignedPartition) -> None: ...
    def new_member(self) -> int: ...


class MembershipState(Enum):
    FINDING = auto()
    WAITING = auto()
    """For a connection to the coordinator."""
    JOINING = auto()
    MEMBER = auto()
    ENDED = auto()


class Membership:
    def __init__(
        self,
        number: SubscriptionNumber,
        name: str,
        settings: MemberSettings,
        host: MembershipHost,
        ack_handler: AckHandler,
        call: CallNumber,
        due_us: int,
        out: list[ClientEffect],
    ) -> None:
        self.number = number
        self.name = name
        self.settings = settings
        self.member = host.new_member()
        self.state = MembershipState.FINDING
        self.generation = 0
        self.partitions: dict[PartitionKey, AssignedPartition] = {}
        self.dispatcher = Dispatcher(number, name, host, self._may_deliver, self._commit_by, out)
        self.timer_moved = False
        """Set when something became due earlier than before, so that the timer must be set again."""
        self.link: NodeLink
        self.route: PartitionRoute | None = None
        self.find_at_us: int | None = None
        self._host = host
        self._ack_handler = ack_handler
        self._out = out
        self._lease_us = settings.lease_ms * 1000
        self._call = call
        """The call that waits for the first assignment; 0 afterwards."""
        self._due_us = due_us
        self._leaving: CallNumber | None = None
        self._leave_by_us = 0
        self._link_epoch = 0
        """Incremented with every change of the connection; answers to earlier messages are ignored."""
        self._lease_renewed_us = 0
        """When the last answered message was sent."""
        self._heartbeat_at_us = 0
        self._partial_assignment: dict[PartitionKey, PartitionPosition] = {}
        """The parts received so far of an assignment that comes in several messages."""
        self._partial_generation = 0
        self._carry_over = False
        """The next assignment comes from a node that keeps groups of its own: the partitions are carried over."""
        self._has_assignment = False
        self._released = -1
        """The generation last answered with `Released`."""
        self._committing = False
        self._commit_at_us: int | None = None
        self._revoked: dict[AssignedPartition, int] = {}
        """Revoked partitions, and when they are dropped at the latest."""

    # --- the coordinator -----------------------------------------------------------------------------

    def found(self, now_us: int, route: PartitionRoute) -> None:
        if self.state is not MembershipState.FINDING:
            return
        self.state = MembershipState.WAITING
        self.route = route
        route.join(self)
        if not route.stale:
            self.resume(now_us)

    def not_found(self, now_us: int, error: RostraError) -> None:
        if self.state is MembershipState.FINDING:
            if self._call or not error.retryable:
                self.end(error)
            else:
                self.find_at_us = now_us + self._host.pause_us(3)

    @property
    def needs_owner(self) -> bool:
        """The coordinator is named by its own address."""
        return False

    def resume(self, now_us: int) -> None:
        if self.state is not MembershipState.WAITING or not self.link.up:
            return
        self.state = MembershipState.JOINING
        self._partial_assignment.clear()
        settings = self.settings
        start, value = wire_start(settings.start)
        build = partial(
            JoinGroup,
            name=self.name,
            member=self.member,
            patterns=settings.patterns,
            lease_ms=settings.lease_ms,
            start=start,
            value=value,
            tries_max=settings.tries_max,
            dead_letter=settings.dead_letter,
            client=settings.client,
            alter=settings.alter,
        )
        self._send(now_us, build, self._joined)

    def suspend(self) -> None:
        if self.state in (MembershipState.JOINING, MembershipState.MEMBER):
            self.state = MembershipState.WAITING
        self._link_epoch += 1
        self._committing = self._has_assignment = False

    def move(self, link: NodeLink) -> None:
        self.suspend()
        self.link = link

    def partition_changed(self) -> None:
        """The coordinator does not depend on the partition's number."""

    def fail(self, error: RostraError) -> None:
        """The partition that stored the group is gone, or its node is; another one may store it."""
        self.suspend()
        self._carry_over = True
        self.route = None
        self.state = MembershipState.FINDING
        self.find_at_us = 0

    def _send(self, now_us: int, build: MessageOf, answered: OnReply, about: Iterable[AssignedPartition] = ()) -> None:
        on_answer = partial(self._answered, self._link_epoch, now_us, answered)
        refused = partial(self._refused, self._link_epoch, self.generation, tuple(about))
        self.link.send_request(Rpc(on_answer, refused), build)

    def _answered(self, link_epoch: int, sent_us: int, answered: OnReply, now_us: int, message: Reply) -> None:
        if self.state is MembershipState.ENDED and isinstance(message, GroupJoined):
            # The caller has given up, but the coordinator does not know.
            self._send_leave()
        elif link_epoch == self._link_epoch and self.state is not MembershipState.ENDED:
            self._lease_renewed_us = max(self._lease_renewed_us, sent_us)
            answered(now_us, message)

    def _refused(
        self, link_epoch: int, generation: int, about: tuple[AssignedPartition, ...], now_us: int, error: RostraError
    ) -> None:
        if link_epoch != self._link_epoch or self.state is MembershipState.ENDED:
            return
        if isinstance(error, NotAMember):
            self._removed(now_us, error)
        elif isinstance(error, StaleGeneration):
            self._stale(now_us, generation, [assigned for assigned in about if assigned in self._revoked])
        elif error.retryable and not isinstance(error, GroupError):
            self.ended_by_node(now_us, error)
        else:
            self.end(error)

    def _stale(self, now_us: int, generation: int, revoked: list[AssignedPartition]) -> None:
        self._committing = False
        self._commit_by(now_us)
        for assigned in revoked:
            # Another member has it already, as happens after a long absence.
            self._drop(assigned)
        if not revoked and self.generation == generation:
            # No newer assignment is on its way, so ask for one.
            self._rejoin(now_us)

    def ended_by_node(self, now_us: int, error: RostraError) -> None:
        """The node does not coordinate the group, or not now; or this is not a member of it."""
        if isinstance(error, NotAMember):
            self._removed(now_us, error)
            return
        self.suspend()
        if self.route is not None:
            self.route.refused(now_us, error)

    def _removed(self, now_us: int, error: RostraError) -> None:
        """The coordinator removed this member. Its partitions may be with others; the next assignment will say."""
        self._out.append(Notify(MembershipLost(self.name, str(error))))
        self._lease_renewed_us = now_us - self._lease_us
        if self._leaving is not None:
            self._finish_leave()
        else:
            self._rejoin(now_us)

    def _rejoin(self, now_us: int) -> None:
        self.suspend()
        if self.route is not None and not self.route.stale:
            self.resume(now_us)

    # --- joining and leaving -------------------------------------------------------------------------

    def _joined(self, now_us: int, message: Reply) -> None:
        if not isinstance(message, GroupJoined) or self.state is not MembershipState.JOINING:
            return
        self.state = MembershipState.MEMBER
        self.generation = message.generation
        self.dispatcher.tries_max, self.dispatcher.dead_letter = message.tries_max, message.dead_letter
        self._heartbeat_at_us = now_us + self._lease_us // HEARTBEATS_PER_LEASE
        self._released = -1
        if self.route is not None:
            self.route.confirm()
        self._commit_by(now_us)

    def leave(self, now_us: int, call: CallNumber, due_us: int) -> None:
        """Leave the group: commit the positions first; unacknowledged records go to other members."""
        self._leaving, self._leave_by_us = call, due_us
        if self.state is MembershipState.ENDED or (self.state is not MembershipState.MEMBER and not self.partitions):
            self._finish_leave()
            return
        for assigned in self.partitions.values():
            assigned.revoked = True
        self._commit_by(now_us)
        self._advance(now_us)

    def _leave_answered(self, now_us: int, message: Reply) -> None:
        self.state = MembershipState.WAITING
        self._finish_leave()

    def _finish_leave(self) -> None:
        leaving, call, self._leaving, self._call = self._leaving, self._call, None, 0
        self._close()
        if call:
            self._out.append(Fail(call, ClientClosed()))
        if leaving is not None:
            self._out.append(Done(leaving, None))

    def end(self, error: RostraError) -> None:
        if self.state is MembershipState.ENDED:
            return
        leaving, call, self._leaving, self._call = self._leaving, self._call, None, 0
        self._close()
        if call:
            self._out.append(Fail(call, error))
        elif leaving is not None:
            self._out.append(Fail(leaving, error))
        else:
            self._out.append(Finish(self.number, error))

    def _close(self) -> None:
        if self.state is MembershipState.MEMBER:
            self._send_leave()
        self.state = MembershipState.ENDED
        self._link_epoch += 1
        for assigned in list(self.partitions.values()):
            self._drop(assigned)
        if self.route is not None:
            self.route.leave(self)
        self.find_at_us = None

    def _send_leave(self) -> None:
        """Leave explicitly, because the connection may be used by others and would keep the member alive."""
        if self.link.up:
            ignored = Rpc(lambda now_us, message: None, lambda now_us, error: None)
            self.link.send_request(ignored, partial(LeaveGroup, name=self.name, member=self.member))

    # --- assigned partitions -------------------------------------------------------------------------

    def assigned(self, now_us: int, message: MemberAssignment) -> None:
        if self.state is not MembershipState.MEMBER or message.generation < self.generation:
            return
        if message.generation != self._partial_generation:
            self._partial_assignment, self._partial_generation = {}, message.generation
        self._partial_assignment.update(((part.topic, part.partition), part) for part in message.partitions)
        if message.more:
            return
        assignment, self._partial_assignment = self._partial_assignment, {}
        self.generation = message.generation
        self._has_assignment = True
        for key, assigned in list(self.partitions.items()):
            if key not in assignment and not assigned.revoked:
                assigned.revoked = True
                self._revoked[assigned] = now_us + REVOKE_MS_MAX * 1000
            elif key in assignment and not self._continues(assigned, assignment[key]):
                # Another member had it meanwhile, so it starts anew.
                self._drop(assigned)
        self._carry_over = False
        for key, part in assignment.items():
            if key not in self.partitions and self._leaving is None:
                self._start_partition(now_us, key, part)
        self._commit_by(now_us)
        self._advance(now_us)
        self.dispatcher.wake_waiter(now_us)

    def _continues(self, assigned: AssignedPartition, part: PartitionPosition) -> bool:
        return assigned.carry_over(part) if self._carry_over else part.since == assigned.since

    def _start_partition(self, now_us: int, key: PartitionKey, part: PartitionPosition) -> None:
        committed = AckedPosition(part.value, part.tries) if part.start == "offset" else None
        assigned = AssignedPartition(self._ack_handler, part, committed)
        self.partitions[key] = assigned
        self.dispatcher.add(assigned)
        self._host.open_feed(now_us, self, assigned, part)

    def _drop(self, assigned: AssignedPartition) -> None:
        del self.partitions[assigned.topic, assigned.partition]
        self._revoked.pop(assigned, None)
        self._host.close_feed(assigned)
        self.dispatcher.remove(assigned)

    def feed_failed(self, now_us: int, assigned: AssignedPartition, error: RostraError | None) -> None:
        """The feed ended: its topic was deleted, or with an error it can not be read."""
        if self.partitions.get((assigned.topic, assigned.partition)) is assigned:
            if error is not None:
                self.end(error)
            else:
                self._drop(assigned)
                self._commit_by(now_us)

    def feed_started(self, now_us: int) -> None:
        """The start of a partition is known: commit it at once."""
        self._commit_by(now_us)
        self._advance(now_us)

    def _answer_if_started(self) -> None:
        ready = self._has_assignment and all(
            assigned.revoked or (assigned.started and assigned.committed is not None)
            for assigned in self.partitions.values()
        )
        if self._call and ready:
            self._out.append(Done(self._call, None))
            self._call = 0

    # --- positions -----------------------------------------------------------------------------------

    @property
    def lag(self) -> int:
        return sum(assigned.lag for assigned in self.partitions.values())

    def skipped(self, now_us: int, assigned: AssignedPartition) -> None:
        """A push may have contained no records: the position passes it."""
        if not assigned.unacked and not assigned.queue:
            self._commit_by(now_us + COMMIT_MS * 1000)

    def _advance(self, now_us: int) -> None:
        """Commit changed positions; then drop revoked partitions and send Released; then leave, if requested."""
        if not self._has_assignment or self._committing or self._commit_at_us is None or self._commit_at_us > now_us:
            return
        self._commit_at_us = None
        self.dispatcher.committing()
        changed = {
            assigned: position
            for assigned in self.partitions.values()
            if (position := assigned.position()) is not None and position != assigned.committed
        }
        # A revoked partition may be another's already; a refusal because of it must not delay the others.
        revoked = {assigned: position for assigned, position in changed.items() if assigned in self._revoked}
        if changed:
            self._commit(now_us, dict(list((revoked or changed).items())[:PARTITIONS_PER_PAGE_MAX]))
            return
        self._answer_if_started()
        if self._leaving is not None:
            self._committing = True
            self._send(now_us, partial(LeaveGroup, name=self.name, member=self.member), self._leave_answered)
            return
        for assigned, until_us in list(self._revoked.items()):
            if not assigned.unacked or until_us <= now_us:
                self._drop(assigned)
        if not self._revoked and self._released < self.generation:
            self._released = self.generation
            self._send(now_us, self._member_message(Released), self._heartbeat_answered)

    def _commit(self, now_us: int, positions_by_partition: dict[AssignedPartition, AckedPosition]) -> None:
        self._committing = True
        positions = tuple(
            Position(assigned.topic, assigned.partition, position.offset, position.tries)
            for assigned, position in positions_by_partition.items()
        )
        build = partial(
            CommitPositions, name=self.name, member=self.member, generation=self.generation, positions=positions
        )
        self._send(now_us, build, partial(self._committed, positions_by_partition), positions_by_partition)

    def _committed(
        self, positions_by_partition: dict[AssignedPartition, AckedPosition], now_us: int, message: Reply
    ) -> None:
        self._committing = False
        for assigned, position in positions_by_partition.items():
            assigned.committed = position
        more = (
            self._call
            or self._revoked
            or self._leaving is not None
            or len(positions_by_partition) == PARTITIONS_PER_PAGE_MAX
        )
        if more or self._released < self.generation:
            self._commit_by(now_us)
            self._advance(now_us)

    def _heartbeat_answered(self, now_us: int, message: Reply) -> None:
        """The lease is renewed: deliver again if that was in doubt."""
        self.dispatcher.wake_waiter(now_us)

    def _member_message(self, kind: type[Released] | type[MemberHeartbeat]) -> MessageOf:
        return partial(kind, name=self.name, member=self.member, generation=self.generation)

    # --- time ----------------------------------------------------------------------------------------

    def _may_deliver(self, now_us: int) -> bool:
        """Not while the lease may have expired, nor before a new assignment: the partitions may be another's."""
        current = self._has_assignment or self.state is not MembershipState.MEMBER
        return current and self._leaving is None and now_us < self._lease_renewed_us + self._lease_us

    def _commit_by(self, at_us: int) -> None:
        if self._commit_at_us is None or at_us < self._commit_at_us:
            self._commit_at_us = at_us
            self.timer_moved = True

    def deadline_us(self) -> int | None:
        if self.state is MembershipState.ENDED:
            return None
        due = [self.find_at_us, self._due_us if self._call else None]
        if self._leaving is not None:
            due.append(self._leave_by_us)
        if self.state is MembershipState.MEMBER:
            due.append(self._heartbeat_at_us)
            if self._has_assignment and not self._committing:
                due += [self._commit_at_us, *self._revoked.values()]
        due.append(self.dispatcher.deadline_us())
        return min([moment for moment in due if moment is not None], default=None)

    def tick(self, now_us: int) -> None:
        if self._call and self._due_us <= now_us:
            last_error = None if self.route is None else self.route.error
            self.end(last_error or TimedOut(f"join {self.name}", self._lease_us // 1000))
        elif self._leaving is not None and self._leave_by_us <= now_us:
            self.end(TimedOut(f"leave {self.name}", self._lease_us // 1000))
        if self.state is MembershipState.ENDED:
            return
        if self.find_at_us is not None and self.find_at_us <= now_us:
            self.find_at_us = None
            self._host.find(now_us, self)
        if self.state is MembershipState.MEMBER and self._heartbeat_at_us <= now_us:
            self._heartbeat_at_us = now_us + self._lease_us // HEARTBEATS_PER_LEASE
            self._send(now_us, self._member_message(MemberHeartbeat), self._heartbeat_answered)
        if any(until_us <= now_us for until_us in self._revoked.values()):
            self._commit_by(now_us)
        self._advance(now_us)
        self.dispatcher.wake_waiter(now_us)
