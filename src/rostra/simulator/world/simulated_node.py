"""The simulated driver of a node: executes a broker's effects on virtual time.

Theory of operation. The node is the production broker, with its fabric and its log store; this class takes the place
of `rostra.runtime`. Every input goes through `_feed`, which steps the broker and executes its effects: messages go
to the simulated networks, timers to the clock, log changes to the store on the simulated disk. Disk work is
asynchronous, as with real disks: writes are flushed after a short delay, syncs and reads take drawn times, and their
results come back as later inputs.

A process is one `incarnation`. A crash drops the broker and all that was in memory and increments the incarnation;
callbacks scheduled by an earlier incarnation do nothing. What survives is the disk (`FaultyFiles`), less what was not
synced if the power was cut. A paused node queues its inputs and handles them when it resumes.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from random import Random
from typing import Any, assert_never

from rostra.broker.api import (
    Boot,
    BrokerEffect,
    BrokerInput,
    CloseConnection,
    Compact,
    ConnectionAccepted,
    ConnectionCongested,
    ConnectionDrained,
    ConnectionLost,
    FindLast,
    FindTime,
    Greeted,
    InspectLog,
    Listen,
    ListSegments,
    MessageReceived,
    PushTo,
    Reply,
    RequestDrain,
    Stop,
    Stopped,
    SyncFailed,
)
from rostra.broker.broker import SWEEP, Broker, BrokerIdentity
from rostra.broker.disk import Disk, Job, LookUp
from rostra.broker.settings import BrokerSettings
from rostra.errors import DiskUntrusted, PeerViolation, StorageError
from rostra.fabric.api import (
    Append,
    Connect,
    Disconnect,
    Drop,
    Fabric,
    LogLine,
    Now,
    Open,
    PeerIdentified,
    PeerLost,
    PeerReceived,
    Persist,
    Read,
    Send,
    SetTimer,
    Sync,
    TimerFired,
    Trim,
    Truncate,
)
from rostra.fabric.cluster.metadata_entries import METADATA_PARTITION, ClusterMember
from rostra.fabric.raft.machine import Raft
from rostra.fabric.raft.settings import RaftSettings
from rostra.log.facts import LogSettings
from rostra.log.store import Store
from rostra.model.ids import ClusterId, NodeId, Partition
from rostra.safeguards import Without
from rostra.simulator.clock import EPOCH_US, MS_US, Clock
from rostra.simulator.disk.faulty_files import FaultyFiles
from rostra.simulator.faults.fault_plan import Fault, FaultCounts, FaultPlan
from rostra.simulator.history import History
from rostra.simulator.network.client_network import ClientNetwork, SimulatedConnection
from rostra.simulator.network.peer_network import PeerNetwork
from rostra.simulator.trace import Trace
from rostra.simulator.world.fabric_observer import FabricObserver, read_logs
from rostra.wire.frames import FROM_CLIENT, FrameReader, encode
from rostra.wire.messages import ClientMessage, Publish

LOG_SETTINGS = LogSettings(
    index_every_bytes=512, indexes_cached_max=8, files_open_max=16, sync_together_min=6, journal_bytes=8 << 10
)
SYNC_AGAIN_US = 20 * MS_US
"""Delay before a sync is retried that a full disk refused."""


def member(number: int) -> ClusterMember:
    return ClusterMember(NodeId(number), f"node{number}:7400", f"node{number}:7401")


class SimulatedNode:
    """One node: its disk, and its process while it runs. The world sets `client_network` and `peer_network`."""

    def __init__(
        self,
        number: int,
        clock: Clock,
        trace: Trace,
        plan: FaultPlan,
        fault_counts: FaultCounts,
        history: History,
        files: FaultyFiles,
        settings: BrokerSettings,
        raft_settings: RaftSettings,
        random: Random,
        without: Without,
    ) -> None:
        own = member(number)
        self.id = own.node
        self.name = f"node{number}"
        self.address = own.address
        self.peer_address = own.peer_address
        self.founders: tuple[ClusterMember, ...] = (own,)
        self.join: tuple[str, ...] = ()
        """Peer addresses to join the cluster through; empty for a founder."""
        self.clock = clock
        self.trace = trace
        self.plan = plan
        self.fault_counts = fault_counts
        self.history = history
        self.files = files
        self.settings = settings
        self.raft_settings = raft_settings
        self.random = random
        self.without = without
        self.client_network: ClientNetwork
        self.peer_network: PeerNetwork
        self.skew_us = 0
        self.fault_free = True
        self.incarnation = 0
        self.host_up = True
        self.listening = False
        self.broker: Broker | None = None
        self.up = False
        """Whether the process runs."""
        self.fabric: FabricObserver | None = None
        self.on_stopped: Callable[[SimulatedNode], None] = lambda _: None
        """Called when a graceful stop has completed."""
        self.on_broken: Callable[[SimulatedNode], None] = lambda _: None
        """Called when a disk error made the broker refuse all writes until it is restarted."""
        self._disk: Disk
        self._paused_until_us = 0
        self._waiting: list[BrokerInput] = []
        self._links: dict[int, SimulatedConnection] = {}
        self._readers: dict[int, FrameReader[ClientMessage]] = {}
        self._timers: dict[str, int] = {}
        self._wrote = self._flushing = self._flush_due = False
        self._syncing = False
        self._sync_due = False
        self._voters: dict[Partition, tuple[str, tuple[NodeId, ...]]] = {}

    # --- starting and stopping -----------------------------------------------------------------------

    def voters(self) -> dict[Partition, tuple[str, tuple[NodeId, ...]]]:
        """Its Raft groups, each with its name and voters; of a crashed node, as it last knew them."""
        if self.fabric is None or not self.fabric.raft.groups:
            return self._voters
        groups = self.fabric.raft.groups
        return {partition: (group.name, group.config.voters) for partition, group in groups.items()}

    def upcoming_voters(self) -> tuple[int, dict[Partition, list[tuple[NodeId, ...]]]]:
        """The applied metadata offset, and the voter sets after the membership changes that are under way."""
        if self.fabric is None or not self.fabric.raft.metadata_loaded:
            return 0, {}
        raft = self.fabric.raft
        state = raft.metadata.state
        found: dict[Partition, list[tuple[NodeId, ...]]] = {}
        for partition in (METADATA_PARTITION, *state.partitions()):
            group = raft.groups.get(partition)
            target = state.members if partition == METADATA_PARTITION else state.replica_assignment(partition).replicas
            voters = set(group.config.voters if group is not None else target)
            more = voters.union(target, group.config.learners if group is not None else ())
            stay = set(state.remaining)
            found[partition] = [tuple(sorted(config)) for config in (more, voters & stay, more & stay) if config]
        return raft.metadata.applied, found

    def is_caught_up(self) -> bool:
        """Whether it knows the leader of all its groups, and all it has is committed."""
        if self.fabric is None:
            return False
        raft = self.fabric.raft
        if not raft.metadata_loaded or raft.removed or raft.metadata.state.leaving or raft.metadata.state.reassigning:
            return False
        # All must be committed, because no client waits for records with `acks=none`.
        return all(
            group.only_copy_damaged
            or (group.leader is not None and group.knows_commit and group.commit == group.log.end)
            for group in raft.groups.values()
        )

    def has_removed(self, member: NodeId) -> bool:
        """Whether its metadata says that this member was removed."""
        fabric = self.fabric
        return fabric is not None and fabric.raft.metadata_loaded and member in fabric.raft.metadata.state.removed

    def member_count(self, besides: NodeId) -> int:
        """How many members other than this one its metadata has."""
        fabric = self.fabric
        if fabric is None or not fabric.raft.metadata_loaded:
            return 0
        return sum(member != besides for member in fabric.raft.metadata.state.members)

    @property
    def needs_restart(self) -> bool:
        return self.broker is not None and self.broker.broken is not None

    def start(self) -> bool:
        """Starts the process; False if the disk could not be recovered."""
        assert self.broker is None
        self.incarnation += 1
        store = Store(self.files, LOG_SETTINGS, self.without)
        self._disk = Disk(store, syncs=self.plan.syncs)
        try:
            boot, recovery = self._disk.boot()
        except StorageError as error:
            self.trace.note(self.name, "no start", detail=error)
            return False
        except Exception:
            self._record_exception("starting")
            return False
        for found in recovery.notes:
            self.trace.note(self.name, "recovery", found.event.encode(), found)
        self.history.starts_us.append(self.clock.now_us)
        identity = BrokerIdentity(ClusterId(1), self.id)
        self.broker = Broker(identity, self._make_fabric(), self.settings, self.random, self.without)
        self.up = True
        self.trace.note(self.name, "start", detail=f"incarnation {self.incarnation}, {len(boot.logs)} logs")
        self._later(self.random.randrange(5 * MS_US), self._feed, boot)
        return True

    def _make_fabric(self) -> Fabric:
        """Its fabric, wrapped in an observer."""
        raft = Raft(
            self.id,
            self.address,
            self.peer_address,
            founders=self.founders,
            join=self.join,
            random=self.random,
            settings=self.raft_settings,
            without=self.without,
        )
        self.fabric = self._observed(raft)
        return self.fabric

    def _observed(self, fabric: Fabric) -> FabricObserver:
        return FabricObserver(fabric, self.id, self.clock, self.history, read_logs(self.files))

    def crash(self, *, power: bool) -> None:
        """Ends the process abruptly; a power cut also loses unsynced data."""
        self.trace.note(self.name, "power cut" if power else "kill")
        if self.up:
            self.fault_counts.add(Fault.POWER_CUT if power else Fault.KILLED)
            if power and self._syncing:
                self.fault_counts.add(Fault.CUT_SYNC)
        self._drop_process_state(silently=power)
        if power:
            self.host_up = False
            self.files.crash()

    def _drop_process_state(self, *, silently: bool) -> None:
        self.incarnation += 1
        self._voters = self.voters()
        self.broker = self.fabric = None
        self.up = False
        self.listening = False
        self._paused_until_us = 0
        self._waiting.clear()
        self._readers.clear()
        self._timers.clear()
        self._wrote = self._flushing = self._flush_due = self._syncing = self._sync_due = False
        links, self._links = self._links, {}
        self.client_network.node_died(list(links.values()), silently=silently)
        self.peer_network.node_ended(self.id, silently=silently)

    def stop(self) -> None:
        if self.up:
            self._feed(Stop())

    def _close(self) -> None:
        """Closes the store cleanly and ends the process, after the broker has stopped."""
        try:
            self._disk.flush()
            self._disk.store.close(clean=True)
        except StorageError as error:
            self.trace.note(self.name, "unclean", detail=error)
        except Exception:
            self._record_exception("closing")
        self.fault_counts.add(Fault.STOPPED)
        self._drop_process_state(silently=False)
        self.on_stopped(self)

    def pause(self, duration_us: int) -> None:
        if self.up and not self._paused_until_us:
            self._paused_until_us = self.clock.now_us + duration_us
            self.trace.note(self.name, "pause", detail=duration_us)
            self._later(duration_us, self.resume, self._paused_until_us)

    def resume(self, until_us: int | None = None) -> None:
        """Resumes now, or, with `until_us`, only if that pause is still the current one."""
        if not self._paused_until_us or until_us not in (None, self._paused_until_us):
            return
        self._paused_until_us = 0
        waiting, self._waiting = self._waiting, []
        self.trace.note(self.name, "resume", detail=f"{len(waiting)} inputs")
        self.fault_counts.add(Fault.PAUSED, len(waiting))
        incarnation = self.incarnation
        for given in waiting:
            if self.incarnation == incarnation:
                self._feed(given)
        if self._flush_due and self.incarnation == incarnation:
            self._flush()

    def _later(self, delay_us: int, callback: Callable[..., None], *args: Any) -> None:
        """Schedules a callback that is skipped if the process has ended by then."""
        self.clock.after(delay_us, self._if_alive, self.incarnation, callback, args)

    def _if_alive(self, incarnation: int, callback: Callable[..., None], args: tuple[Any, ...]) -> None:
        if incarnation == self.incarnation:
            callback(*args)

    def _record_exception(self, where: str) -> None:
        self.history.exceptions.append(f"{self.name} {where}: {traceback.format_exc()}")
        self.trace.note(self.name, "escaped", detail=where)

    # --- the broker ----------------------------------------------------------------------------------

    def _feed(self, given: BrokerInput) -> None:
        broker = self.broker
        if broker is None:
            return
        if self._paused_until_us and not isinstance(given, Boot):
            self._waiting.append(given)
            return
        now_us = self.clock.now_us
        was_broken = broker.broken is not None
        try:
            for effect in broker.step(Now(now_us, EPOCH_US + now_us + self.skew_us), given):
                self._carry_out(effect)
        except Exception:
            self._record_exception(f"stepping {type(given).__name__}")
            self.crash(power=False)
            return
        if broker.broken is not None and not was_broken:
            self.on_broken(self)
        if self._wrote and not self._flushing and self.broker is not None:
            self._flushing = True
            self._wrote = False
            self._later(int(self.random.random() * self.plan.turn_us), self._flush)

    def _carry_out(self, effect: BrokerEffect) -> None:
        match effect:
            case Send():
                framed: Any = effect.message
                self.peer_network.send(self, effect.peer, framed, effect.payload)
            case SetTimer():
                self._set_timer(effect)
            case Reply():
                self._send(effect.conn, encode(effect.message), effect.message)
            case PushTo():
                size = sum(map(len, effect.batches))
                self._send(
                    effect.conn, b"".join((encode(effect.message, size), *effect.batches)), (effect.message, size)
                )
            case Append() | Sync() | Open() | Drop() | Truncate() | Trim():
                self._wrote = True
                self._disk.change(effect)
            case Read() | FindLast() | FindTime() | ListSegments() | InspectLog():
                self._later(self._disk_us(), self._look_up, effect)
            case LogLine():
                self.trace.note(self.name, effect.level, effect.event.encode(), effect)
            case RequestDrain():
                self._later(self.random.randint(0, self.plan.turn_us), self._drain_unless_congested, effect.conn)
            case Greeted():
                reader = self._readers.get(effect.conn)
                if reader is not None:
                    reader.frame_bytes_max = self.settings.frame_bytes_max
            case CloseConnection():
                link = self._links.get(effect.conn)
                if link is not None:
                    link.node_closes()
            case Compact():
                self._run(self._disk.begin_compaction(effect), 0, syncs=False)
            case Persist():
                self._run(self._disk.begin_persist(effect), 0, False)
            case Listen():
                self.listening = True
            case Stopped():
                self._later(0, self._close)
            case Connect():
                self.peer_network.connect(self, effect.peer, effect.address)
            case Disconnect():
                self.peer_network.disconnect(self, effect.peer)
            case _:
                assert_never(effect)

    def _set_timer(self, effect: SetTimer) -> None:
        if effect.at_us is None:
            self._timers.pop(effect.timer, None)
            return
        self._timers[effect.timer] = effect.at_us
        self.clock.at(effect.at_us, self._if_alive, self.incarnation, self._timer, (effect.timer, effect.at_us))

    def _timer(self, timer: str, at_us: int) -> None:
        if self._timers.get(timer) == at_us:
            del self._timers[timer]
            self.trace.note(self.name, "timer", timer.encode(), timer)
            self._feed(TimerFired(timer))
            if timer == SWEEP:
                self._record_queue_sizes()

    # --- the disk ------------------------------------------------------------------------------------

    def _disk_us(self) -> int:
        low, high = self.plan.sync_us
        took_us = low + int(self.random.random() * (high - low))
        if self.plan.slow and not self.fault_free and self.random.random() < self.plan.slow:
            self.fault_counts.add(Fault.SLOW_SYNC)
            took_us += int(self.random.random() * self.plan.slow_us)
        return took_us

    def _flush(self) -> None:
        self._flush_due = self._paused_until_us > 0
        if self._flush_due:
            return
        self._flushing = False
        try:
            happened = self._disk.flush()
        except Exception:
            self._record_exception("flushing")
            self.crash(power=False)
            return
        for given in happened:
            self.trace.note(self.name, "disk", type(given).__name__.encode(), given)
            self._feed(given)
        self._begin_sync()

    def _begin_sync(self) -> None:
        if self._syncing or self.broker is None:
            return
        try:
            job = self._disk.begin_sync()
        except Exception:
            self._record_exception("beginning a sync")
            self.crash(power=False)
            return
        if job is not None:
            self._syncing = True
            self._run(job, 0, True)
        elif self._disk.wants_sync and not self._sync_due:
            self._sync_due = True
            self._later(SYNC_AGAIN_US, self._sync_again)

    def _sync_again(self) -> None:
        self._sync_due = False
        self._flush()

    def _run(self, job: Job, at: int, syncs: bool) -> None:
        """Runs a disk job call by call, each with a delay, so that a power cut may come in between."""
        try:
            if at > 0:
                job.calls[at - 1]()
            if at < len(job.calls):
                share_us = self._disk_us() // len(job.calls)
                self._later(share_us, self._run, job, at + 1, syncs)
                return
            happened = job.finish()
        except DiskUntrusted as error:
            self.trace.note(self.name, "sync failed", detail=error)
            happened = [SyncFailed(error)]
        except Exception:
            self._record_exception("syncing")
            self.crash(power=False)
            return
        if syncs:
            self._syncing = False
        for given in happened:
            self.trace.note(self.name, "done", type(given).__name__.encode(), given)
            self._feed(given)
        if syncs:
            self._flush()

    def _look_up(self, effect: LookUp) -> None:
        try:
            given = self._disk.look_up(effect)
        except Exception:
            self._record_exception(f"looking up {effect}")
            self.crash(power=False)
            return
        self.trace.note(self.name, "looked up", detail=given)
        self._feed(given)

    # --- connections ---------------------------------------------------------------------------------

    def accept(self, link: SimulatedConnection) -> None:
        self._links[link.conn] = link
        self._readers[link.conn] = FrameReader(FROM_CLIENT)
        self.trace.note(self.name, "accept", b"%d" % link.conn, f"{link.conn} from {link.client.name}")
        self._feed(ConnectionAccepted(link.conn))

    def received(self, link: SimulatedConnection, chunk: bytes) -> None:
        reader = self._readers.get(link.conn)
        if reader is None:
            return
        self.trace.note(self.name, "received", chunk, (link.conn, len(chunk)))
        try:
            messages = reader.feed(chunk)
        except PeerViolation:
            self._record_exception(f"reading from {link.client.name}")
            link.node_closes()
            return
        for message, payload in messages:
            if self.skew_us and isinstance(message, Publish):
                self.fault_counts.add(Fault.SKEWED)
            self._feed(MessageReceived(link.conn, message, payload))

    def lost(self, link: SimulatedConnection) -> None:
        self._links.pop(link.conn, None)
        self._readers.pop(link.conn, None)
        self.trace.note(self.name, "lost", b"%d" % link.conn, link.conn)
        self._feed(ConnectionLost(link.conn))

    def congested(self, link: SimulatedConnection) -> None:
        if link.conn in self._links:
            self._feed(ConnectionCongested(link.conn))

    def drained(self, link: SimulatedConnection) -> None:
        if link.conn in self._links:
            self._feed(ConnectionDrained(link.conn))

    def _drain_unless_congested(self, conn: int) -> None:
        """Reports the connection drained, unless it is congested: then the link reports it later."""
        link = self._links.get(conn)
        if link is not None and not link.down.congested:
            self._feed(ConnectionDrained(conn))

    def _send(self, conn: int, frame: bytes, detail: object) -> None:
        link = self._links.get(conn)
        if link is not None:
            self.trace.note(self.name, "sends", frame, (conn, detail))
            link.down.send(frame)

    # --- peers ---------------------------------------------------------------------------------------

    def peer_received(self, sender: NodeId, message: object, payload: bytearray | None) -> None:
        self._feed(PeerReceived(sender, message, payload))

    def peer_connected(self, peer: NodeId, address: str) -> None:
        self._feed(PeerIdentified(peer, address))

    def peer_lost(self, peer: NodeId) -> None:
        self._feed(PeerLost(peer))

    # --- queue sizes ---------------------------------------------------------------------------------

    def _record_queue_sizes(self) -> None:
        broker = self.broker
        if broker is None:
            return
        record, settings = self.history.record_queue_size, self.settings
        record("tail bytes", broker.tail_cache.bytes, settings.tail_bytes_max)
        record("connections", len(broker.sessions), settings.connections_max)
        record("topics", len(broker.topic_table), settings.topics_max)
        for served in broker.topic_table.partitions():
            record("producers of a partition", len(served.producers), settings.producers_per_partition_max)
