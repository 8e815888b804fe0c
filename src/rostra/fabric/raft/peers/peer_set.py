"""The other nodes: links, heartbeats between nodes, and joining the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.fabric.api import Connect, Disconnect, LogLine, Send, SendToBroker
from rostra.fabric.raft.consensus.raft_group import RaftGroup
from rostra.fabric.raft.consensus.roles import Role
from rostra.fabric.raft.messages import (
    BrokerToBroker,
    GroupHeartbeat,
    JoinRequest,
    NodeHeartbeat,
    NodeHeartbeatReply,
    RemovedNotice,
)
from rostra.fabric.raft.metadata.metadata_state import METADATA_PARTITION, ClusterMember, MetadataState
from rostra.fabric.raft.peers.peer_liveness import PeerLiveness
from rostra.model.ids import NodeId

if TYPE_CHECKING:
    from rostra.fabric.raft.machine import Raft

REMOVED_LINK_TIMEOUTS = 20


class PeerSet:
    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self.liveness = PeerLiveness(raft.settings.election_min_us)
        self.links: dict[NodeId, str] = {}
        self.contacts: dict[NodeId, str] = {}
        """Nodes outside the known metadata that may know the leader, by peer address."""
        self._members: list[ClusterMember] = []
        self._members_of: MetadataState | None = None
        """The metadata state that `_members` was computed from, and how far it was applied."""
        self._members_at = -1
        self._join_retry_us = 0
        self._started_us = 0
        self._answered_peers: dict[NodeId, None] = {}
        """Peers whose heartbeats were answered since the last own heartbeat."""
        self._removed_links: dict[NodeId, int] = {}
        """Removed members to which a link is kept for a notice, and until when."""

    def start(self) -> None:
        self._started_us = self._raft.now.mono_us
        self.update_links()

    def heartbeat_received(self, peer: NodeId, message: NodeHeartbeat) -> None:
        raft = self._raft
        if message.peer_address and peer not in self.links:
            self.add_contact(peer, message.peer_address)
        self.heard(peer, message)
        if not message.groups:
            return
        replies = []
        for heartbeat in message.groups:
            group = raft.groups.get(heartbeat.partition)
            if group is not None:
                reply = group.heartbeat_received(raft.now, peer, heartbeat)
                if reply is not None:
                    replies.append(reply)
                raft.collect(group)
        if replies:
            self._answered_peers[peer] = None
            raft.out.append(Send(peer, NodeHeartbeatReply(raft.boot, tuple(replies), raft.step_downs)))

    def heard(self, peer: NodeId, message: NodeHeartbeat | NodeHeartbeatReply) -> None:
        if not self.liveness.heard_unchanged(peer, message.boot, message.step_downs, self._raft.now.mono_us):
            self._liveness_changed(peer, message)

    def _liveness_changed(self, peer: NodeId, message: NodeHeartbeat | NodeHeartbeatReply) -> None:
        """The peer returned, restarted, or stepped down."""
        raft = self._raft
        was_alive = self.liveness.is_alive(peer)
        restarted = self.liveness.heard(peer, message.boot, raft.now.mono_us)
        if self.liveness.has_stepped_down(peer, message.step_downs) or restarted:
            self.peer_lost(peer)
        if restarted or not was_alive:
            raft.replicas.returned_nodes[peer] = None
            raft.replicas.reroute()

    def add_contact(self, peer: NodeId, peer_address: str) -> None:
        """Connects to a node that the metadata known here does not have yet."""
        self.contacts[peer] = peer_address
        if peer not in self.links:
            self.links[peer] = peer_address
            self._raft.out.append(Connect(peer, peer_address))

    def peer_lost(self, peer: NodeId) -> None:
        """The peer is down or restarted: wakes quiescent groups that rely on its heartbeat."""
        raft = self._raft
        for group in list(raft.groups.values()):
            if group.quiescent or group.role is Role.LEADER:
                group.peer_lost(raft.now, peer)
                raft.collect(group)
        raft.replicas.reroute()

    def members(self) -> list[ClusterMember]:
        raft = self._raft
        state, applied = raft.metadata.state, raft.metadata.applied
        if self._members_of is not state or self._members_at != applied:
            known = {member.node: member for member in raft.founders if member.node not in state.removed}
            known.update(state.members)
            self._members = [known[node] for node in sorted(known) if node != raft.node]
            self._members_of, self._members_at = state, applied
        return self._members

    def send_to_broker(self, given: SendToBroker) -> None:
        """Passes a message of this node's broker on; without a member at that address it is lost."""
        for member in self.members():
            if member.address == given.address:
                self._raft.out.append(Send(member.node, BrokerToBroker(given.body)))

    def is_alive(self, node: NodeId) -> bool:
        return node == self._raft.node or self.liveness.is_alive(node)

    def keeps_quorum_without(self, group: RaftGroup, without: NodeId) -> bool:
        """Whether a majority of the remaining voters is alive with complete replicas, so that the group can commit.

        A replica that is damaged or far behind counts once it has caught up; the leaving one may be needed for that.
        """
        rest = [voter for voter in group.config.voters if voter != without]
        ready = sum(self.is_alive(voter) and group.replication.has_caught_up(voter) for voter in rest)
        return 2 * ready > len(rest)

    def is_silent_since(self, node: NodeId, since_us: int) -> bool:
        """Whether the node was not heard since then, while this node was running."""
        return node != self._raft.node and self._started_us < since_us and not self.liveness.heard_since(node, since_us)

    def notify_removed(self, node: NodeId, peer_address: str = "") -> None:
        """Notifies a former member that it was removed, over a link that is kept for that, for a while."""
        raft = self._raft
        address = peer_address or raft.metadata.state.removed[node].peer_address
        if self.links.get(node) != address:
            self.links[node] = address
            raft.out.append(Connect(node, address))
        if node not in self._removed_links:
            self._removed_links[node] = raft.now.mono_us + REMOVED_LINK_TIMEOUTS * raft.settings.election_min_us
        raft.out.append(Send(node, RemovedNotice(node)))

    def _close_removed_links(self) -> None:
        raft = self._raft
        for node in [node for node, until_us in self._removed_links.items() if raft.now.mono_us >= until_us]:
            del self._removed_links[node]
            if self.links.pop(node, None) is not None:
                raft.out.append(Disconnect(node))

    def update_links(self) -> None:
        raft = self._raft
        members = self.members()
        for member in members:
            if self.links.get(member.node) != member.peer_address:
                self.links[member.node] = member.peer_address
                raft.out.append(Connect(member.node, member.peer_address))
        for node in [node for node in self.links if all(node != member.node for member in members)]:
            self.liveness.forget(node)
            if node in raft.metadata.state.removed:
                self.notify_removed(node)
            elif node not in self.contacts:
                del self.links[node]
                raft.out.append(Disconnect(node))

    def tick(self) -> None:
        raft = self._raft
        for peer in self.liveness.expire(raft.now.mono_us):
            raft.out.append(LogLine("warning", "peer lost", {"peer": peer}))
            self.peer_lost(peer)
        self._close_removed_links()
        self.send_heartbeats(dict.fromkeys(raft.heartbeat_groups.values()), idle=True)
        self.request_join()

    def send_heartbeats(self, groups: dict[RaftGroup, None], *, idle: bool = False) -> None:
        """Sends one message per node for all groups; `idle`: also to nodes that would get none otherwise."""
        raft = self._raft
        by_peer: dict[NodeId, list[GroupHeartbeat]] = {}
        if idle:
            by_peer = {member.node: [] for member in self.members() if member.node not in self._answered_peers}
            self._answered_peers.clear()
        for group in groups:
            for peer, heartbeat in group.heartbeats(raft.now):
                by_peer.setdefault(peer, []).append(heartbeat)
            effects = group.take_effects()
            if group.partition == METADATA_PARTITION:
                raft.collect_metadata(effects)
            else:
                raft.out += effects
        idle_heartbeat = NodeHeartbeat(raft.boot, (), raft.peer_address, raft.step_downs)
        raft.out += [
            Send(
                peer,
                NodeHeartbeat(raft.boot, tuple(heartbeats), raft.peer_address, raft.step_downs)
                if heartbeats
                else idle_heartbeat,
            )
            for peer, heartbeats in by_peer.items()
        ]

    def request_join(self) -> None:
        """Sends JoinRequest until metadata and metadata group have this node, at its present address."""
        raft = self._raft
        if not raft.metadata_loaded:
            return
        meta = raft.metadata
        is_in = meta.state.members.get(raft.node) == raft.own and raft.node in meta.group.config.members
        if is_in or raft.now.mono_us < self._join_retry_us:
            return
        self._join_retry_us = raft.now.mono_us + raft.settings.election_min_us
        message = JoinRequest(raft.node, raft.address, raft.peer_address, raft.own.name)
        leader = meta.group.leader
        if leader == raft.node:
            raft.out += meta.join_requested(message)
            raft.collect(meta.group)
        elif leader is not None and leader in self.links:
            raft.out.append(Send(leader, message))
        else:
            # To members too: a node that returned at another address hears nobody before they know its address. A
            # leader without a link cannot be answered: the forwarded request makes it send its address.
            raft.out += [Send(peer, message) for peer in sorted({*self.contacts, *self.links})]
