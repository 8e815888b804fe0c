"""The Raft fabric of one node: the metadata group, and one group for every partition that has a replica here.

`step` takes one input. Most inputs concern one group and are records: these take the fast path. Any other input is
dispatched to a group or to one of the parts (peers, replicas, placement, transfers, ...); `collect` then gathers the
group's effects, its deadline and whether it sends heartbeats. At the end of a step, newly committed metadata entries
are applied: topics open and close, replicas are created and dropped, members change. Two timers drive all groups: the
heartbeat timer, which sends one heartbeat per pair of nodes for all groups, and the deadline timer, set to the earliest
deadline of all groups.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, assert_never

import msgspec

from rostra.errors import CorruptLog, PeerViolation
from rostra.fabric.api import (
    METADATA,
    Accepted,
    AcksAll,
    AwaitCoverage,
    Blocked,
    Committed,
    Confirm,
    Connect,
    Delivers,
    Describe,
    DiskUnusable,
    Drop,
    Echo,
    FabricEffect,
    FabricInput,
    Forward,
    ForwardDone,
    Guarantees,
    HeldByAll,
    LogLine,
    Now,
    Open,
    Order,
    PeerIdentified,
    PeerLost,
    PeerReceived,
    Persist,
    PrepareStop,
    Propose,
    ProposeDrop,
    ProposeLogStart,
    ProposeSettings,
    ProposeTopic,
    QueryHeldByAll,
    ReadDone,
    Readers,
    ReadFailed,
    Ready,
    Recovered,
    Refused,
    RemoveNode,
    SendToBroker,
    ServedElsewhere,
    Serving,
    SetTimer,
    SplitBehaviour,
    Started,
    Survives,
    Synced,
    TimerFired,
    TransferOwnership,
    WriteFailed,
)
from rostra.fabric.raft.cluster_description import ClusterDescription
from rostra.fabric.raft.consensus import fast_path
from rostra.fabric.raft.consensus.group_state import interrupted_snapshot_start
from rostra.fabric.raft.consensus.hard_state import GroupConfig, GroupConfigAt, HardState, key_of, unpack_hard_state
from rostra.fabric.raft.consensus.raft_group import RaftGroup
from rostra.fabric.raft.consensus.roles import Role
from rostra.fabric.raft.message_router import MessageRouter
from rostra.fabric.raft.messages import AlterTopicRequest, CreateTopicRequest, DropTopicRequest, RemoveNodeRequest
from rostra.fabric.raft.metadata.metadata_group import MetadataGroup
from rostra.fabric.raft.metadata.metadata_state import METADATA_PARTITION, ClusterMember
from rostra.fabric.raft.metadata.placement import ReplicaPlacement
from rostra.fabric.raft.peers.deadline_queue import NEVER_US, DeadlineQueue
from rostra.fabric.raft.peers.peer_set import PeerSet
from rostra.fabric.raft.peers.removal import Removal
from rostra.fabric.raft.replicas.leader_transfer import LeaderTransfer
from rostra.fabric.raft.replicas.reassignment import ReplicaReassignment
from rostra.fabric.raft.replicas.replicas import RETIRED, Replicas
from rostra.fabric.raft.settings import DEADLINE_TIMER, HEARTBEAT_TIMER, RaftSettings
from rostra.fabric.raft.status import problem_of, status_of
from rostra.fabric.status import ClusterStatus
from rostra.model.ids import NodeId, Partition
from rostra.safeguards import ALL_ON, Without

GUARANTEES = Guarantees(
    fabric="raft",
    order=Order.PARTITION,
    acks_all=AcksAll.MAJORITY,
    delivers=Delivers.REPLICA,
    split=SplitBehaviour.REFUSES,
    survives=Survives.MINORITY,
    groups_span_nodes=True,
    exactly_once_sink=True,
)

BOOT = "raft/boot"
META_SEGMENT_BYTES = 1 << 26
META_VOTERS_MAX = 7
UNKNOWN_PEER = NodeId(0)
BROKER_EFFECTS = (Serving, ServedElsewhere, Blocked, Committed, Accepted, Refused)
"""Effects about a partition that are for the broker; the broker does not know the metadata partition."""


class Raft:
    """A node founds a cluster with the nodes in `founders`, itself included, or joins one through addresses."""

    guarantees = GUARANTEES

    def __init__(
        self,
        node: NodeId,
        address: str,
        peer_address: str = "",
        *,
        founders: tuple[ClusterMember, ...] = (),
        join: tuple[str, ...] = (),
        random: Random,
        settings: RaftSettings | None = None,
        without: Without = ALL_ON,
        name: str = "",
    ) -> None:
        self.node = node
        self.address = address
        self.peer_address = peer_address
        self.settings = settings or RaftSettings()
        self.boot = 0
        self.now = Now(0, 0)
        self.peers = PeerSet(self)
        self.groups: dict[Partition, RaftGroup] = {}
        self._without = without
        self._random = random
        self.own = ClusterMember(node, address, peer_address, name)
        self.founders = founders or (() if join else (self.own,))
        self._join = join
        self._metadata: MetadataGroup | None = None
        self._metadata_group: RaftGroup | None = None
        self.metadata: MetadataGroup
        """Set once the node has started."""
        self.metadata_loaded = False
        """Whether the metadata log has been read, so that this node can answer its peers."""
        self.hard_states: dict[str, bytes] = {}
        """Hard states of groups that have no replica here: as recovered, or kept after a replica was dropped."""
        self._recovered: dict[Partition, Recovered] = {}
        self.replicas = Replicas(self)
        self.transfers = LeaderTransfer(self)
        self.placement = ReplicaPlacement(self)
        self.reassignment = ReplicaReassignment(self)
        self.description = ClusterDescription(self)
        self.removal = Removal(self)
        self.router = MessageRouter(self)
        self.removed = False
        """This node was removed from the cluster and refuses every request."""
        self.heartbeat_groups: dict[Partition, RaftGroup] = {}
        """Groups led here that are not quiescent and have followers."""
        self.step_downs = 0
        """How often a group led here stepped down since the start."""
        self.deadlines = DeadlineQueue()
        self._wakeup_us: int | None = None
        self.partition_by_key: dict[str, Partition] = {}
        self._token = 0
        self._ready = False
        self._write_refused = False
        self._electing: list[RaftGroup] = []
        """Groups of this node alone that have yet to elect themselves before the node is ready."""
        self._metadata_changed = False
        """The metadata group did something in this step: entries may be committed."""
        self._recovered_term = 0
        """The term of the metadata group as recovered."""
        self._recovered_commit = False
        """Committed metadata was recovered: the node can serve it before it hears a leader."""
        self.out: list[FabricEffect] = []

    def status(self) -> ClusterStatus | None:
        return status_of(self) if self.metadata_loaded else None

    def problem(self) -> str:
        return problem_of(self)

    def step(self, now: Now, given: FabricInput) -> list[FabricEffect]:
        """Processes one input. Records take the fast path where their group allows it."""
        self.now = now
        if self._ready and not self.removed and self.transfers.stop_deadline_us is None:
            effects = None
            if isinstance(given, PeerReceived):
                message: Any = given.message
                fast = fast_path.HANDLERS.get(type(message))
                if fast is not None and given.peer not in self.metadata.state.removed:
                    group = self.groups.get(message.partition)
                    if group is not None and group.term == message.term:
                        effects = fast(group, now, given.peer, message, given.payload)
            elif isinstance(given, Propose):
                group = self.groups.get(given.partition)
                if group is not None:
                    effects = (
                        group.propose_single(given) if group.fast_single else fast_path.proposed(group, now, given)
                    )
            elif isinstance(given, Synced):
                group = self.groups.get(given.partition)
                if group is not None:
                    effects = group.synced_single(given) if group.fast_single else fast_path.synced(group, now, given)
            if effects is not None:
                return effects
        return self._full_step(given)

    def _full_step(self, given: FabricInput) -> list[FabricEffect]:
        if self.removed:
            return self.removal.refuse(given)
        self.out = []
        try:
            self._dispatch(given)
        except PeerViolation as violation:
            self.out.append(LogLine("error", "peer violated the protocol", {"error": str(violation)}))
        if (
            self._metadata_changed
            or not self._ready
            or self.transfers.stop_deadline_us is not None
            or self.deadlines.next_us != self._wakeup_us
        ):
            self._finish_step()
        return self.out

    def _propose(self, given: Propose) -> None:
        group = self.groups.get(given.partition)
        if group is None:
            self.out.append(Refused(given.token, self.replicas.no_replica_error(given.partition)))
        else:
            group.propose(self.now, given.token, given.batch, given.owner_flags)
            self.collect(group)

    def _dispatch(self, given: FabricInput) -> None:
        match given:
            case PeerReceived():
                self.router.receive(given)
            case Propose():
                self._propose(given)
            case Synced():
                self._with_group(given.partition, lambda group: group.synced(self.now, given.generation, given.offset))
            case ReadDone() | ReadFailed():
                self._read_ended(given)
            case Echo():
                self._echo(given)
            case TimerFired():
                self._timer(given.timer)
            case ProposeTopic():
                self._request_metadata(
                    CreateTopicRequest(
                        self.node, self.boot, given.token, given.spec, given.segment_bytes, given.replicas
                    )
                )
            case ProposeDrop():
                self._request_metadata(DropTopicRequest(self.node, self.boot, given.token, given.topic))
            case ProposeSettings():
                request = AlterTopicRequest(
                    self.node, self.boot, given.token, given.topic, given.settings, given.segment_bytes
                )
                self._request_metadata(request)
            case QueryHeldByAll():
                group = self.groups.get(given.partition)
                if group is not None and group.role is Role.LEADER:
                    self.out.append(HeldByAll(given.partition, group.replication.held_by_all()))
            case Readers():
                self._with_group(given.partition, lambda group: group.set_readers(self.now, given.present))
            case Confirm():
                self.metadata.confirm(given.token)
                self.collect(self.metadata.group)
            case ProposeLogStart():
                self._with_group(given.partition, lambda group: group.advance_log_start(self.now, given.first))
            case WriteFailed():
                self._write_failed(given)
            case PeerIdentified():
                self.peers.contacts[given.peer] = given.address
                self.peers.request_join()
            case PeerLost():
                if self.peers.liveness.mark_lost(given.peer):
                    self.peers.peer_lost(given.peer)
            case Started():
                self._started(given)
            case DiskUnusable():
                for group in list(self.groups.values()):
                    group.fail_disk(self.now)
                    self.collect(group)
            case TransferOwnership():
                self.transfers.transfer(given)
            case RemoveNode():
                self._request_metadata(RemoveNodeRequest(self.node, self.boot, given.token, given.node))
            case Describe():
                self.description.request(given.token)
            case Forward() | ForwardDone() | AwaitCoverage():
                raise AssertionError(f"this fabric redirects clients and forwards nothing: {given}")
            case SendToBroker():
                self.peers.send_to_broker(given)
            case PrepareStop():
                self.transfers.prepare_stop()
            case _:
                assert_never(given)

    def _request_metadata(
        self, request: CreateTopicRequest | DropTopicRequest | AlterTopicRequest | RemoveNodeRequest
    ) -> None:
        self.out += self.metadata.request(request)
        self.collect(self.metadata.group)

    # --- starting ---

    def _started(self, given: Started) -> None:
        self.hard_states = {key: state for key, state in given.hard_states.items() if state}
        self._recovered = {recovered.partition: recovered for recovered in given.partitions}
        if self.removal.was_removed_before():
            return
        self.boot = int.from_bytes(self.hard_states.get(BOOT, b""), "little") + 1
        # No message leaves before the boot number is durable: otherwise two starts could share it.
        self.out.append(Persist(BOOT, self.boot.to_bytes(8, "little"), (Echo(BOOT, self.boot),)))

    def _create_metadata_group(self) -> None:
        config = GroupConfig(tuple(sorted(member.node for member in self.founders)))
        group = self.create_group(METADATA_PARTITION, META_SEGMENT_BYTES, config if self.founders else None)
        group.persists_commit = True
        # Every node reads its own metadata replica.
        group.has_readers = True
        group.name = METADATA
        group.voters_max = META_VOTERS_MAX
        self._metadata = self.metadata = MetadataGroup(self, group)
        self._metadata_group = group
        self._recovered_commit = group.commit > group.log.first
        self._recovered_term = group.term
        if self._metadata.replaying:
            self.out.append(self._metadata.replay_from(group.log.first))
        else:
            self._start_metadata_group()

    def _start_metadata_group(self) -> None:
        """Starts the metadata group after its log was replayed."""
        self.metadata_loaded = True
        group = self.metadata.group
        group.start(self.now)
        self.collect(group)
        self.out += self.metadata.apply()
        self.peers.start()
        for address in self._join:
            self.out.append(Connect(UNKNOWN_PEER, address))
        self.out.append(SetTimer(HEARTBEAT_TIMER, self.now.mono_us))

    def was_member(self, partition: Partition) -> bool:
        """Whether this node has been a member of the partition's group: it has hard state or a log of it."""
        recovered = self._recovered.get(partition)
        return key_of(partition) in self.hard_states or (recovered is not None and recovered.end > 0)

    def create_group(
        self, partition: Partition, segment_bytes: int, config: GroupConfig | None, *, late: bool = False
    ) -> RaftGroup:
        """`late`: the group existed before this replica. This node may have been a member, voted, and lost its log."""
        packed = self.hard_states.pop(key_of(partition), None)
        if packed and self._ready:
            # It may have led this group before: quiescent followers would keep believing so.
            self.step_downs += 1
        initial = (GroupConfigAt(0, 0, config),) if config is not None else ()
        hard_state = unpack_hard_state(packed) if packed else HardState(configs=initial)
        recovered = self._recovered.pop(partition, None)
        if recovered is None:
            self.out.append(Open(partition, segment_bytes))
        elif (first := interrupted_snapshot_start(hard_state, recovered)) is not None:
            self.out += [Drop(partition), Open(partition, segment_bytes, first)]
            recovered = Recovered(partition, first, first, ())
        if late and (recovered is None or not packed):
            hard_state = msgspec.structs.replace(hard_state, complete=False)
        group = RaftGroup(
            self.node,
            recovered or Recovered(partition, 0, 0, ()),
            hard_state,
            settings=self.settings,
            random=self._random,
            next_token=self._next_token,
            address_of=self.address_of,
            segment_bytes=segment_bytes,
            without=self._without,
        )
        self.groups[partition] = group
        self.partition_by_key[key_of(partition)] = partition
        return group

    def remove_group(self, partition: Partition) -> RaftGroup | None:
        group = self.groups.pop(partition, None)
        if group is not None:
            self.heartbeat_groups.pop(partition, None)
            self.partition_by_key.pop(key_of(partition), None)
        return group

    def _next_token(self) -> int:
        # Even tokens above 0: the broker's reads have odd tokens, a replay uses 0.
        self._token += 2
        return self._token

    def boot_token(self, token: int) -> int:
        """The token as sent to peers, unique across restarts, so that late answers are not mistaken."""
        return (self.boot % (1 << 22) << 40) + token

    def address_of(self, node: NodeId) -> str:
        member = self.metadata.state.members.get(node) if self._metadata is not None else None
        if member is None:
            member = next((founder for founder in self.founders if founder.node == node), None)
        return member.address if member is not None else ""

    def _echo(self, given: Echo) -> None:
        if given.key == BOOT:
            self._create_metadata_group()
            return
        if given.key.startswith(RETIRED):
            self.replicas.replica_dropped(given.key)
            return
        partition = self.partition_by_key.get(given.key)
        group = self.groups.get(partition) if partition is not None else None
        if group is not None:
            group.persisted(self.now, given.number)
            self.collect(group)

    # --- groups ---

    def _with_group(self, partition: Partition, action: Callable[[RaftGroup], None]) -> None:
        group = self.groups.get(partition)
        if group is not None:
            action(group)
            self.collect(group)

    def collect(self, group: RaftGroup) -> None:
        """Takes over the group's effects, its deadline and whether it sends heartbeats."""
        if group is self._metadata_group:
            self._metadata_changed = True
            if group.out:
                self.collect_metadata(group.take_effects())
        elif group.out:
            self.out += group.out
            group.out = []
        if group.role is Role.LEADER:
            if not group.was_leader:
                group.was_leader = True
                self.replicas.became_leader(group)
            has_peers = bool(group.replication.progress)
            sends = has_peers and not group.quiescent
            if sends is not group.sends_heartbeats:
                self._set_heartbeats(group, sends)
            if sends and group.wants_heartbeat:
                self.peers.send_heartbeats(dict.fromkeys([group]))
        elif group.was_leader:
            group.was_leader = False
            self._set_heartbeats(group, False)
            self.step_downs += 1
        group.update_fast_path()
        deadline_us = group.deadline_us
        if deadline_us is not None and deadline_us < group.queued_us:
            self._queue_deadline(group, deadline_us)

    def _queue_deadline(self, group: RaftGroup, at_us: int) -> None:
        group.queued_us = at_us
        self.deadlines.push(group.partition, at_us)

    def _set_heartbeats(self, group: RaftGroup, sends: bool) -> None:
        group.sends_heartbeats = sends
        if sends:
            self.heartbeat_groups[group.partition] = group
        else:
            self.heartbeat_groups.pop(group.partition, None)

    def collect_metadata(self, effects: list[FabricEffect]) -> None:
        """Takes over the metadata group's effects, except those for the broker, which does not know its partition."""
        if self._metadata is None:
            self.out += effects
            return
        self._metadata.observe_log(effects)
        for effect in effects:
            if not isinstance(effect, BROKER_EFFECTS):
                self.out.append(effect)

    def _finish_step(self) -> None:
        """Ends a step: applies committed metadata and sets the deadline timer."""
        # Until the node is ready, any group may be the one that it waits for.
        if (self._metadata_changed or not self._ready) and self.metadata_loaded:
            self._apply_metadata()
            self._metadata_changed = False
        if self.transfers.stop_deadline_us is not None:
            self.transfers.finish_stop()
        next_us = self.deadlines.next_us
        if next_us is not None and next_us != self._wakeup_us:
            self._wakeup_us = next_us
            self.out.append(SetTimer(DEADLINE_TIMER, next_us))

    def _apply_metadata(self) -> None:
        meta = self.metadata
        self.out += meta.apply()
        if meta.group.out:
            self.collect(meta.group)
        if meta.awaits_confirmation:
            self.out += meta.take_confirmed()
        if meta.group.role is Role.LEADER and meta.lacks_founders(self.founders):
            self.out += meta.add_founders(self.founders)
            self.collect(meta.group)
        if not self._ready or self._recovered:
            self._check_ready()

    def _check_ready(self) -> None:
        group = self.metadata.group
        is_known = group.knows_commit and self.node in self.metadata.state.members and not self._awaits_self_election()
        restarted = self._recovered_commit and (group.config.voters != (self.node,) or self._write_refused)
        if not self._ready and (is_known or restarted or group.only_copy_damaged):
            self._ready = True
            self.out.append(Ready())
        # A topic created after the recovered commit offset is not known yet, and its log looks orphaned. Orphans may be
        # dropped only in a later term, in which all earlier commits are known: otherwise replicas would be lost.
        if self._recovered and is_known and group.term > self._recovered_term and self.metadata.applied >= group.commit:
            for partition in sorted(self._recovered):
                self.out += [LogLine("warning", "log without topic dropped", {"partition": str(partition)})]
                self.out.append(Drop(partition))
            self._recovered.clear()

    def _awaits_self_election(self) -> bool:
        """Whether a group with this node as only voter has yet to elect itself."""
        if self._ready or self._write_refused:
            return False
        # Scans all groups, perhaps thousands, only when those of the last scan are done.
        waiting = self._electing
        while waiting and not self._must_elect_itself(waiting[-1]):
            waiting.pop()
        if not waiting:
            waiting += [group for group in self.groups.values() if self._must_elect_itself(group)]
        return bool(waiting)

    def _must_elect_itself(self, group: RaftGroup) -> bool:
        # A group whose topic was deleted meanwhile never elects itself.
        is_here = self.groups.get(group.partition) is group
        return is_here and group.config.voters == (self.node,) and group.may_lead and not group.knows_commit

    def _write_failed(self, given: WriteFailed) -> None:
        self._write_refused = True
        if given.partition == METADATA_PARTITION:
            self.metadata.truncate(given.offset)
        self._with_group(given.partition, lambda group: group.write_failed(self.now, given.offset, given.generation))

    def _read_ended(self, given: ReadDone | ReadFailed) -> None:
        group = self.groups.get(given.partition)
        if group is None:
            return
        if given.partition == METADATA_PARTITION and self.metadata.replaying:
            if isinstance(given, ReadFailed):
                self.out.append(LogLine("error", "metadata log damaged", {"error": str(given.error)}))
                group.mark_incomplete()
                self.metadata.replaying = False
                self._start_metadata_group()
                return
            more = self.metadata.replayed(given.batches, given.next)
            if more is not None:
                self.out.append(more)
            else:
                self._start_metadata_group()
        elif isinstance(given, ReadDone):
            group.read_done(self.now, given.token, given.batches)
            self.collect(group)
        else:
            group.read_failed(self.now, given.token, isinstance(given.error, CorruptLog))
            self.collect(group)

    # --- time ---

    def _timer(self, timer: str) -> None:
        if timer == HEARTBEAT_TIMER:
            self.peers.tick()
            self.out += self.metadata.retry_requests()
            self.placement.tick()
            self.metadata.write_snapshot()
            self.collect(self.metadata.group)
            self.reassignment.tick()
            self.transfers.tick()
            self.description.tick()
            self.replicas.balance_leaders()
            self.out.append(SetTimer(HEARTBEAT_TIMER, self.now.mono_us + self.settings.heartbeat_us))
        elif timer == DEADLINE_TIMER:
            self._deadline_timer()

    def _deadline_timer(self) -> None:
        self._wakeup_us = None
        while (due := self.deadlines.pop_due(self.now.mono_us)) is not None:
            at_us, partition = due
            group = self.groups.get(partition)
            if group is None or group.queued_us != at_us:
                continue
            group.queued_us = NEVER_US
            if group.deadline_us is None:
                continue
            if group.deadline_us <= self.now.mono_us:
                group.deadline_passed(self.now)
                self.collect(group)
            else:
                self._queue_deadline(group, group.deadline_us)
