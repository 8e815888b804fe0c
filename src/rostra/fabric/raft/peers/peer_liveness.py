"""Who of the other nodes is there: one heartbeat per pair of nodes stands in for those of all its silent groups."""

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
        """Whether it is there, and leads what it led, as when it was last heard; mostly it does, and that is all."""
        state = self._peers.get(peer)
        if state is None or state.lost or boot != state.boot or step_downs > state.step_downs:
            return False
        state.heard_us = now_us
        return True

    def heard(self, peer: NodeId, boot: int, now_us: int) -> bool:
        """Whether the peer was started anew since it was last heard, so that it leads nothing it led before."""
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
        """Whether the peer leads less than when it was last heard. Heartbeats may overtake each other."""
        state = self._peers[peer]
        increased = step_downs > state.step_downs
        state.step_downs = max(step_downs, state.step_downs)
        return increased

    def expire(self, now_us: int) -> list[NodeId]:
        """Peers not heard for too long, each told once."""
        silent = [
            peer
            for peer, state in self._peers.items()
            if not state.lost and now_us - state.heard_us >= self._silence_us
        ]
        for peer in silent:
            self._peers[peer].lost = True
        return silent

    def mark_lost(self, peer: NodeId) -> bool:
        """The link is gone, which is as good as silence; whether that is news."""
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
