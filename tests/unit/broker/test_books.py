"""What the broker itself writes into a partition's log: it is in the books at once, and stays as long as in the log."""

from __future__ import annotations

import pytest

from rostra.broker.api import InspectLog
from rostra.broker.partition.compaction_mark import CompactBelow
from rostra.broker.partition.control_batch import control_batch, read_control
from rostra.broker.partition.log_derived_state import LogDerivedState
from rostra.broker.partition.served_partition import ServedPartition
from rostra.broker.publish.producer_table import ProducerTable
from rostra.errors import RostraError, Unavailable
from rostra.fabric.api import Append, Committed, FabricEffect, FabricInput, Now, Open, Ready, Serving, Started, Truncate
from rostra.model.batch import CHECKPOINT, LEDGER, Buffer, read_header, stamp
from rostra.model.encode import encode
from rostra.safeguards import Safeguard
from rostra.wire.messages import Agreed, Failed
from tests.unit.broker.desk import Desk
from tests.unit.broker.listlog import ListLog
from tests.unit.broker.test_roles import HERE, TOPIC, Scripted, desk_with, tell

ENTRY = CompactBelow(7, 1)
LATER = CompactBelow(9, 2)


def here(desk: Desk) -> ServedPartition:
    served = desk.broker.topic_table.served.get(HERE)
    assert served is not None
    return served


def order(desk: Desk, *entries: CompactBelow) -> int:
    last = desk.broker.batch_ordering.append_control(here(desk), entries)
    assert isinstance(last, int)
    for effect in desk.broker.out:
        if isinstance(effect, Append):
            desk.logs[HERE].batches.append(effect.batch)
    desk.broker.out.clear()
    return last


def said(desk: Desk) -> CompactBelow | None:
    return here(desk).derived.compaction.get(None)


def placed(batch: bytearray, base: int, flags: int = 0) -> bytearray:
    stamp(batch, partition=HERE, base_offset=base, owner_epoch=1, owner_flags=flags)
    return batch


def record(base: int, sequence: int) -> bytearray:
    return placed(encode([b"x"], timestamp_us=1, producer=9, sequence=sequence), base)


def test_entries_are_in_the_log_and_in_the_books_of_every_copy() -> None:
    desk = desk_with(Scripted())
    assert order(desk, ENTRY, LATER) == 1
    assert said(desk) == LATER
    (batch,) = desk.logs[HERE].batches
    assert read_header(batch).owner_flags == LEDGER and read_header(batch).is_control
    assert read_control(batch) == [ENTRY, LATER]
    copy = desk_with(Scripted())
    tell(copy, Serving(HERE, 2, False, 0, 0, 0, "other:1"), Append(HERE, batch))
    assert said(copy) == LATER


def test_what_is_cut_from_the_log_is_undone_in_the_books() -> None:
    desk = desk_with(Scripted())
    order(desk, ENTRY)
    tell(desk, Committed(HERE, 1))
    order(desk, LATER)
    tell(desk, Truncate(HERE, 1, 1))
    assert said(desk) == ENTRY


def test_an_answer_waits_until_its_entries_are_committed() -> None:
    desk = desk_with(Scripted())
    session = desk.broker.sessions.by_conn[1]
    last = order(desk, ENTRY)
    desk.broker.batch_ordering.reply_when_committed(1, session, here(desk), last, Agreed(4), request=4)
    assert desk.heard(1, Agreed) == [] and session.waiting == 1
    tell(desk, Committed(HERE, 1))
    assert desk.heard(1, Agreed) == [Agreed(4)] and session.waiting == 0


def test_an_answer_whose_entries_are_cut_is_a_refusal_and_a_message_that_nobody_awaits_is_dropped() -> None:
    desk = desk_with(Scripted())
    last = order(desk, ENTRY)
    for conn, request in ((1, 4), (2, 0)):
        session = desk.broker.sessions.by_conn[conn]
        desk.broker.batch_ordering.reply_when_committed(conn, session, here(desk), last, Agreed(4), request=request)
    tell(desk, Truncate(HERE, 0, 1))
    assert isinstance(desk.error(1), Unavailable)
    assert desk.heard(2, Failed) == [] and desk.heard(2, Agreed) == []


def test_only_the_owner_orders() -> None:
    desk = desk_with(Scripted())
    tell(desk, Serving(HERE, 2, False, 0, 0, 0))
    assert isinstance(desk.broker.batch_ordering.append_control(here(desk), [ENTRY]), Unavailable)


def test_a_start_finds_in_the_log_what_the_books_were() -> None:
    desk = desk_with(Scripted())
    order(desk, ENTRY)
    order(desk, LATER)
    again = restarted(desk)
    assert said(again) == LATER
    tell(again, Truncate(HERE, 1, 1))
    assert said(again) == ENTRY


def restarted(desk: Desk) -> Desk:
    """With a fabric that has the log, of which nothing is known to be committed."""
    log = desk.logs[HERE]

    class Again(Scripted):
        def step(self, now: Now, given: FabricInput) -> list[FabricEffect]:
            if not isinstance(given, Started):
                return super().step(now, given)
            opened, *_ = super().step(now, given)
            self.end = log.end
            return [opened, Serving(HERE, 2, False, log.first, log.end, log.first, "other:1"), Ready()]

    again = Desk(fabric=Again(), logs=desk.logs).start()
    again.connect(1)
    return again


