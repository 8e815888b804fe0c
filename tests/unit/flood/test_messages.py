"""Messages between the brokers of a ring."""

from __future__ import annotations

import pytest

from rostra.errors import PeerViolation
from rostra.fabric.flood.messages import PEER_KINDS, AckMark, AckMarks, HaveUpTo, Records, RingHeartbeat
from rostra.fabric.flood.origin_partition import VectorEntry
from rostra.fabric.registry import FABRICS
from rostra.model.ids import NodeId, Partition, PartitionIndex, TopicId
from rostra.wire.frames import FROM_CLIENT, FROM_NODE, Dialect, Framed, FrameReader, encode

PART = Partition(TopicId(7), PartitionIndex(0))
SOME: list[Framed] = [
    RingHeartbeat(1, 2, "p1", (NodeId(1), NodeId(2))),
    Records(1, PART, 5, 0, 2),
    HaveUpTo(1, (VectorEntry(PART, 9, True),), True),
    AckMarks((AckMark(PART, 9, (NodeId(1),)),)),
]


@pytest.mark.requirement("FL-6")
@pytest.mark.parametrize("message", SOME, ids=lambda message: type(message).__name__)
def test_a_client_cannot_speak_as_a_broker_nor_a_broker_to_a_client(message: Framed) -> None:
    for dialect in (FROM_CLIENT, FROM_NODE):
        reader: FrameReader[Framed] = FrameReader(dialect)  # type: ignore[arg-type]
        with pytest.raises(PeerViolation):
            list(reader.feed(encode(message)))
    peers: Dialect[Framed] = Dialect(PEER_KINDS.values(), payload_optional=True)
    assert [got for got, _ in FrameReader(peers).feed(encode(message))] == [message]


@pytest.mark.requirement("FL-6")
def test_every_kind_belongs_to_one_fabric() -> None:
    kinds = [kind.kind for fabric in FABRICS.values() for kind in fabric.peer_kinds]  # type: ignore[attr-defined]
    assert len(kinds) == len(set(kinds)) and min(kinds) > 98
