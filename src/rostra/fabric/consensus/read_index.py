"""ReadIndex: returns a commit offset only after a majority has confirmed that this leader still leads."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

from rostra.fabric.consensus.hard_state import GroupConfig
from rostra.fabric.consensus.messages import ReadIndexReply, ReadIndexRequest
from rostra.fabric.consensus.settings import ConsensusSettings
from rostra.fabric.replication.sender import Sender
from rostra.model.ids import NodeId, Partition


class ReadGroup(Protocol):
    """What a read index needs of its group."""

    node: NodeId
    partition: Partition
    settings: ConsensusSettings
    sender: Sender
    config: GroupConfig
    commit: int
    is_owner: bool
    owner: NodeId | None
    wants_heartbeat: bool

    @property
    def term(self) -> int: ...

    @property
    def knows_commit(self) -> bool: ...

    def send(self, peer: NodeId, message: object) -> None: ...


class PendingRead(NamedTuple):
    round: int
    commit: int
    requester: NodeId
    token: int


class ReadIndex:
    """`results` collects the answers to this node's own requests: token, and the offset that must be applied first."""

    def __init__(self, group: ReadGroup) -> None:
        self._group = group
        self._pending: deque[PendingRead] = deque()
        self.results: list[tuple[int, int | None]] = []

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def request(self, token: int) -> None:
        """Requests a read index for this node. The result None means: try again."""
        group = self._group
        if group.is_owner:
            self._add(group.node, token)
        elif group.owner is not None:
            group.send(group.owner, ReadIndexRequest(group.partition, group.term, token))
        else:
            self.results.append((token, None))

    def request_received(self, peer: NodeId, message: ReadIndexRequest) -> None:
        if self._group.is_owner:
            self._add(peer, message.token)
        else:
            self._reply(peer, message.token, None)

    def reply_received(self, message: ReadIndexReply) -> None:
        self.results.append((message.token, message.commit if message.known else None))

    def _add(self, requester: NodeId, token: int) -> None:
        group = self._group
        # Before its first own commit a leader does not know the commit offset of earlier terms.
        if not group.knows_commit or len(self._pending) >= group.settings.pending_reads_max:
            self._reply(requester, token, None)
            return
        # Only a heartbeat round that starts after the request proves leadership.
        self._pending.append(PendingRead(group.sender.heartbeat_round + 1, group.commit, requester, token))
        group.wants_heartbeat = True
        self.round_answered()

    def round_answered(self) -> None:
        """Answers the reads that a majority has confirmed by now."""
        if not self._pending:
            return
        group = self._group
        peers = group.sender.progress
        rounds = sorted(
            (peers[voter].round if voter in peers else 1 << 62 for voter in group.config.voters), reverse=True
        )
        confirmed = rounds[group.config.majority - 1]
        while self._pending and self._pending[0].round <= confirmed:
            done = self._pending.popleft()
            self._reply(done.requester, done.token, done.commit)

    def abort(self) -> None:
        """Fails all pending reads: this node is no longer the leader."""
        while self._pending:
            pending = self._pending.popleft()
            self._reply(pending.requester, pending.token, None)

    def _reply(self, requester: NodeId, token: int, commit: int | None) -> None:
        group = self._group
        if requester == group.node:
            self.results.append((token, commit))
        else:
            group.send(requester, ReadIndexReply(group.partition, group.term, token, commit or 0, commit is not None))
