"""Control batches: applied when they are appended, undone when they are truncated."""

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
from rostra.model.batch import BROKER_STATE, CHECKPOINT, Buffer, read_header, stamp
from rostra.model.encode import encode
from rostra.safeguards import Safeguard
from rostra.wire.messages import Agreed, Failed
from tests.unit.broker.broker_driver import BrokerDriver
from tests.unit.broker.list_log import ListLog
from tests.unit.broker.test_ownership_changes import HERE, TOPIC, ScriptedFabric, desk_with, emit

ENTRY = CompactBelow(7, 1)
LATER = CompactBelow(9, 2)


def here(driver: BrokerDriver) -> ServedPartition:
    served = driver.broker.topic_table.served.get(HERE)
    assert served is not None
    return served


def append_control(driver: BrokerDriver, *entries: CompactBelow) -> int:
    last = driver.broker.proposer.append_control(here(driver), entries)
    assert isinstance(last, int)
    for effect in driver.broker.out:
        if isinstance(effect, Append):
            driver.logs[HERE].batches.append(effect.batch)
    driver.broker.out.clear()
    return last


def compaction_mark(driver: BrokerDriver) -> CompactBelow | None:
    return here(driver).derived.compaction.get(None)


def placed(batch: bytearray, base: int, flags: int = 0) -> bytearray:
    stamp(batch, partition=HERE, base_offset=base, owner_epoch=1, owner_flags=flags)
    return batch


def record(base: int, sequence: int) -> bytearray:
    return placed(encode([b"x"], timestamp_us=1, producer=9, sequence=sequence), base)


def test_entries_are_in_the_log_and_in_the_state_of_every_copy() -> None:
    driver = desk_with(ScriptedFabric())
    assert append_control(driver, ENTRY, LATER) == 1
    assert compaction_mark(driver) == LATER
    (batch,) = driver.logs[HERE].batches
    assert read_header(batch).owner_flags == BROKER_STATE and read_header(batch).is_control
    assert read_control(batch) == [ENTRY, LATER]
    copy = desk_with(ScriptedFabric())
    emit(copy, Serving(HERE, 2, False, 0, 0, 0, "other:1"), Append(HERE, batch))
    assert compaction_mark(copy) == LATER


def test_truncated_entries_are_undone() -> None:
    driver = desk_with(ScriptedFabric())
    append_control(driver, ENTRY)
    emit(driver, Committed(HERE, 1))
    append_control(driver, LATER)
    emit(driver, Truncate(HERE, 1, 1))
    assert compaction_mark(driver) == ENTRY


def test_a_reply_waits_until_its_entries_are_committed() -> None:
    driver = desk_with(ScriptedFabric())
    session = driver.broker.sessions.by_conn[1]
    last = append_control(driver, ENTRY)
    driver.broker.proposer.reply_when_committed(1, session, here(driver), last, Agreed(4), request=4)
    assert driver.received(1, Agreed) == [] and session.waiting == 1
    emit(driver, Committed(HERE, 1))
    assert driver.received(1, Agreed) == [Agreed(4)] and session.waiting == 0


def test_a_reply_whose_entries_are_truncated_is_a_refusal_and_a_notification_is_dropped() -> None:
    driver = desk_with(ScriptedFabric())
    last = append_control(driver, ENTRY)
    for conn, request in ((1, 4), (2, 0)):
        session = driver.broker.sessions.by_conn[conn]
        driver.broker.proposer.reply_when_committed(conn, session, here(driver), last, Agreed(4), request=request)
    emit(driver, Truncate(HERE, 0, 1))
    assert isinstance(driver.error(1), Unavailable)
    assert driver.received(2, Failed) == [] and driver.received(2, Agreed) == []


def test_only_the_owner_appends_control_batches() -> None:
    driver = desk_with(ScriptedFabric())
    emit(driver, Serving(HERE, 2, False, 0, 0, 0))
    assert isinstance(driver.broker.proposer.append_control(here(driver), [ENTRY]), Unavailable)


def test_a_start_rebuilds_the_state_from_the_log() -> None:
    driver = desk_with(ScriptedFabric())
    append_control(driver, ENTRY)
    append_control(driver, LATER)
    again = restarted(driver)
    assert compaction_mark(again) == LATER
    emit(again, Truncate(HERE, 1, 1))
    assert compaction_mark(again) == ENTRY


def restarted(driver: BrokerDriver) -> BrokerDriver:
    """With a fabric that has the log, of which nothing is known to be committed."""
    log = driver.logs[HERE]

    class Again(ScriptedFabric):
        def step(self, now: Now, given: FabricInput) -> list[FabricEffect]:
            if not isinstance(given, Started):
                return super().step(now, given)
            opened, *_ = super().step(now, given)
            self.end = log.end
            return [opened, Serving(HERE, 2, False, log.first, log.end, log.first, "other:1"), Ready()]

    again = BrokerDriver(fabric=Again(), logs=driver.logs).start()
    again.connect(1)
    return again


def test_a_checkpoint_carries_all_tables() -> None:
    state = LogDerivedState(ProducerTable(10))
    state.producers.apply(0, 0, 9, 1, 0, 1)
    state.compaction.apply(1, ENTRY)
    again = LogDerivedState(ProducerTable(10))
    again.restore(state.checkpoint([(1, 0)]))
    again.truncate(0)
    assert again.compaction.get(None) == ENTRY
    assert again.producers.check(9, 1, 0, 1) == (0, 0)


