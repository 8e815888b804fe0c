"""Giving leadership away: one partition's at an operator's wish, or all of it because the node stops."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rostra.fabric.api import GiveAway, HandedOver, Note
from rostra.fabric.raft.roles import Role

if TYPE_CHECKING:
    from rostra.fabric.raft.machine import Raft


class Leaving:
    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self.until_us: int | None = None
        """While the node stops: how long it waits for its heirs."""

    def give_away(self, given: GiveAway) -> None:
        raft = self._raft
        group = raft.groups.get(given.partition)
        error = group.transfer(raft.now, given.peer) if group is not None else raft.hosting.nowhere(given.partition)
        if error is not None:
            about: dict[str, int | str] = {"partition": str(given.partition), "error": str(error)}
            raft.out.append(Note("warning", "not given away", about))
        if group is not None:
            raft.touch(group)

    def hand_over(self) -> None:
        raft = self._raft
        self.until_us = raft.now.mono_us + 2 * raft.settings.election_us
        for group in list(raft.groups.values()):
            if group.role is Role.LEADER:
                heirs = [
                    (progress.match, peer)
                    for peer, progress in group.replication.peers.items()
                    if peer in group.config.voters and raft.peers.pairs.is_there(peer)
                ]
                if heirs:
                    group.transfer(raft.now, max(heirs)[1])
                    raft.touch(group)

    def finish(self) -> None:
        raft = self._raft
        until_us = self.until_us
        if until_us is None:
            return
        giving = any(group.transfer_to is not None for group in raft.groups.values())
        if not giving or raft.now.mono_us >= until_us:
            self.until_us = 1 << 62
            if until_us < 1 << 62:
                raft.out.append(HandedOver())
