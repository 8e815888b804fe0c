"""The Raft groups of which this node is a member, created from what a restart left of them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from rostra.fabric.api import Drop, Open, Recovered, Started
from rostra.fabric.consensus.hard_state import GroupConfig, GroupConfigAt, HardState, key_of, unpack_hard_state
from rostra.fabric.consensus.raft_group import RaftGroup
from rostra.fabric.consensus.settings import ConsensusSettings
from rostra.fabric.links.node_context import NodeContext
from rostra.fabric.replication.replica_set import ReplicaSet
from rostra.fabric.replication.snapshot_start import interrupted_snapshot_start
from rostra.model.ids import NodeId, Partition
from rostra.safeguards import Without


class GroupSet(ReplicaSet[RaftGroup]):
    def __init__(
        self,
        context: NodeContext,
        settings: ConsensusSettings,
        random: Random,
        address_of: Callable[[NodeId], str],
        without: Without,
    ) -> None:
        super().__init__(context)
        self._settings = settings
        self._random = random
        self._address_of = address_of
        self._without = without
        self.hard_states: dict[str, bytes] = {}
        """Hard states of groups that have no replica here: as recovered, or kept after a replica was dropped."""
        self.recovered: dict[Partition, Recovered] = {}
        """Logs that were recovered and belong to no group yet."""
        self.serving = False
        """Whether this node has announced what it serves: a group created now may have been led here before."""

    def recover(self, given: Started) -> None:
        self.hard_states = {key: state for key, state in given.hard_states.items() if state}
        self.recovered = {recovered.partition: recovered for recovered in given.partitions}

    def was_member(self, partition: Partition) -> bool:
        """Whether this node has been a member of the partition's group: it has hard state or a log of it."""
        recovered = self.recovered.get(partition)
        return key_of(partition) in self.hard_states or (recovered is not None and recovered.end > 0)

    def create(
        self, partition: Partition, segment_bytes: int, config: GroupConfig | None, *, late: bool = False
    ) -> RaftGroup:
        """`late`: the group existed before this replica. This node may have been a member, voted, and lost its log."""
        context = self._context
        packed = self.hard_states.pop(key_of(partition), None)
        if packed and self.serving:
            # It may have led this group before: quiescent followers would keep believing so.
            context.step_downs += 1
        initial = (GroupConfigAt(0, 0, config),) if config is not None else ()
        hard_state = unpack_hard_state(packed) if packed else HardState(configs=initial)
        recovered = self.recovered.pop(partition, None)
        if recovered is None:
            context.out.append(Open(partition, segment_bytes))
        else:
            first = interrupted_snapshot_start(hard_state.snapshot_start, hard_state.complete, recovered)
            if first is not None:
                context.out += [Drop(partition), Open(partition, segment_bytes, first)]
                recovered = Recovered(partition, first, first, ())
        if late and (recovered is None or not packed):
            hard_state = msgspec.structs.replace(hard_state, complete=False)
        group = RaftGroup(
            context.node,
            recovered or Recovered(partition, 0, 0, ()),
            hard_state,
            settings=self._settings,
            random=self._random,
            next_token=context.next_token,
            address_of=self._address_of,
            segment_bytes=segment_bytes,
            without=self._without,
        )
        self.add(group)
        return group
