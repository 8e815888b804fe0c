"""Reads that miss nothing: a commit offset is told only after a majority has confirmed that this leader still leads."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from rostra.fabric.raft.consensus.roles import Role
from rostra.fabric.raft.messages import ReadIndexReply, ReadIndexRequest
from rostra.model.ids import NodeId

if TYPE_CHECKING:
    from rostra.fabric.raft.consensus.raft_group import RaftGroup


class PendingRead(NamedTuple):
    round: int
    commit: int
    asker: NodeId
    token: int


class ReadIndex:
    """`told` collects what this node's own reads learned: token, and the offset below which all must be applied."""

    def __init__(self, group: RaftGroup) -> None:
        self._group = group
        self._waiting: deque[PendingRead] = deque()
        self.told: list[tuple[int, int | None]] = []

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def ask(self, token: int) -> None:
        """For a read of this node. Told None: nobody could say, ask again."""
        group = self._group
        if group.role is Role.LEADER:
            self._wait(group.me, token)
        elif group.leader is not None:
            group.send(group.leader, ReadIndexRequest(group.partition, group.term, token))
        else:
            self.told.append((token, None))

    def asked(self, peer: NodeId, message: ReadIndexRequest) -> None:
        if self._group.role is Role.LEADER:
            self._wait(peer, message.token)
        else:
            self._answer(peer, message.token, None)

    def answered(self, message: ReadIndexReply) -> None:
        self.told.append((message.token, message.commit if message.known else None))

    def _wait(self, asker: NodeId, token: int) -> None:
        group = self._group
        # Before its first own commit a leader does not know what earlier terms committed.
        if not group.is_current or len(self._waiting) >= group.settings.reads_waiting_max:
            self._answer(asker, token, None)
            return
        # Only a heartbeat that begins after the question proves anything.
        self._waiting.append(PendingRead(group.replication.round + 1, group.commit, asker, token))
        group.wants_beat = True
        self.heard()

    def heard(self) -> None:
        """Somebody answered a heartbeat: which reads does a majority confirm now?"""
        if not self._waiting:
            return
        group = self._group
        peers = group.replication.peers
        rounds = sorted(
            (peers[voter].round if voter in peers else 1 << 62 for voter in group.config.voters), reverse=True
        )
        confirmed = rounds[group.config.majority - 1]
        while self._waiting and self._waiting[0].round <= confirmed:
            done = self._waiting.popleft()
            self._answer(done.asker, done.token, done.commit)

    def give_up(self) -> None:
        """This node leads no more."""
        while self._waiting:
            waiting = self._waiting.popleft()
            self._answer(waiting.asker, waiting.token, None)

    def _answer(self, asker: NodeId, token: int, commit: int | None) -> None:
        group = self._group
        if asker == group.me:
            self.told.append((token, commit))
        else:
            group.send(asker, ReadIndexReply(group.partition, group.term, token, commit or 0, commit is not None))
