"""Finds out why a node does not answer, so that an error can name the cause.

A node that waits for a majority answers nothing that needs one, but it does tell which members it hears. It is asked
for that when a request has been unanswered for some time, or a partition without an owner.
"""

from __future__ import annotations

from functools import partial

from rostra.client.core.links.node_link import NodeLink
from rostra.client.core.links.node_links import NodeLinks
from rostra.client.core.routing.pending_requests import Answer, PendingRequest
from rostra.errors import RostraError
from rostra.model.cluster import ClusterState
from rostra.wire.features import ADMINISTRATION
from rostra.wire.messages import ClusterDescribed, DescribeCluster

LOOKS_PER_TIMEOUT = 4


class ClusterProbe:
    """Looks at the links a few times within the timeout of a call; what it finds is `NodeLinks.finding`."""

    def __init__(self, links: NodeLinks, timeout_us: int) -> None:
        self._links = links
        self._every_us = timeout_us // LOOKS_PER_TIMEOUT
        self._look_at_us = 0
        self._oldest: dict[int, int] = {}
        """By link, the oldest request without an answer at the last look."""
        self._asked: dict[int, int] = {}
        """By link, the request that asks for the state of the cluster."""
        self._no_owner_since_us = 0
        self._no_owner_us = 0

    def no_owner(self, now_us: int) -> None:
        """A node reported that a partition has no owner."""
        if now_us - self._no_owner_us > 2 * self._every_us:
            self._no_owner_since_us = now_us
        self._no_owner_us = now_us

    def deadline_us(self) -> int | None:
        for link in self._links.by_number.values():
            if link.awaiting:
                return self._look_at_us
        return None

    def tick(self, now_us: int) -> None:
        if now_us < self._look_at_us:
            return
        self._look_at_us = now_us + self._every_us
        before, self._oldest = self._oldest, {}
        for link in self._links.by_number.values():
            oldest = self._oldest[link.number] = next(iter(link.awaiting), 0)
            if oldest and oldest == before.get(link.number):
                self._ask(link)
        self._asked = {number: request for number, request in self._asked.items() if number in self._oldest}
        connected = self._links.pick()
        recent = now_us - self._no_owner_us <= 2 * self._every_us
        waits_for_owner = recent and self._no_owner_us - self._no_owner_since_us >= self._every_us
        if connected is not None and waits_for_owner:
            self._ask(connected)

    def _ask(self, link: NodeLink) -> None:
        if not link.up or ADMINISTRATION not in link.features or self._asked.get(link.number) in link.awaiting:
            return
        suspect = link.suspect
        self._links.finding = ""

        def answered(now_us: int, message: Answer) -> None:
            # The node still owes the other answer.
            link.suspect = suspect and bool(link.awaiting)
            if isinstance(message, ClusterDescribed):
                self._links.finding = _missing(message.state)

        build = partial(DescribeCluster, limit=1)
        probe = PendingRequest("describe the cluster", build, answered, _ignored, 0)
        self._asked[link.number] = link.send_request(probe, build)


def _missing(state: ClusterState) -> str:
    """Which members are missing, if any."""
    away = [node.name or node.address for node in state.nodes if not node.alive]
    if not away:
        return ""
    majority = ": no majority" if 2 * len(away) >= len(state.nodes) else ""
    return f"{len(away)} of {len(state.nodes)} members are down ({', '.join(away)}){majority}"


def _ignored(now_us: int, error: RostraError) -> None:
    """The next look asks again."""
