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
from typing import assert_never

from rostra.errors import CorruptLog, PeerViolation, RostraError
from rostra.fabric.api import (
    METADATA,
    UNKNOWN_PEER,
    AcksAll,
    AwaitCoverage,
    BatchOffsets,
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
    Order,
    PeerIdentified,
    PeerLost,
    PeerReceived,
    PrepareStop,
    ProposeDrop,
    ProposeLogStart,
    ProposeSettings,
    ProposeTopic,
    QueryHeldByAll,
    ReadDone,
    Readers,
    ReadFailed,
    Ready,
    RemoveNode,
    SetTimer,
    SplitBehaviour,
    Started,
    Survives,
    Synced,
    TimerFired,
    TransferOwnership,
    WriteFailed,
)
from rostra.fabric.cluster.cluster_description import ClusterDescription
from rostra.fabric.cluster.messages import (
    AlterTopicRequest,
    CreateTopicRequest,
    DropTopicRequest,
    MetadataRequest,
    RemoveNodeRequest,
)
from rostra.fabric.cluster.metadata_entries import METADATA_PARTITION, ClusterMember
from rostra.fabric.cluster.metadata_group import MetadataGroup
from rostra.fabric.cluster.peer_set import PeerSet
from rostra.fabric.cluster.removal import Removal
from rostra.fabric.consensus.group_set import GroupSet
from rostra.fabric.consensus.hard_state import GroupConfig
from rostra.fabric.consensus.raft_group import RaftGroup
from rostra.fabric.links.node_context import NodeContext
from rostra.fabric.raft.leader_transfer import LeaderTransfer
from rostra.fabric.raft.message_router import MessageRouter
from rostra.fabric.raft.placement import ReplicaPlacement
from rostra.fabric.raft.reassignment import ReplicaReassignment
from rostra.fabric.raft.replica_assignments import ReplicaAssignments
from rostra.fabric.raft.replicas import RETIRED, Replicas
from rostra.fabric.raft.settings import DEADLINE_TIMER, HEARTBEAT_TIMER, RaftSettings
from rostra.fabric.raft.status import local_partitions, problem_of, status_of
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
    exactly_once_sink=False,
)

