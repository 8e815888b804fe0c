"""Rows of fabrics that the table of guarantees has room for, to test the selection of contract tests."""

from __future__ import annotations

from rostra.fabric.api import AcksAll, Delivers, Guarantees, Order, PublishPath, SplitBehaviour, Survives, TopicScope

HASHRING = Guarantees(
    fabric="hashring",
    order=Order.PARTITION,
    acks_all=AcksAll.CONFIGURATION,
    delivers=Delivers.OWNER,
    split=SplitBehaviour.REFUSES,
    survives=Survives.MEMBERS,
    groups_span_nodes=True,
    exactly_once_sink=True,
    publishes=PublishPath.PASSED_ONCE,
    topics=TopicScope.ONE,
    exclusive_ownership=True,
)
ZOOKEEPER = Guarantees(
    fabric="zookeeper",
    order=Order.PARTITION,
    acks_all=AcksAll.CONFIGURATION,
    delivers=Delivers.OWNER,
    split=SplitBehaviour.REFUSES,
    survives=Survives.COORDINATED,
    groups_span_nodes=True,
    exactly_once_sink=True,
    publishes=PublishPath.OWNER,
    topics=TopicScope.ONE,
    exclusive_ownership=True,
)
SCRIBE = Guarantees(
    fabric="scribe",
    order=Order.PARTITION,
    acks_all=AcksAll.MAJORITY,
    delivers=Delivers.HERE,
    split=SplitBehaviour.REFUSES,
    survives=Survives.GROUP,
    groups_span_nodes=True,
    exactly_once_sink=True,
    publishes=PublishPath.PASSED_ALONG,
    topics=TopicScope.ONE,
    exclusive_ownership=True,
)