def test_a_checkpoint_carries_all_books() -> None:
    books = LogDerivedState(ProducerTable(10))
    books.producers.apply(0, 0, 9, 1, 0, 1)
    books.compaction.apply(1, ENTRY)
    again = LogDerivedState(ProducerTable(10))
    again.restore(books.checkpoint([(1, 0)]))
    again.truncate(0)
    assert again.compaction.get(None) == ENTRY
    assert again.producers.check(9, 1, 0, 1) == (0, 0)


def test_without_the_safeguard_it_carries_nothing() -> None:
    books = LogDerivedState(ProducerTable(10), frozenset({Safeguard.CHECKPOINT_BATCH}))
    books.producers.apply(0, 0, 9, 1, 0, 1)
    books.compaction.apply(1, ENTRY)
    found = books.checkpoint([(1, 0)])
    assert (found.producers, found.epochs, found.entries) == ([], [(1, 0)], [])


# --- logs that are cut below the checkpoint that the books came from ---


def rolled() -> Desk:
    """A log of a record, an entry, another record, a checkpoint, and a record; then a start."""
    desk = desk_with(Scripted())
    desk.publish(1, TOPIC, producer=9, sequence=0)
    order(desk, ENTRY)
    desk.publish(1, TOPIC, producer=9, sequence=1)
    order(desk, LATER)
    desk.broker.batch_ordering.roll(here(desk))
    checkpoint = next(effect for effect in desk.broker.out if isinstance(effect, Append))
    assert read_header(checkpoint.batch).owner_flags == CHECKPOINT
    desk.logs[HERE].batches.append(checkpoint.batch)
    return restarted(desk)


def is_known(desk: Desk, sequence: int) -> bool:
    judged = here(desk).producers.check(9, 0, sequence, 1)
    assert not isinstance(judged, RostraError), judged
    return judged is not None


def test_a_start_restores_the_books_from_the_checkpoint() -> None:
    desk = rolled()
    assert said(desk) == LATER
    assert [is_known(desk, sequence) for sequence in range(3)] == [True, True, False]


def test_a_log_cut_below_that_checkpoint_is_looked_at_again() -> None:
    desk = rolled()
    tell(desk, Truncate(HERE, 2, 1))
    assert desk.of(InspectLog) == [InspectLog(HERE)]
    desk.settle()
    assert said(desk) == ENTRY
    assert [is_known(desk, sequence) for sequence in range(2)] == [True, False]


def test_nothing_is_ordered_until_the_log_was_looked_at() -> None:
    desk = rolled()
    tell(desk, Truncate(HERE, 2, 1), Serving(HERE, 3, True, 0, 2, 2))
    desk.publish(1, TOPIC, producer=9, sequence=1)
    assert isinstance(desk.error(1), Unavailable)
    assert isinstance(desk.broker.batch_ordering.append_control(here(desk), [ENTRY]), Unavailable)
    desk.settle()
    assert here(desk).blocked is None and here(desk).rebuilding is None
    assert isinstance(desk.broker.batch_ordering.append_control(here(desk), [ENTRY]), int)


def test_what_is_appended_during_the_look_is_in_the_books_afterwards_and_once() -> None:
    desk = rolled()
    tell(desk, Truncate(HERE, 2, 1))
    (recall,) = [effect for effect in desk.pending if isinstance(effect, InspectLog)]
    tell(desk, Append(HERE, record(2, 1)))
    (answer,) = desk.answer(recall)
    desk.pending.clear()
    later = placed(control_batch([LATER], 1), 4, LEDGER)
    tell(desk, Append(HERE, record(3, 2)), Append(HERE, later))
    desk.step(answer)
    assert said(desk) == LATER
    assert [is_known(desk, sequence) for sequence in range(4)] == [True] * 3 + [False]
    tell(desk, Truncate(HERE, 3, 2))
    assert said(desk) == ENTRY and not is_known(desk, 2)


def test_a_look_that_was_overtaken_by_another_cut_counts_for_nothing() -> None:
    desk = rolled()
    tell(desk, Truncate(HERE, 2, 1))
    (recall,) = [effect for effect in desk.pending if isinstance(effect, InspectLog)]
    (answer,) = desk.answer(recall)
    desk.pending.clear()
    tell(desk, Truncate(HERE, 0, 2))
    desk.step(answer)
    assert here(desk).rebuilding is not None
    desk.settle()
    assert here(desk).rebuilding is None and said(desk) is None and not is_known(desk, 0)


def test_a_copy_that_is_filled_from_a_log_start_has_the_books_of_its_first_checkpoint() -> None:
    log = rolled().logs[HERE]
    checkpoint: Buffer = log.batches[-1]
    desk = desk_with(Scripted())
    base = read_header(checkpoint).base_offset
    desk.logs.clear()
    tell(desk, Open(HERE, 1 << 20, base), Serving(HERE, 2, False, base, base, base, "other:1"))
    tell(desk, Append(HERE, bytearray(checkpoint)))
    assert said(desk) == LATER and is_known(desk, 1)


@pytest.mark.parametrize("trimmed", [False, True])
def test_books_survive_retention_of_all_but_the_last_segment(trimmed: bool) -> None:
    desk = rolled()
    log: ListLog = desk.logs[HERE]
    if trimmed:
        log.trim(read_header(log.batches[-1]).base_offset)
    again = restarted(desk)
    assert said(again) == LATER
    assert is_known(again, 1)
