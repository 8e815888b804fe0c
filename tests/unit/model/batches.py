"""Records and batches for the tests of the model."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from rostra.model.batch import Codec, stamp
from rostra.model.encode import encode
from rostra.model.ids import Partition, PartitionIndex, TopicId

HERE = Partition(TopicId(0x1234_5678_9ABC_DEF0), PartitionIndex(3))
ELSEWHERE = Partition(TopicId(0x1234_5678_9ABC_DEF0), PartitionIndex(4))

contents = st.binary(max_size=40)
moments_us = st.integers(min_value=-(10**15), max_value=4 * 10**15)
header_lists = st.lists(st.tuples(st.text(max_size=6), contents), max_size=3)


@dataclass
class Sample:
    """The records of one batch, as the arguments of `encode`."""

    values: list[bytes | None]
    columns: dict[str, Any] = field(default_factory=dict)

    def encoded(self, **changes: Any) -> bytearray:
        return encode(self.values, **{"timestamp_us": 7, **self.columns, **changes})

    def stamped(self, base_offset: int = 1000, **changes: Any) -> bytearray:
        batch = self.encoded(**changes)
        stamp(batch, partition=HERE, base_offset=base_offset, owner_epoch=2)
        return batch


@st.composite
def samples(draw: st.DrawFn, records_max: int = 60) -> Sample:
    """Every combination of columns, nulls and codecs, on both sides of the Arrow threshold."""
    count = draw(st.integers(min_value=1, max_value=records_max))

    def column(element: st.SearchStrategy[Any]) -> Any:
        return draw(st.lists(element, min_size=count, max_size=count))

    strings = draw(st.sampled_from([contents, st.none() | contents, st.just(b"even")]))
    columns: dict[str, Any] = {"timestamp_us": draw(moments_us)}
    if draw(st.booleans()):
        columns["keys"] = column(draw(st.sampled_from([contents, st.none() | contents])))
    if draw(st.booleans()):
        columns["headers"] = column(st.none() | header_lists)
    if draw(st.booleans()):
        columns["timestamps_us"] = column(moments_us)
    columns["producer"] = draw(st.integers(min_value=0, max_value=(1 << 63) - 1))
    columns["producer_epoch"] = draw(st.integers(min_value=0, max_value=(1 << 32) - 1))
    columns["sequence"] = draw(st.integers(min_value=0, max_value=(1 << 32) - 1))
    columns["codec"] = draw(st.sampled_from(Codec))
    return Sample(column(strings), columns)
