"""Requests of operators: describe the cluster, remove a member, transfer a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

import msgspec

from rostra.broker.api import Conn
from rostra.broker.sessions import Session
from rostra.errors import NodeStopping, RostraError, UnknownPartition, UnknownTopic
from rostra.fabric.api import Describe, RemoveNode, TransferOwnership
from rostra.model.cluster import ClusterState, CopyState
from rostra.model.ids import NodeId
from rostra.wire.messages import Agreed, ClusterDescribed, DescribeCluster, RemoveMember, TransferPartition

if TYPE_CHECKING:
    from rostra.broker.broker import Broker

AdminMessage = DescribeCluster | RemoveMember | TransferPartition


class AdminRequests:
    """Requests wait here, by token, for the fabric's answer."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: dict[int, tuple[Conn, AdminMessage]] = {}

    def waiting(self) -> bool:
        return bool(self._waiting)

    def answer(self, conn: Conn, session: Session, message: AdminMessage) -> None:
        broker = self._broker
        error = broker.over_limit(session) or self._refusal(message)
        if error is not None:
            broker.refuse(conn, message.request, error)
            return
        session.waiting += 1
        token = broker.next_token()
        self._waiting[token] = conn, message
        match message:
            case DescribeCluster():
                broker.step_fabric(Describe(token))
            case RemoveMember():
                broker.step_fabric(RemoveNode(token, NodeId(message.node)))
            case TransferPartition():
                known = broker.topic_table.by_name(message.name)
                assert known is not None, "a topic that is not known was refused"
                partition = known.partitions[message.partition].partition
                broker.step_fabric(TransferOwnership(partition, NodeId(message.node), token))
            case _:
                assert_never(message)

    def _refusal(self, message: AdminMessage) -> RostraError | None:
        broker = self._broker
        if isinstance(message, DescribeCluster):
            return None
        if broker.stopping:
            return NodeStopping()
        if isinstance(message, TransferPartition):
            known = broker.topic_table.by_name(message.name)
            if known is None:
                return UnknownTopic(message.name)
            if message.partition >= len(known.partitions):
                return UnknownPartition(message.name, message.partition)
        return None

    # --- the fabric's answers ---

    def operation_done(self, token: int) -> None:
        conn, message = self._waiting.pop(token)
        if self._broker.request_done(conn):
            self._broker.reply(conn, Agreed(message.request))

    def described(self, token: int, state: ClusterState) -> None:
        conn, message = self._waiting.pop(token)
        if not self._broker.request_done(conn) or not isinstance(message, DescribeCluster):
            return
        after = (message.after, message.after_partition)
        behind = [one for one in state.partitions if (one.topic, one.partition) > after]
        page = msgspec.structs.replace(state, partitions=tuple(behind[: message.limit]))
        more = len(behind) > message.limit
        self._broker.reply(conn, ClusterDescribed(message.request, self._with_own_id(page), more))

    def refused(self, token: int, error: RostraError) -> bool:
        """True if the token belongs to one of these requests."""
        waiting = self._waiting.pop(token, None)
        if waiting is None:
            return False
        conn, message = waiting
        if self._broker.request_done(conn):
            self._broker.refuse(conn, message.request, error)
        return True

    def _with_own_id(self, state: ClusterState) -> ClusterState:
        """A single-node fabric knows no node ids and reports 0: replaces that with this node's id."""
        own = self._broker.identity.node
        replace = msgspec.structs.replace
        if not any(node.node == 0 for node in state.nodes):
            return state
        nodes = tuple(replace(node, node=own) for node in state.nodes)
        partitions = tuple(
            replace(one, owner=own, copies=tuple(CopyState(own, copy.match, copy.votes) for copy in one.copies))
            for one in state.partitions
        )
        return replace(state, nodes=nodes, partitions=partitions, answered=(own,))
