"""Mutated frames against the frame reader, the broker and the client's decoders, all in this process."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from rostra.model.batch import Reason
from rostra.wire.frames import FROM_CLIENT, FROM_NODE, Dialect, Violation
from tests.fuzz import mutations
from tests.fuzz.corpus import Corpus, by_its_fields
from tests.fuzz.memory import GROWTH_BYTES_MAX, resident_bytes
from tests.fuzz.rig import FRAMES_PER_ROUND, Tally, run
from tests.unit.wire.streams import ALL_KINDS, CLIENT_KINDS

SEED = 20_261_115
FRAMES = 50_000
FRAMES_SOAK = 1_000_000


def fuzz(frames: int) -> Tally:
    """Every frame ends in an answer, a refusal or a closed connection; anything else has raised by now."""
    run(SEED, range(1))
    before = resident_bytes()
    tally = run(SEED, range(frames // FRAMES_PER_ROUND))
    assert resident_bytes() - before < GROWTH_BYTES_MAX
    assert tally.frames == frames
    return tally


def missed(tally: Tally) -> list[str]:
    """The outcomes that should have happened at least once and did not."""
    never = [kind.__name__ for kind in ALL_KINDS if not tally.kinds[kind.__name__]]
    never += [reason.name for reason in Violation if not tally.violations[reason]]
    never += [f"Reason.{reason.name}" for reason in Reason if not tally.rejections[reason]]
    return never + [one.__name__ for one in mutations.ALL if not tally.mutations[one.__name__]]


def test_no_mutated_frame_harms_a_node_or_a_client() -> None:
    assert missed(fuzz(FRAMES)) == []


@pytest.mark.soak
def test_no_mutated_frame_of_a_million_harms_a_node_or_a_client() -> None:
    assert missed(fuzz(FRAMES_SOAK)) == []


def test_a_message_without_a_line_in_the_corpus_is_drawn_from_its_fields() -> None:
    corpus = Corpus(Random(SEED), [1])
    for kind in ALL_KINDS:
        dialect: Dialect[Any] = FROM_CLIENT if kind in CLIENT_KINDS else FROM_NODE
        for _ in range(50):
            meta = msgspec.msgpack.encode(by_its_fields(kind)(corpus))
            assert isinstance(dialect.decode(kind.kind, meta, int(kind.payload)), kind)
