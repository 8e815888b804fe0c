"""Who of the other nodes is there: one heartbeat per pair of nodes stands in for those of all its silent groups."""

from __future__ import annotations

from rostra.model.ids import NodeId


class PeerState:
    __slots__ = ("boot", "heard_us", "lost", "resigned")

    def __init__(self, boot: int, resigned: int, heard_us: int) -> None:
        self.boot = boot
        self.resigned = resigned
        self.heard_us = heard_us
        self.lost = False


class PeerLiveness:
    def __init__(self, silence_us: int) -> None:
        self._silence_us = silence_us
        self._pairs: dict[NodeId, PeerState] = {}

    def heard_as_before(self, peer: NodeId, boot: int, resigned: int, now_us: int) -> bool:
        """Whether it is there, and leads what it led, as when it was last heard; mostly it does, and that is all."""
        pair = self._pairs.get(peer)
        if pair is None or pair.lost or boot != pair.boot or resigned > pair.resigned:
            return False
        pair.heard_us = now_us
        return True

    def heard(self, peer: NodeId, boot: int, now_us: int) -> bool:
        """Whether the peer was started anew since it was last heard, so that it leads nothing it led before."""
        pair = self._pairs.get(peer)
        if pair is None:
            self._pairs[peer] = PeerState(boot, 0, now_us)
            return False
        pair.heard_us = now_us
        pair.lost = False
        reborn = boot != pair.boot
        pair.boot = boot
        if reborn:
            pair.resigned = 0
        return reborn

    def has_resigned(self, peer: NodeId, resigned: int) -> bool:
        """Whether the peer leads less than when it was last heard. Heartbeats may overtake each other."""
        pair = self._pairs[peer]
        risen = resigned > pair.resigned
        pair.resigned = max(resigned, pair.resigned)
        return risen

    def fallen_silent(self, now_us: int) -> list[NodeId]:
        """Peers not heard for too long, each told once."""
        silent = [
            peer for peer, pair in self._pairs.items() if not pair.lost and now_us - pair.heard_us >= self._silence_us
        ]
        for peer in silent:
            self._pairs[peer].lost = True
        return silent

    def cut(self, peer: NodeId) -> bool:
        """The link is gone, which is as good as silence; whether that is news."""
        pair = self._pairs.get(peer)
        if pair is None or pair.lost:
            return False
        pair.lost = True
        return True

    def forget(self, peer: NodeId) -> None:
        self._pairs.pop(peer, None)

    def is_there(self, peer: NodeId) -> bool:
        pair = self._pairs.get(peer)
        return pair is not None and not pair.lost

    def heard_since(self, peer: NodeId, since_us: int) -> bool:
        pair = self._pairs.get(peer)
        return pair is not None and pair.heard_us >= since_us
