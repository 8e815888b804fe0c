"""The other nodes: links, heartbeats between nodes, and joining the cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rostra.fabric.api import Connect, Disconnect, LogLine, Send
from rostra.fabric.cluster.messages import JoinRequest, RemovedNotice
from rostra.fabric.cluster.metadata_entries import ClusterMember
from rostra.fabric.cluster.metadata_group import MetadataGroup
from rostra.fabric.cluster.metadata_state import MetadataState
from rostra.fabric.consensus.raft_group import RaftGroup
from rostra.fabric.consensus.settings import ConsensusSettings
from rostra.fabric.links.messages import NodeHeartbeat, NodeHeartbeatReply
from rostra.fabric.links.node_context import NodeContext
from rostra.fabric.links.peer_liveness import PeerLiveness
from rostra.fabric.replication.replica_set import ReplicaSet
from rostra.model.ids import NodeId, text

REMOVED_LINK_TIMEOUTS = 20


class PeerSet:
    def __init__(
        self,
        context: NodeContext,
        settings: ConsensusSettings,
        replicas: ReplicaSet[Any],
        metadata: MetadataGroup[Any],
        own: ClusterMember,
        founders: tuple[ClusterMember, ...],
    ) -> None:
        self._context = context
        self._settings = settings
        self._replicas = replicas
        self._metadata = metadata
        self.own = own
        self.founders = founders
        self.peer_returned: Callable[[NodeId], None] = lambda peer: None
        """Called when a peer is alive again, or restarted."""
        self.peer_gone: Callable[[], None] = lambda: None
        """Called when a peer is down, or restarted."""
        self.liveness = PeerLiveness(settings.election_min_us)
        self.links: dict[NodeId, str] = {}
        self.contacts: dict[NodeId, str] = {}
        """Nodes outside the known metadata that may know the leader, by peer address."""
        self._members: list[ClusterMember] = []
        self._members_of: MetadataState | None = None
        """The metadata state that `_members` was computed from, and how far it was applied."""
        self._members_at = -1
        self._join_retry_us = 0
        self._started_us = 0
        self._removed_links: dict[NodeId, int] = {}
        """Removed members to which a link is kept for a notice, and until when."""

    def start(self) -> None:
        self._started_us = self._context.now.mono_us
        self.update_links()

    def heartbeat_received(self, peer: NodeId, message: NodeHeartbeat) -> None:
        if message.peer_address and peer not in self.links:
            self.add_contact(peer, message.peer_address)
        self.heard(peer, message)
        if message.partitions:
            self._replicas.heartbeat_received(peer, message)

    def heartbeat_answered(self, peer: NodeId, message: NodeHeartbeatReply) -> None:
        self.heard(peer, message)
        self._replicas.heartbeat_answered(peer, message)

    def heard(self, peer: NodeId, message: NodeHeartbeat | NodeHeartbeatReply) -> None:
        if not self.liveness.heard_unchanged(peer, message.boot, message.step_downs, self._context.now.mono_us):
            self._liveness_changed(peer, message)

    def _liveness_changed(self, peer: NodeId, message: NodeHeartbeat | NodeHeartbeatReply) -> None:
        """The peer returned, restarted, or stepped down."""
        was_alive = self.liveness.is_alive(peer)
        restarted = self.liveness.heard(peer, message.boot, self._context.now.mono_us)
        if self.liveness.has_stepped_down(peer, message.step_downs) or restarted:
            self.peer_lost(peer)
        if restarted or not was_alive:
            self.peer_returned(peer)

    def add_contact(self, peer: NodeId, peer_address: str) -> None:
        """Connects to a node that the metadata known here does not have yet."""
        self.contacts[peer] = peer_address
        if peer not in self.links:
            self.links[peer] = peer_address
            self._context.out.append(Connect(peer, peer_address))

    def identified(self, peer: NodeId, peer_address: str) -> None:
        """A node that was contacted by address has sent its id."""
        self.contacts[peer] = peer_address
        self.request_join()

    def link_lost(self, peer: NodeId) -> None:
        if self.liveness.mark_lost(peer):
            self.peer_lost(peer)

    def peer_lost(self, peer: NodeId) -> None:
        """The peer is down or restarted."""
        self._replicas.peer_lost(peer)
        self.peer_gone()

    def members(self) -> list[ClusterMember]:
        state, applied = self._metadata.state, self._metadata.applied
        if self._members_of is not state or self._members_at != applied:
            known = {member.node: member for member in self.founders if member.node not in state.removed}
            known.update(state.members)
            self._members = [known[node] for node in sorted(known) if node != self._context.node]
            self._members_of, self._members_at = state, applied
        return self._members

    def address_of(self, node: NodeId) -> str:
        """The node's address for clients; empty if it is not known."""
        member = self._metadata.state.members.get(node)
        if member is None:
            member = next((founder for founder in self.founders if founder.node == node), None)
        return member.address if member is not None else ""

    def name_of(self, node: NodeId) -> str:
        """The name of a node for errors: its own, else its address for clients, else its id."""
        known = self.own if node == self._context.node else None
        known = known or next((member for member in self.members() if member.node == node), None)
        return text(node) if known is None else known.name or known.address

    def is_alive(self, node: NodeId) -> bool:
        return node == self._context.node or self.liveness.is_alive(node)

    def keeps_quorum_without(self, group: RaftGroup, without: NodeId) -> bool:
        """Whether a majority of the remaining voters is alive with complete replicas, so that the group can commit.

        A replica that is damaged or far behind counts once it has caught up; the leaving one may be needed for that.
        """
        rest = [voter for voter in group.config.voters if voter != without]
        ready = sum(self.is_alive(voter) and group.sender.has_caught_up(voter) for voter in rest)
        return 2 * ready > len(rest)

    def is_silent_since(self, node: NodeId, since_us: int) -> bool:
        """Whether the node was not heard since then, while this node was running."""
        return (
            node != self._context.node and self._started_us < since_us and not self.liveness.heard_since(node, since_us)
        )

    def notify_removed(self, node: NodeId, peer_address: str = "") -> None:
        """Notifies a former member that it was removed, over a link that is kept for that, for a while."""
        address = peer_address or self._metadata.state.removed[node].peer_address
        if self.links.get(node) != address:
            self.links[node] = address
            self._context.out.append(Connect(node, address))
        if node not in self._removed_links:
            self._removed_links[node] = (
                self._context.now.mono_us + REMOVED_LINK_TIMEOUTS * self._settings.election_min_us
            )
        self._context.out.append(Send(node, RemovedNotice(node)))

    def _close_removed_links(self) -> None:
        for node in [node for node, until_us in self._removed_links.items() if self._context.now.mono_us >= until_us]:
            del self._removed_links[node]
            if self.links.pop(node, None) is not None:
                self._context.out.append(Disconnect(node))

    def update_links(self) -> None:
        members = self.members()
        for member in members:
            if self.links.get(member.node) != member.peer_address:
                self.links[member.node] = member.peer_address
                self._context.out.append(Connect(member.node, member.peer_address))
        for node in [node for node in self.links if all(node != member.node for member in members)]:
            self.liveness.forget(node)
            if node in self._metadata.state.removed:
                self.notify_removed(node)
            elif node not in self.contacts:
                del self.links[node]
                self._context.out.append(Disconnect(node))

    def tick(self) -> None:
        for peer in self.liveness.expire(self._context.now.mono_us):
            self._context.out.append(LogLine("warning", "peer lost", {"peer": peer}))
            self.peer_lost(peer)
        self._close_removed_links()
        self._replicas.heartbeat_round(member.node for member in self.members())
        self.request_join()

    def request_join(self) -> None:
        """Sends JoinRequest until metadata and metadata group have this node, at its present address."""
        if not self._metadata.loaded:
            return
        meta = self._metadata
        is_in = (
            meta.state.members.get(self._context.node) == self.own and self._context.node in meta.group.config.members
        )
        if is_in or self._context.now.mono_us < self._join_retry_us:
            return
        self._join_retry_us = self._context.now.mono_us + self._settings.election_min_us
        message = JoinRequest(self._context.node, self._context.address, self._context.peer_address, self.own.name)
        leader = meta.group.leader
        if leader == self._context.node:
            self._context.out += meta.join_requested(message)
            self._replicas.collect(meta.group)
        elif leader is not None and leader in self.links:
            self._context.out.append(Send(leader, message))
        else:
            # To members too: a node that returned at another address hears nobody before they know its address. A
            # leader without a link cannot be answered: the forwarded request makes it send its address.
            self._context.out += [Send(peer, message) for peer in sorted({*self.contacts, *self.links})]
