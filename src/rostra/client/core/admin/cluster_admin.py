"""Cluster administration: describe the cluster, remove a member, transfer a partition."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from rostra.client.core.effects import CallNumber, ClientEffect, Done, Fail
from rostra.client.core.routing.pending_requests import Answer, PendingRequest, PendingRequests
from rostra.errors import PeerViolation, RostraError
from rostra.model.cluster import ClusterState, PlacedPartition
from rostra.wire.features import ADMINISTRATION
from rostra.wire.frames import Violation
from rostra.wire.messages import (
    Agreed,
    ClientMessage,
    ClusterDescribed,
    DescribeCluster,
    RemoveMember,
    TransferPartition,
)


class ClusterAdmin:
    def __init__(self, requests: PendingRequests, out: list[ClientEffect], timeout_us: int) -> None:
        self._requests = requests
        self._out = out
        self._timeout_us = timeout_us

    def describe(self, now_us: int, call: CallNumber, so_far: tuple[PlacedPartition, ...] = ()) -> None:
        """Request page after page; the last one contains the nodes."""

        def answered(now_us: int, message: Answer) -> None:
            if not isinstance(message, ClusterDescribed):
                raise PeerViolation(Violation.OUT_OF_ORDER, f"{type(message).__name__} to DescribeCluster")
            partitions = so_far + message.state.partitions
            if message.more and message.state.partitions:
                self.describe(now_us, call, partitions)
            else:
                self._out.append(Done(call, _with(message.state, partitions)))

        last = (so_far[-1].topic, so_far[-1].partition) if so_far else ("", -1)
        build = partial(DescribeCluster, after=last[0], after_partition=last[1])
        self._request(now_us, call, "describe the cluster", build, answered)

    def remove_member(self, now_us: int, call: CallNumber, node: int) -> None:
        self._command(now_us, call, f"remove {node:016x}", partial(RemoveMember, node=node))

    def transfer_partition(self, now_us: int, call: CallNumber, name: str, partition: int, node: int) -> None:
        build = partial(TransferPartition, name=name, partition=partition, node=node)
        self._command(now_us, call, f"transfer {name}/{partition}", build)

    def _command(self, now_us: int, call: CallNumber, what: str, build: Callable[[int], ClientMessage]) -> None:
        def answered(now_us: int, message: Answer) -> None:
            if not isinstance(message, Agreed):
                raise PeerViolation(Violation.OUT_OF_ORDER, f"{type(message).__name__} to an operator's order")
            self._out.append(Done(call, None))

        self._request(now_us, call, what, build, answered)

    def _request(
        self,
        now_us: int,
        call: CallNumber,
        what: str,
        build: Callable[[int], ClientMessage],
        answered: Callable[[int, Answer], None],
    ) -> None:
        def failed(now_us: int, error: RostraError) -> None:
            self._out.append(Fail(call, error))

        self._requests.add(
            now_us, PendingRequest(what, build, answered, failed, now_us + self._timeout_us, ADMINISTRATION)
        )


def _with(state: ClusterState, partitions: tuple[PlacedPartition, ...]) -> ClusterState:
    return msgspec.structs.replace(state, partitions=partitions)
