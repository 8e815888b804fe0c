"""A request to a coordinator follows the partition that stores the group."""

from __future__ import annotations

from functools import partial

from rostra.client.core.effects import ClientEffect, Write
from rostra.client.core.links.node_link import NodeLink
from rostra.client.core.routing.coordinator_request import CoordinatorRequest
from rostra.wire.groups import DeleteGroup
from rostra.wire.messages import Welcome


def connected(number: int, out: list[ClientEffect]) -> NodeLink:
    link = NodeLink(number, f"node-{number}:7400", 0, out)
    link.welcomed(0, Welcome(1, 1, (), 1, number, "raft", 1 << 20, 1 << 20, 1_000))
    return link


def test_a_request_without_an_answer_is_sent_again_to_the_new_owner_and_the_old_answer_is_ignored() -> None:
    out: list[ClientEffect] = []
    old, new = connected(1, out), connected(2, out)
    request = CoordinatorRequest(
        "delete billing",
        partial(DeleteGroup, name="billing"),
        lambda now_us, reply: None,
        lambda now_us, error: None,
        1_000_000,
    )
    request.link = old
    request.resume(0)

    request.move(new)
    request.resume(0)

    assert [effect.link for effect in out if isinstance(effect, Write)] == [1, 2]
    assert (request.link, len(old.awaiting), len(new.awaiting)) == (new, 0, 1)