BOOT = "raft/boot"
META_SEGMENT_BYTES = 1 << 26
META_VOTERS_MAX = 7


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
        self.context = context = NodeContext(node, address, peer_address)
        settings = settings or RaftSettings()
        self.settings = settings
        self._join = join
        own = ClusterMember(node, address, peer_address, name)
        self.metadata = metadata = MetadataGroup(context, settings, ReplicaAssignments)
        self.group_set = groups = GroupSet(context, settings, random, self._address_of, without)
        self.groups = groups.replicas
        self.peers = peers = PeerSet(context, settings, groups, metadata, own, founders or (() if join else (own,)))
        self.placement = ReplicaPlacement(context, settings, metadata, peers)
        self.replicas = Replicas(context, settings, groups, metadata, peers)
        self.transfers = LeaderTransfer(context, settings, groups, metadata, peers, self.replicas)
        self.reassignment = ReplicaReassignment(context, settings, groups, metadata, peers, self.placement)
        self.description = ClusterDescription(
            GUARANTEES.fabric,
            context,
            metadata,
            peers,
            lambda: local_partitions(groups, metadata.state),
            settings.election_max_us,
        )
        self.removal = Removal(
            context, groups, metadata, peers, self.replicas, timers=(HEARTBEAT_TIMER, DEADLINE_TIMER)
        )
        self.router = MessageRouter(
            context, groups, metadata, peers, self.placement, self.transfers, self.description, self.removal
        )
        metadata.attach(self.placement, self.replicas, peers)
        groups.became_owner = self.replicas.became_leader
        peers.peer_returned = self.replicas.peer_returned
        peers.peer_gone = self.replicas.reroute
        self.replicas.group_created = self.router.deliver_early
        self._wakeup_us: int | None = None
        self._ready = False
        self._write_refused = False
        self._electing: list[RaftGroup] = []
        """Groups of this node alone that have yet to elect themselves before the node is ready."""
        self._recovered_term = 0
        """The term of the metadata group as recovered."""
        self._recovered_commit = False
        """Committed metadata was recovered: the node can serve it before it hears a leader."""

    @property
    def removed(self) -> bool:
        """Whether this node was removed from the cluster."""
        return self.removal.removed

    @property
    def metadata_loaded(self) -> bool:
        """Whether the metadata log has been read, so that this node can answer its peers."""
        return self.metadata.loaded

    @property
    def boot(self) -> int:
        return self.context.boot

    def _address_of(self, node: NodeId) -> str:
        return self.peers.address_of(node)

    def status(self) -> ClusterStatus | None:
        if not self.metadata.loaded:
            return None
        return status_of(self.context, self.group_set, self.metadata, self.peers)

    def problem(self) -> str:
        return problem_of(self.removal, self.metadata, self.peers)

    def propose(
        self, now: Now, partition: Partition, batch: bytearray, owner_flags: int = 0
    ) -> tuple[BatchOffsets | RostraError, list[FabricEffect]]:
        group = self.groups.get(partition)
        if group is None or self.removal.removed:
            return self.replicas.no_replica_error(partition), []
        self.context.begin_step(now)
        result = group.propose(now, batch, owner_flags)
        self.group_set.collect(group)
        return result, self._finish_step()

    def step(self, now: Now, given: FabricInput) -> list[FabricEffect]:
        """Processes one input."""
        if self.removal.removed:
            return self.removal.refuse(given)
        context = self.context
        context.begin_step(now)
        try:
            self._dispatch(given)
        except PeerViolation as violation:
            context.out.append(LogLine("error", "peer violated the protocol", {"error": str(violation)}))
        return self._finish_step()

    def _dispatch(self, given: FabricInput) -> None:
        match given:
            case PeerReceived():
                self.router.receive(given)
            case Synced():
                group = self.groups.get(given.partition)
                if group is not None:
                    group.synced(self.context.now, given.generation, given.offset)
                    self.group_set.collect(group)
            case ReadDone() | ReadFailed():
                self._read_ended(given)
            case Echo():
                self._echo(given)
            case TimerFired():
                self._timer(given.timer)
            case ProposeTopic():
                self._request_metadata(
                    CreateTopicRequest(
                        self.node, self.context.boot, given.token, given.spec, given.segment_bytes, given.replicas
                    )
                )
            case ProposeDrop():
                self._request_metadata(DropTopicRequest(self.node, self.context.boot, given.token, given.topic))
            case ProposeSettings():
                request = AlterTopicRequest(
                    self.node, self.context.boot, given.token, given.topic, given.settings, given.segment_bytes
                )
                self._request_metadata(request)
            case QueryHeldByAll():
                group = self.groups.get(given.partition)
                if group is not None and group.is_owner:
                    self.context.out.append(HeldByAll(given.partition, group.sender.held_by_all()))
            case Readers():
                self._with_group(given.partition, lambda group: group.set_readers(self.context.now, given.present))
            case Confirm():
                self.metadata.confirm(given.token)
                self.group_set.collect(self.metadata.group)
            case ProposeLogStart():
                self._with_group(given.partition, lambda group: group.advance_log_start(self.context.now, given.first))
            case WriteFailed():
                self._write_failed(given)
            case PeerIdentified():
                self.peers.identified(given.peer, given.address)
            case PeerLost():
                self.peers.link_lost(given.peer)
            case Started():
                self._started(given)
            case DiskUnusable():
                for group in list(self.groups.values()):
                    group.fail_disk(self.context.now)
                    self.group_set.collect(group)
            case TransferOwnership():
                self.transfers.transfer(given)
            case RemoveNode():
                self._request_metadata(RemoveNodeRequest(self.node, self.context.boot, given.token, given.node))
            case Describe():
                self.description.request(given.token)
            case Forward() | ForwardDone() | AwaitCoverage():
                raise AssertionError(f"this fabric redirects clients and forwards nothing: {given}")
            case PrepareStop():
                self.transfers.prepare_stop()
            case _:
                assert_never(given)

    def _request_metadata(self, request: MetadataRequest) -> None:
        self.context.out += self.metadata.request(request)
        self.group_set.collect(self.metadata.group)

    # --- starting ---

    def _started(self, given: Started) -> None:
        self.group_set.recover(given)
        if not self.removal.was_removed_before():
            self.context.start(self.group_set.hard_states, BOOT)

    def _create_metadata_group(self) -> None:
        founders = self.peers.founders
        config = GroupConfig(tuple(sorted(member.node for member in founders)))
        group = self.group_set.create(METADATA_PARTITION, META_SEGMENT_BYTES, config if founders else None)
        group.persists_commit = True
        # Every node reads its own metadata replica.
        group.has_readers = True
        group.name = METADATA
        group.voters_max = META_VOTERS_MAX
        self.metadata.open(group)
        self._recovered_commit = group.commit > group.log.first
        self._recovered_term = group.term
        if self.metadata.replaying:
            self.context.out.append(self.metadata.replay_from(group.log.first))
        else:
            self._start_metadata_group()

    def _start_metadata_group(self) -> None:
        """Starts the metadata group after its log was replayed."""
        self.metadata.loaded = True
        group = self.metadata.group
        group.start(self.context.now)
        self.group_set.collect(group)
        self.context.out += self.metadata.apply()
        self.peers.start()
        for address in self._join:
            self.context.out.append(Connect(UNKNOWN_PEER, address))
        self.context.out.append(SetTimer(HEARTBEAT_TIMER, self.context.now.mono_us))

    def _echo(self, given: Echo) -> None:
        if given.key == BOOT:
            self._create_metadata_group()
            return
        if given.key.startswith(RETIRED):
            self.replicas.replica_dropped(given.key)
            return
        self.group_set.persisted(given)

    # --- groups ---

    def _with_group(self, partition: Partition, action: Callable[[RaftGroup], None]) -> None:
        group = self.groups.get(partition)
        if group is not None:
            action(group)
            self.group_set.collect(group)

    def _finish_step(self) -> list[FabricEffect]:
        """Ends a step: applies committed metadata and sets the deadline timer; returns the effects."""
        # Until the node is ready, any group may be the one that it waits for.
        if (self.metadata.changed or not self._ready) and self.metadata.loaded:
            self._apply_metadata()
            self.metadata.changed = False
        if self.transfers.stop_deadline_us is not None:
            self.transfers.finish_stop()
        next_us = self.group_set.deadlines.next_us
        if next_us is not None and next_us != self._wakeup_us:
            self._wakeup_us = next_us
            self.context.out.append(SetTimer(DEADLINE_TIMER, next_us))
        return self.context.out

    def _apply_metadata(self) -> None:
        meta = self.metadata
        self.context.out += meta.apply()
        if meta.group.out:
            self.group_set.collect(meta.group)
        if meta.awaits_confirmation:
            self.context.out += meta.take_confirmed()
        if meta.group.is_owner and meta.lacks_founders(self.peers.founders):
            self.context.out += meta.add_founders(self.peers.founders)
            self.group_set.collect(meta.group)
        if not self._ready or self.group_set.recovered:
            self._check_ready()

    def _check_ready(self) -> None:
        group = self.metadata.group
        is_known = group.knows_commit and self.node in self.metadata.state.members and not self._awaits_self_election()
        restarted = self._recovered_commit and (group.config.voters != (self.node,) or self._write_refused)
        if not self._ready and (is_known or restarted or group.only_copy_damaged):
            self._ready = self.group_set.serving = True
            self.context.out.append(Ready())
        # A topic created after the recovered commit offset is not known yet, and its log looks orphaned. Orphans may be
        # dropped only in a later term, in which all earlier commits are known: otherwise replicas would be lost.
        if (
            self.group_set.recovered
            and is_known
            and group.term > self._recovered_term
            and self.metadata.applied >= group.commit
        ):
            for partition in sorted(self.group_set.recovered):
                self.context.out += [LogLine("warning", "log without topic dropped", {"partition": str(partition)})]
                self.context.out.append(Drop(partition))
            self.group_set.recovered.clear()

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
        self._with_group(
            given.partition, lambda group: group.write_failed(self.context.now, given.offset, given.generation)
        )

    def _read_ended(self, given: ReadDone | ReadFailed) -> None:
        group = self.groups.get(given.partition)
        if group is None:
            return
        if given.partition == METADATA_PARTITION and self.metadata.replaying:
            if isinstance(given, ReadFailed):
                self.context.out.append(LogLine("error", "metadata log damaged", {"error": str(given.error)}))
                group.mark_incomplete()
                self.metadata.replaying = False
                self._start_metadata_group()
                return
            more = self.metadata.replayed(given.batches, given.next)
            if more is not None:
                self.context.out.append(more)
            else:
                self._start_metadata_group()
        elif isinstance(given, ReadDone):
            group.read_done(self.context.now, given.token, given.batches)
            self.group_set.collect(group)
        else:
            group.read_failed(self.context.now, given.token, isinstance(given.error, CorruptLog))
            self.group_set.collect(group)

    # --- time ---

    def _timer(self, timer: str) -> None:
        if timer == HEARTBEAT_TIMER:
            self.peers.tick()
            self.context.out += self.metadata.retry_requests()
            self.placement.tick()
            self.metadata.write_snapshot()
            self.group_set.collect(self.metadata.group)
            self.reassignment.tick()
            self.transfers.tick()
            self.description.tick()
            if self.transfers.stop_deadline_us is None:
                self.replicas.balance_leaders()
            self.context.out.append(SetTimer(HEARTBEAT_TIMER, self.context.now.mono_us + self.settings.heartbeat_us))
        elif timer == DEADLINE_TIMER:
            self._wakeup_us = None
            self.group_set.deadlines_passed()
