"""The trace of a node: what it stored, and what it sent to subscribers."""

from __future__ import annotations

from struct import Struct
from time import time_ns
from typing import TYPE_CHECKING

from rostra.model.batch import PLACED, Flag
from rostra.model.ids import NodeId, is_internal
from rostra.traces.events import TraceEvent, TraceRole, TraceRow
from rostra.traces.recorder import Recorder

if TYPE_CHECKING:
    from rostra.broker.partition.served_partition import ServedPartition

_CONTROL = int(Flag.CONTROL)
_COUNT_FLAGS_AND_TIME = Struct("<IH2xq")
_COUNT_AT = 56


class NodeTrace:
    """Written only if a directory for it is set. Control batches and internal topics are left out."""

    def __init__(self, directory: str, node: NodeId, name: str) -> None:
        self._recorder = Recorder(directory, TraceRole.NODE, node)
        self._name = name
        self._number = 0

    def close(self) -> None:
        self._recorder.close()

    def stored(self, served: ServedPartition, batch: bytearray) -> None:
        records, flags, born_us = _COUNT_FLAGS_AND_TIME.unpack_from(batch, _COUNT_AT)
        if flags & _CONTROL or is_internal(served.topic):
            return
        base, epoch, delta, _, producer, _, sequence = PLACED.unpack_from(batch, 8)
        self._number += 1
        self._recorder.note(
            TraceRow(
                self._number,
                TraceEvent.STORED.value,
                time_ns() // 1000,
                self._recorder.who,
                served.topic,
                served.partition.index,
                0,
                base,
                base + delta + 1,
                records,
                len(batch),
                epoch,
                producer,
                sequence,
                born_us,
                0 if served.owner else 1,
                self._name,
            )
        )

    def sent(self, size: int) -> None:
        self._number += 1
        event, now_us, who = TraceEvent.SERVED.value, time_ns() // 1000, self._recorder.who
        self._recorder.note(TraceRow(self._number, event, now_us, who, "", 0, bytes=size, name=self._name))
