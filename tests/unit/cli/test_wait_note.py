"""The note of what a command waits for."""

from __future__ import annotations

import threading

import pytest

from rostra.cli import wait_note
from rostra.cli.wait_note import WaitNote

DEADLINE_S = 60


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Counts the notes that were printed; `notes` has their texts."""
    count = threading.Semaphore(0)

    def print_note(text: str) -> None:
        notes.append(text)
        count.release()

    notes.clear()
    monkeypatch.setattr(wait_note, "print_note", print_note)
    monkeypatch.setattr(wait_note, "PATIENCE_S", 0.01)
    return count


notes: list[str] = []


def test_a_reason_given_while_records_are_sent_is_told_in_the_next_phase_of_the_wait(
    printed: threading.Semaphore,
) -> None:
    note = WaitNote(())
    note.reason("the disk is full")
    note.begin()
    assert printed.acquire(timeout=DEADLINE_S)
    note.done()
    assert notes == ["note: the disk is full; still waiting (Ctrl-C ends)"]


def test_another_reason_is_told_too(printed: threading.Semaphore) -> None:
    note = WaitNote(())
    note.reason("no answer yet")
    note.begin()
    assert printed.acquire(timeout=DEADLINE_S)
    note.reason("the disk is full")
    assert printed.acquire(timeout=DEADLINE_S)
    note.done()
    assert [told.split(";")[0] for told in notes] == ["note: no answer yet", "note: the disk is full"]
