"""The other nodes: links to them, the heartbeat of each pair, and the way into the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.fabric.api import Connect, Disconnect, LogLine, Send
from rostra.fabric.raft.consensus.raft_group import RaftGroup
from rostra.fabric.raft.consensus.roles import Role
from rostra.fabric.raft.messages import GroupHeartbeat, JoinRequest, NodeHeartbeat, NodeHeartbeatReply, RemovedNotice
from rostra.fabric.raft.metadata.metadata_state import META, ClusterMember, MetadataState
from rostra.fabric.raft.peers.peer_liveness import PeerLiveness
from rostra.model.ids import NodeId

if TYPE_CHECKING:
    from rostra.fabric.raft.machine import Raft

STRANGER_TIMEOUTS = 20


class PeerSet:
    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self.pairs = PeerLiveness(raft.settings.election_us)
        self.links: dict[NodeId, str] = {}
        self.acquaintances: dict[NodeId, str] = {}
        """Nodes met on the way in, that may know the leader."""
        self._members: list[ClusterMember] = []
        self._members_of: MetadataState | None = None
        """The catalogue that has them, and how far it was applied then."""
        self._members_at = -1
        self._joined_us = 0
        self._began_us = 0
        self._answered: dict[NodeId, None] = {}
        """Whose heartbeats were answered since the last of our own."""
        self._strangers: dict[NodeId, int] = {}
        """Removed members to whom a link is kept, and until when."""

    def begin(self) -> None:
        self._began_us = self._raft.now.mono_us
        self.follow_members()

    def heartbeat(self, peer: NodeId, message: NodeHeartbeat) -> None:
        raft = self._raft
        if message.peer_address and peer not in self.links:
            self.get_to_know(peer, message.peer_address)
        self.heard(peer, message)
        if not message.beats:
            return
        replies = []
        for beat in message.beats:
            group = raft.groups.get(beat.partition)
            if group is not None:
                reply = group.heard(raft.now, peer, beat)
                if reply is not None:
                    replies.append(reply)
                raft.touch(group)
        if replies:
            self._answered[peer] = None
            raft.out.append(Send(peer, NodeHeartbeatReply(raft.boot, tuple(replies), raft.resigned)))

    def heard(self, peer: NodeId, message: NodeHeartbeat | NodeHeartbeatReply) -> None:
        if not self.pairs.heard_as_before(peer, message.boot, message.resigned, self._raft.now.mono_us):
            self._heard_news(peer, message)

    def _heard_news(self, peer: NodeId, message: NodeHeartbeat | NodeHeartbeatReply) -> None:
        """It was away, was started anew, or leads less than before."""
        raft = self._raft
        was_there = self.pairs.is_there(peer)
        reborn = self.pairs.heard(peer, message.boot, raft.now.mono_us)
        if self.pairs.has_resigned(peer, message.resigned) or reborn:
            self.lost(peer)
        if reborn or not was_there:
            raft.hosting.returned[peer] = None
            raft.hosting.reroute()

    def get_to_know(self, peer: NodeId, peer_address: str) -> None:
        """A node that the catalogue, as far as it is known here, does not have yet."""
        self.acquaintances[peer] = peer_address
        if peer not in self.links:
            self.links[peer] = peer_address
            self._raft.out.append(Connect(peer, peer_address))

    def lost(self, peer: NodeId) -> None:
        """Gone, or started anew: silent groups that rely on it wake."""
        raft = self._raft
        for group in list(raft.groups.values()):
            if group.quiet or group.role is Role.LEADER:
                group.peer_lost(raft.now, peer)
                raft.touch(group)
        raft.hosting.reroute()

    def members(self) -> list[ClusterMember]:
        raft = self._raft
        catalogue, applied = raft.meta.catalogue, raft.meta.applied
        if self._members_of is not catalogue or self._members_at != applied:
            known = {member.node: member for member in raft.founders if member.node not in catalogue.removed}
            known.update(catalogue.members)
            self._members = [known[node] for node in sorted(known) if node != raft.node]
            self._members_of, self._members_at = catalogue, applied
        return self._members

    def is_there(self, node: NodeId) -> bool:
        return node == self._raft.node or self.pairs.is_there(node)

    def could_agree(self, group: RaftGroup, without: NodeId) -> bool:
        """Whether most of those who stay are there with whole copies: else their group could agree on nothing more.

        One that is damaged, or far behind, counts only when it is filled. Until then who goes may be needed for that.
        """
        rest = [voter for voter in group.config.voters if voter != without]
        ready = sum(self.is_there(voter) and group.replication.keeps_up(voter) for voter in rest)
        return 2 * ready > len(rest)

    def is_gone(self, node: NodeId, since_us: int) -> bool:
        """Not heard since then, nor is this node young enough to have missed it."""
        return node != self._raft.node and self._began_us < since_us and not self.pairs.heard_since(node, since_us)

    def tell_removed(self, node: NodeId, peer_address: str = "") -> None:
        """The peer was a member once and does not know that it is none any more.

        It is told over a link that is kept for that alone, and for a while.
        """
        raft = self._raft
        address = peer_address or raft.meta.catalogue.removed[node].peer_address
        if self.links.get(node) != address:
            self.links[node] = address
            raft.out.append(Connect(node, address))
        if node not in self._strangers:
            self._strangers[node] = raft.now.mono_us + STRANGER_TIMEOUTS * raft.settings.election_us
        raft.out.append(Send(node, RemovedNotice(node)))

    def _leave_strangers(self) -> None:
        raft = self._raft
        for node in [node for node, until_us in self._strangers.items() if raft.now.mono_us >= until_us]:
            del self._strangers[node]
            if self.links.pop(node, None) is not None:
                raft.out.append(Disconnect(node))

    def follow_members(self) -> None:
        raft = self._raft
        members = self.members()
        for member in members:
            if self.links.get(member.node) != member.peer_address:
                self.links[member.node] = member.peer_address
                raft.out.append(Connect(member.node, member.peer_address))
        for node in [node for node in self.links if all(node != member.node for member in members)]:
            self.pairs.forget(node)
            if node in raft.meta.catalogue.removed:
                self.tell_removed(node)
            elif node not in self.acquaintances:
                del self.links[node]
                raft.out.append(Disconnect(node))

    def beat(self) -> None:
        raft = self._raft
        for peer in self.pairs.fallen_silent(raft.now.mono_us):
            raft.out.append(LogLine("warning", "peer is away", {"peer": peer}))
            self.lost(peer)
        self._leave_strangers()
        self.send_beats(dict.fromkeys(raft.beating.values()), idle=True)
        self.ask_to_join()

    def send_beats(self, groups: dict[RaftGroup, None], *, idle: bool = False) -> None:
        """One message to each node, whatever the number of groups; `idle`: also to whom nothing else was said."""
        raft = self._raft
        said: dict[NodeId, list[GroupHeartbeat]] = {}
        if idle:
            said = {member.node: [] for member in self.members() if member.node not in self._answered}
            self._answered.clear()
        for group in groups:
            for peer, beat in group.beats(raft.now):
                said.setdefault(peer, []).append(beat)
            effects = group.take()
            if group.partition == META:
                raft.touch_meta(effects)
            else:
                raft.out += effects
        idle_beat = NodeHeartbeat(raft.boot, (), raft.peer_address, raft.resigned)
        raft.out += [
            Send(peer, NodeHeartbeat(raft.boot, tuple(beats), raft.peer_address, raft.resigned) if beats else idle_beat)
            for peer, beats in said.items()
        ]

    def ask_to_join(self) -> None:
        """Until the catalogue has this node, at its present address, and the metadata group too."""
        raft = self._raft
        if not raft.takes_part:
            return
        meta = raft.meta
        is_in = meta.catalogue.members.get(raft.node) == raft.own and raft.node in meta.group.config.everyone
        if is_in or raft.now.mono_us < self._joined_us:
            return
        self._joined_us = raft.now.mono_us + raft.settings.election_us
        message = JoinRequest(raft.node, raft.address, raft.peer_address)
        leader = meta.group.leader
        if leader == raft.node:
            raft.out += meta.joining(message)
            raft.touch(meta.group)
        elif leader is not None and leader in self.links:
            raft.out.append(Send(leader, message))
        else:
            # Members too: a node that came back elsewhere reaches them, and hears nobody before they know where it is.
            # A leader that was only heard cannot be answered: whoever passes this on makes it say where it is.
            raft.out += [Send(peer, message) for peer in sorted({*self.acquaintances, *self.links})]
