"""Wrong calls touch nothing but themselves, and what a node accepts is accepted through every other."""

from __future__ import annotations

from typing import Any

import pytest

from rostra.client.core.links import node_link, node_links
from rostra.errors import InvalidArgument, SettingsDiffer
from tests.contract.facade import Cluster
from tests.contract.guarantees import proves

ASSUMED_BYTES, LARGE_BYTES = 1_000, 20_000
"""What a client assumes before a node has stated its limit, and a record between that and the limit. Both are small,
because a simulated connection may be slow."""


@proves()
def test_a_large_record_is_stored_through_any_node_whichever_owns_its_partition(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (node_link, node_links):
        monkeypatch.setattr(module, "BATCH_BYTES_MAX", ASSUMED_BYTES)
    cluster.create_topic("t")
    values = [bytes([65 + node]) * LARGE_BYTES for node in cluster.running]
    for node, value in zip(cluster.running, values, strict=True):
        cluster.publish("t", value, at=node)
    subscription = cluster.subscribe("t")
    cluster.run_until(lambda: len(subscription.records) == len(values), "all large records")
    assert sorted(value or b"" for value in subscription.values) == values


@proves()
@pytest.mark.parametrize("wrong", [{"key": "k"}, {"timestamp_us": 1.5}, {"partition": "0"}], ids=repr)
def test_a_wrong_argument_is_refused_and_touches_no_other_record(cluster: Cluster, wrong: dict[str, Any]) -> None:
    cluster.create_topic("t")
    text: Any = "text"
    for node in cluster.running:
        with pytest.raises(InvalidArgument):
            cluster.publish("t", b"wrong", at=node, **wrong)
        with pytest.raises(InvalidArgument):
            cluster.publish("t", text, at=node)
        cluster.publish("t", b"from %d" % node, at=node)
    subscription = cluster.subscribe("t")
    cluster.run_until(lambda: len(subscription.records) >= len(cluster.running), "the other records")
    assert sorted(value or b"" for value in subscription.values) == [b"from %d" % node for node in cluster.running]


@proves()
def test_a_member_whose_settings_differ_is_refused_and_those_of_the_name_stay(cluster: Cluster) -> None:
    cluster.create_topic("t")
    cluster.create_topic("u")
    first = cluster.member("billing", "t", tries=3, dead_letter="dead")
    before = cluster.describe_group("billing")
    for topics, tries, dead_letter in ((("t",), 5, "dead"), (("t",), 3, ""), (("t", "u"), 3, "dead")):
        with pytest.raises(SettingsDiffer):
            cluster.member("billing", *topics, tries=tries, dead_letter=dead_letter)
    described = cluster.describe_group("billing")
    assert (described.patterns, described.tries, described.dead_letter) == (("t",), 3, "dead")
    assert described.members == before.members
    second = cluster.member("billing", "t", tries=3, dead_letter="dead")
    cluster.leave_group(first)
    cluster.leave_group(second)
    cluster.member("billing", "t", tries=5)
    assert cluster.describe_group("billing").tries == 5
