"""Liveness of the other nodes: the heartbeat between two nodes stands in for those of all quiescent groups."""

from __future__ import annotations

from rostra.model.ids import NodeId


class PeerState:
    __slots__ = ("boot", "heard_us", "lost", "step_downs")

    def __init__(self, boot: int, step_downs: int, heard_us: int) -> None:
        self.boot = boot
        self.step_downs = step_downs
        self.heard_us = heard_us
        self.lost = False


class PeerLiveness:
    def __init__(self, silence_us: int) -> None:
        self._silence_us = silence_us
        self._peers: dict[NodeId, PeerState] = {}

    def heard_unchanged(self, peer: NodeId, boot: int, step_downs: int, now_us: int) -> bool:
        """Records a heartbeat if the peer was alive and neither restarted nor stepped down; returns whether so."""
        state = self._peers.get(peer)
        if state is None or state.lost or boot != state.boot or step_downs > state.step_downs:
            return False
        state.heard_us = now_us
        return True

    def heard(self, peer: NodeId, boot: int, now_us: int) -> bool:
        """Records a heartbeat; returns whether the peer restarted since the last one, and so leads nothing it led."""
        state = self._peers.get(peer)
        if state is None:
            self._peers[peer] = PeerState(boot, 0, now_us)
            return False
        state.heard_us = now_us
        state.lost = False
        restarted = boot != state.boot
        state.boot = boot
        if restarted:
            state.step_downs = 0
        return restarted

    def has_stepped_down(self, peer: NodeId, step_downs: int) -> bool:
        """Whether the peer stepped down from a group since the last heartbeat. Heartbeats may be reordered."""
        state = self._peers[peer]
        increased = step_downs > state.step_downs
        state.step_downs = max(step_downs, state.step_downs)
        return increased

    def expire(self, now_us: int) -> list[NodeId]:
        """Marks and returns the peers that were not heard for too long."""
        silent = [
            peer
            for peer, state in self._peers.items()
            if not state.lost and now_us - state.heard_us >= self._silence_us
        ]
        for peer in silent:
            self._peers[peer].lost = True
        return silent

    def mark_lost(self, peer: NodeId) -> bool:
        """Marks a peer lost because its link closed; returns whether it was alive."""
        state = self._peers.get(peer)
        if state is None or state.lost:
            return False
        state.lost = True
        return True

    def forget(self, peer: NodeId) -> None:
        self._peers.pop(peer, None)

    def is_alive(self, peer: NodeId) -> bool:
        state = self._peers.get(peer)
        return state is not None and not state.lost

    def heard_since(self, peer: NodeId, since_us: int) -> bool:
        state = self._peers.get(peer)
        return state is not None and state.heard_us >= since_us