def test_without_the_safeguard_it_carries_nothing() -> None:
    state = LogDerivedState(ProducerTable(10), frozenset({Safeguard.CHECKPOINT_BATCH}))
    state.producers.apply(0, 0, 9, 1, 0, 1)
    state.compaction.apply(1, ENTRY)
    found = state.checkpoint([(1, 0)])
    assert (found.producers, found.epochs, found.entries) == ([], [(1, 0)], [])


# --- logs truncated below the checkpoint that the state was restored from ---


def rolled() -> BrokerDriver:
    """A log of a record, an entry, another record, a checkpoint, and a record; then a start."""
    driver = desk_with(ScriptedFabric())
    driver.publish(1, TOPIC, producer=9, sequence=0)
    append_control(driver, ENTRY)
    driver.publish(1, TOPIC, producer=9, sequence=1)
    append_control(driver, LATER)
    driver.broker.proposer.roll(here(driver))
    checkpoint = next(effect for effect in driver.broker.out if isinstance(effect, Append))
    assert read_header(checkpoint.batch).owner_flags == CHECKPOINT
    driver.logs[HERE].batches.append(checkpoint.batch)
    return restarted(driver)


def is_known(driver: BrokerDriver, sequence: int) -> bool:
    result = here(driver).producers.check(9, 0, sequence, 1)
    assert not isinstance(result, RostraError), result
    return result is not None


def test_a_start_restores_the_state_from_the_checkpoint() -> None:
    driver = rolled()
    assert compaction_mark(driver) == LATER
    assert [is_known(driver, sequence) for sequence in range(3)] == [True, True, False]


def test_a_log_truncated_below_that_checkpoint_is_inspected_again() -> None:
    driver = rolled()
    emit(driver, Truncate(HERE, 2, 1))
    assert driver.of(InspectLog) == [InspectLog(HERE)]
    driver.settle()
    assert compaction_mark(driver) == ENTRY
    assert [is_known(driver, sequence) for sequence in range(2)] == [True, False]


def test_nothing_is_ordered_until_the_log_was_inspected() -> None:
    driver = rolled()
    emit(driver, Truncate(HERE, 2, 1), Serving(HERE, 3, True, 0, 2, 2))
    driver.publish(1, TOPIC, producer=9, sequence=1)
    assert isinstance(driver.error(1), Unavailable)
    assert isinstance(driver.broker.proposer.append_control(here(driver), [ENTRY]), Unavailable)
    driver.settle()
    assert here(driver).blocked is None and here(driver).rebuilding is None
    assert isinstance(driver.broker.proposer.append_control(here(driver), [ENTRY]), int)


def test_batches_appended_during_an_inspection_are_applied_once() -> None:
    driver = rolled()
    emit(driver, Truncate(HERE, 2, 1))
    (recall,) = [effect for effect in driver.pending if isinstance(effect, InspectLog)]
    emit(driver, Append(HERE, record(2, 1)))
    (answer,) = driver.answer(recall)
    driver.pending.clear()
    later = placed(control_batch([LATER], 1), 4, BROKER_STATE)
    emit(driver, Append(HERE, record(3, 2)), Append(HERE, later))
    driver.step(answer)
    assert compaction_mark(driver) == LATER
    assert [is_known(driver, sequence) for sequence in range(4)] == [True] * 3 + [False]
    emit(driver, Truncate(HERE, 3, 2))
    assert compaction_mark(driver) == ENTRY and not is_known(driver, 2)


def test_an_inspection_overtaken_by_another_truncation_is_ignored() -> None:
    driver = rolled()
    emit(driver, Truncate(HERE, 2, 1))
    (recall,) = [effect for effect in driver.pending if isinstance(effect, InspectLog)]
    (answer,) = driver.answer(recall)
    driver.pending.clear()
    emit(driver, Truncate(HERE, 0, 2))
    driver.step(answer)
    assert here(driver).rebuilding is not None
    driver.settle()
    assert here(driver).rebuilding is None and compaction_mark(driver) is None and not is_known(driver, 0)


def test_a_copy_filled_from_a_log_start_has_the_state_of_its_first_checkpoint() -> None:
    log = rolled().logs[HERE]
    checkpoint: Buffer = log.batches[-1]
    driver = desk_with(ScriptedFabric())
    base = read_header(checkpoint).base_offset
    driver.logs.clear()
    emit(driver, Open(HERE, 1 << 20, base), Serving(HERE, 2, False, base, base, base, "other:1"))
    emit(driver, Append(HERE, bytearray(checkpoint)))
    assert compaction_mark(driver) == LATER and is_known(driver, 1)


@pytest.mark.parametrize("trimmed", [False, True])
def test_the_state_survives_retention_of_all_but_the_last_segment(trimmed: bool) -> None:
    driver = rolled()
    log: ListLog = driver.logs[HERE]
    if trimmed:
        log.trim(read_header(log.batches[-1]).base_offset)
    again = restarted(driver)
    assert compaction_mark(again) == LATER
    assert is_known(again, 1)
