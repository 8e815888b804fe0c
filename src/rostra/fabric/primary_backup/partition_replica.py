"""One copy of one partition: a primary, a backup, or a copy outside the set.

Pure: inputs and time in, effects out. Configurations come from an authority (`authority.py`), which is asked through
its port; a configuration is durable before it is acted on. The rules are those of docs/primary-backup.md.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import assert_never

import msgspec

from rostra.errors import Moved, RostraError, Unavailable
from rostra.fabric.api import Drop, Now, Open, Recovered
from rostra.fabric.links.messages import PartitionHeartbeat, PartitionHeartbeatReply
from rostra.fabric.primary_backup.authority import Answer, Authority, Decided, Superseded, UnknownOutcome
from rostra.fabric.primary_backup.configuration import Configuration, CopyPolicy
from rostra.fabric.primary_backup.copy_state import CopyState
from rostra.fabric.primary_backup.epoch_batch import epoch_batch
from rostra.fabric.primary_backup.hard_state import CopyHardState
from rostra.fabric.primary_backup.messages import BeginCopy, ConfigurationNotice, ConfigurationRequest, CopyMessage
from rostra.fabric.primary_backup.proposer import Proposer
from rostra.fabric.primary_backup.settings import PartitionSettings
from rostra.fabric.replication.messages import AppendEntriesReply, InstallSnapshot
from rostra.fabric.replication.progress import Progress
from rostra.model.ids import NodeId, Partition
from rostra.safeguards import ALL_ON, Safeguard, Without


class PartitionReplica(CopyState):
    __slots__ = (
        "_acks_in_epoch_only",
        "_drops_late",
        "_new_epoch_first",
        "epoch_began_at",
        "hand_over_to",
        "hand_over_until_us",
        "proposer",
    )

    def __init__(
        self,
        node: NodeId,
        partition: Partition,
        found: Recovered | None,
        hard_state: CopyHardState,
        *,
        authority: Authority,
        policy: CopyPolicy,
        settings: PartitionSettings,
        next_token: Callable[[], int],
        address_of: Callable[[NodeId], str] = str,
        segment_bytes: int = 1 << 26,
        without: Without = ALL_ON,
    ) -> None:
        super().__init__(
            node,
            partition,
            found,
            hard_state,
            policy=policy,
            settings=settings,
            next_token=next_token,
            address_of=address_of,
            segment_bytes=segment_bytes,
            without=without,
        )
        self.proposer = Proposer(self, authority, next_token)
        self.epoch_began_at = 0
        """As primary: the end of the log when the primary epoch began. Below it may lie records that a former primary
        has committed and this one does not know to be."""
        self.hand_over_to: NodeId | None = None
        self.hand_over_until_us = 0
        self._new_epoch_first = Safeguard.NEW_PRIMARY_EPOCH not in without
        self._acks_in_epoch_only = Safeguard.ACKS_IN_PRIMARY_EPOCH not in without
        self._drops_late = Safeguard.OLD_COPIES not in without

    # --- configurations ---

    def start(self, now: Now) -> None:
        self.now = now
        self.follower.begin_epoch()
        self.announce()
        self._update_role()
        self.flush()

    def found_copy(self, now: Now) -> None:
        """A new topic's first configuration names this node: its copy begins empty, as number 1."""
        self.now = now
        assert self.snapshots == 0
        self.snapshots = 1
        self.complete = True
        self.hard_state_changed()
        self.out.append(Open(self.partition, self.segment_bytes, 0))
        self.flush()

    def newest(
        self, now: Now, configuration: Configuration, assigned: tuple[NodeId, ...], missing: Collection[NodeId]
    ) -> None:
        """The authority says which configuration is the newest, which nodes should have a copy, and which are missing.

        It may skip configurations, and be older than what is known.
        """
        self.now = now
        if self.persisting:
            self.defer(lambda: self.newest(self.now, configuration, assigned, missing))
            return
        known = self.configuration
        if known is None or configuration.version >= known.version:
            self.view.assigned = assigned
            self.view.missing = frozenset(missing)
        if not self._learn(configuration):
            self._surroundings_changed()
        self.flush()

    def answered(self, now: Now, token: int, answer: Answer) -> None:
        """The authority has answered a proposal."""
        self.now = now
        if self.persisting:
            self.defer(lambda: self.answered(self.now, token, answer))
            return
        match answer:
            case Decided(configuration) | Superseded(configuration):
                self._learn(configuration)
            case UnknownOutcome():
                self.view.outcome_unknown(token)
                self.proposer.pursue()
            case _:
                assert_never(answer)
        self.flush()

    def _learn(self, configuration: Configuration) -> bool:
        """Returns whether the configuration is newer; it is acted on once it is durable."""
        if not self.view.learn(configuration):
            return False
        self.hard_state_changed()
        self.run_after_persist(self._adopt)
        return True

    def _adopt(self) -> None:
        configuration = self.configuration
        assert configuration is not None
        if configuration.primary_epoch != self.epoch:
            self.epoch = configuration.primary_epoch
            self.owner = configuration.primary
            self.follower.begin_epoch()
            goes_on = self.is_owner and configuration.primary == self.node and not self._acks_in_epoch_only
            if self.is_owner and not goes_on:
                self._stop_ordering()
            elif goes_on:
                self.sender.append(epoch_batch(self.epoch, self.now.wall_us))
            self.announce()
        self._surroundings_changed()

    def _surroundings_changed(self) -> None:
        """Another configuration, assignment or set of missing nodes is in force."""
        self._update_role()
        if self.is_owner:
            self.sender.update_followers()
            self.sender.own_log_synced()
        self._drop_old_copy()
        self.proposer.pursue()

    # --- roles ---

    @property
    def may_order(self) -> bool:
        """Whether this node is the primary, has the copy that makes it one, and a primary epoch that is not spent."""
        configuration = self.configuration
        is_primary = configuration is not None and configuration.primary == self.node and self.is_fit
        return is_primary and (self.epoch > self.spent_epoch or not self._new_epoch_first)

    def _update_role(self) -> None:
        if self.may_order and not self.is_owner:
            self._begin_ordering()
        elif self.is_owner and not self.may_order:
            self._stop_ordering()
            self.announce()

    def _begin_ordering(self) -> None:
        """Takes the own log as the truth: members cut what contradicts the epoch batch."""
        self.is_owner = True
        self.owner = self.node
        self.epoch_began_at = self.log.end
        self.fills_begun.clear()
        self.sender.start()
        self.proposer.epoch_began()
        self.add_log_line("info", "orders", {"epoch": self.epoch, "end": self.log.end})
        self.sender.append(epoch_batch(self.epoch, self.now.wall_us))
        self.announce()

    def _stop_ordering(self) -> None:
        self.is_owner = False
        self.hand_over_to = None
        self.sender.stop()
        self.add_log_line("info", "orders no longer", {"epoch": self.epoch})

    def completeness_changed(self) -> None:
        """A damaged copy acknowledges nothing, leads nothing, and asks to be removed."""
        self._update_role()
        self.proposer.pursue()

    def _drop_old_copy(self) -> None:
        """A copy outside the set is kept until every node that should have one is a member."""
        configuration = self.configuration
        if configuration is None or not self.has_copy or self.node in self.view.assigned:
            return
        if self.node in configuration.nodes or not self.view.assigned:
            return
        if self._drops_late and not set(self.view.assigned) <= set(configuration.nodes):
            return
        self.complete = False
        self.begun = False
        self.damaged_at = None
        self.log.reset(0, ())
        self.commit = 0
        self.follower.begin_epoch()
        self.hard_state_changed()
        self.out.append(Drop(self.partition))
        self.announce()

    # --- peers ---

    def fence(self, peer: NodeId, message: CopyMessage, payload: bytearray | None) -> bool:
        """Refuses other primary epochs; a message is processed when its epoch is known."""
        if isinstance(message, AppendEntriesReply) and message.epoch < self.epoch and not self._acks_in_epoch_only:
            return True
        self._settle_epoch(peer, message.epoch)
        return False

    def _settle_epoch(self, peer: NodeId, epoch: int) -> None:
        """Tells a peer of an older primary epoch of the newer one, and asks one of a newer epoch."""
        if epoch > self.epoch:
            self.request_configuration(peer)
        elif self.configuration is not None:
            self.send(peer, ConfigurationNotice(self.partition, self.configuration))

    def restart_requested(self, peer: NodeId, message: InstallSnapshot) -> None:
        """Begins the copy anew, unless it is done already, or others may rely on the copy as it is."""
        assert isinstance(message, BeginCopy)
        if self._checks_numbers and self.own_membership is not None and self.own_membership.number == self.snapshots:
            # The primary may know of a newer configuration, in which this node is outside.
            self.request_configuration(peer)
        elif self.snapshots < message.number:
            self.follower.restart(peer, message)
        elif self.snapshots == message.number:
            # Repeated. Within a primary epoch only its primary raises the number, so this copy is the one it means.
            self.follower.acknowledge(peer, probed=message.log_start)

    def configuration_received(self, now: Now, configuration: Configuration) -> None:
        """A decided configuration may be learned from anybody."""
        self.now = now
        if self.persisting:
            self.defer(lambda: self.configuration_received(self.now, configuration), sent=True)
            return
        self._learn(configuration)
        self.flush()

    def configuration_requested(self, now: Now, peer: NodeId, message: ConfigurationRequest) -> None:
        self.now = now
        # What is not durable yet is not passed on, so that nobody knows more than the node it has it from.
        if not self.persisting and self.configuration is not None and self.configuration.version > message.version:
            self.send(peer, ConfigurationNotice(self.partition, self.configuration))
        self.flush()

    def peer_lost(self, now: Now, peer: NodeId) -> None:
        """The link to a peer is lost, or the peer has restarted: it may lack what it had acknowledged to have seen."""
        self.wake(now)

    def acknowledged(self, peer: NodeId, progress: Progress) -> None:
        self.proposer.pursue()

    # --- heartbeats, which the node combines for all partitions ---

    def heartbeats(self, now: Now) -> list[tuple[NodeId, PartitionHeartbeat]]:
        """A period has passed: checks what is due by time, and returns a heartbeat for each follower."""
        self.now = now
        if not self.persisting:
            self.proposer.period_passed()
            self.flush()
        return super().heartbeats(now)

    def heartbeat_received(
        self, now: Now, peer: NodeId, heartbeat: PartitionHeartbeat
    ) -> PartitionHeartbeatReply | None:
        self.now = now
        if heartbeat.epoch == self.epoch or self.persisting:
            return super().heartbeat_received(now, peer, heartbeat)
        self._settle_epoch(peer, heartbeat.epoch)
        self.flush()
        return None

    def heartbeat_answered(self, now: Now, peer: NodeId, reply: PartitionHeartbeatReply) -> None:
        self.now = now
        if reply.epoch < self.epoch and not self._acks_in_epoch_only:
            reply = msgspec.structs.replace(reply, epoch=self.epoch)
        if reply.epoch == self.epoch or self.persisting:
            super().heartbeat_answered(now, peer, reply)
            return
        self._settle_epoch(peer, reply.epoch)
        self.flush()

    # --- the disk ---

    def synced(self, now: Now, generation: int, offset: int) -> None:
        if self.begun and not self.persisting and generation == self.log.generation and offset > self.log.first:
            # What was synced is of the new log, so the old one is gone.
            self.begun = False
            self.hard_state_changed()
        super().synced(now, generation, offset)

    def write_refused(self) -> None:
        """Backups may have what the disk refused: their offsets must not be given to other records in this epoch."""
        self.proposer.write_refused()
        if self.is_owner:
            self.spent_epoch = self.epoch
            if self._new_epoch_first:
                self._stop_ordering()
                self.announce()
            else:
                self.sender.start()

    def fail_disk(self, now: Now) -> None:
        """An fsync failed: nothing written here will be durable."""
        self.now = now
        self.disk_failed = True
        self._update_role()
        if not self.persisting:
            self.proposer.pursue()
        self.flush()

    # --- proposals of records ---

    def refusal(self) -> RostraError | None:
        if self.is_owner and not self.persisting and self.hand_over_to is None:
            return self.not_enough_copies()
        if self.only_copy_damaged:
            return self.damage_error
        if self.owner is not None and self.owner != self.node:
            return Moved(self.address_of(self.owner), self.epoch)
        return Unavailable(self.name, self.partition.index, "its primary is starting or changing")

    def compacted(self, offset: int) -> None:
        """The log holds the decision to compact below this offset."""
        self.compacted_below = max(self.compacted_below, offset)

    def hand_over(self, now: Now, heir: NodeId) -> RostraError | None:
        """Stops ordering until the heir holds all, then proposes it as primary; orders again if that takes too long."""
        self.now = now
        configuration = self.configuration
        if not self.is_owner or self.persisting or self.hand_over_to is not None:
            return Unavailable(self.name, self.partition.index, "this node does not order it, or hands it over already")
        if configuration is None or heir == self.node or heir not in configuration.nodes:
            return Unavailable(self.name, self.partition.index, f"node {heir} is not one of its other members")
        self.hand_over_to = heir
        self.hand_over_until_us = now.mono_us + self.settings.hand_over_ms * 1000
        self.proposer.pursue()
        self.flush()
        return None
