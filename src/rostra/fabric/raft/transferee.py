"""Which replica may take over the leadership of a group."""

from __future__ import annotations

from rostra.fabric.cluster.metadata_state import MetadataState
from rostra.fabric.cluster.peer_set import PeerSet
from rostra.fabric.consensus.raft_group import RaftGroup
from rostra.model.ids import NodeId


def transferee_of(group: RaftGroup, peers: PeerSet, state: MetadataState) -> NodeId | None:
    """The voter that is alive, not leaving, and has most of the log."""
    candidates = [
        (progress.match, peer)
        for peer, progress in group.sender.progress.items()
        if peer in group.config.voters and peers.is_alive(peer) and peer not in state.leaving
    ]
    return max(candidates)[1] if candidates else None
