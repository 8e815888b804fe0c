"""What a member hands out: the next record of whatever it holds, until each is settled."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from rostra.client.core.effects import ClientEffect, Notify, RecordsReady, SubscriptionNumber
from rostra.client.core.events import DeadLettered, Redelivered
from rostra.client.core.groups.assigned_partition import AssignedPartition, GroupRecord

COMMIT_MS = 100
COMMIT_RECORDS = 1_000
"""Positions move when so much time has passed since an acknowledgement, or so many were given."""
UNACKED_MAX = 10_000
"""Nothing more is handed out while so many records are in hand: what dies with the member comes again."""


class DeadLetters(Protocol):
    """Who brings records to the dead-letter topic, and tells `buried` or `not_buried`."""

    def pause_us(self, failures: int) -> int: ...
    def publish_dead_letter(self, now_us: int, dispatcher: Dispatcher, record: GroupRecord) -> None: ...


class Dispatcher:
    """`may` says whether anything may be handed out at this time; `hurry` that positions are to be moved by then."""

    def __init__(
        self,
        number: SubscriptionNumber,
        name: str,
        dead_letters: DeadLetters,
        may_deliver: Callable[[int], bool],
        commit_by: Callable[[int], None],
        out: list[ClientEffect],
    ) -> None:
        self.number = number
        self.name = name
        self.tries_max = 0
        self.dead_letter = ""
        self.waiting = False
        """Whether somebody waits for records, who is to be told when there are any."""
        self._dead_letters = dead_letters
        self._may_deliver = may_deliver
        self._commit_by = commit_by
        self._out = out
        self._ring: deque[AssignedPartition] = deque()
        self._unacked = 0
        self._uncommitted = 0
        self._checked_us = 0

    def add(self, assigned: AssignedPartition) -> None:
        self._ring.append(assigned)

    def remove(self, assigned: AssignedPartition) -> None:
        self._ring.remove(assigned)
        self._unacked -= len(assigned.unacked)
        assigned.end()

    def committing(self) -> None:
        """What was acknowledged so far is on its way to the coordinator."""
        self._uncommitted = 0

    # --- taking --------------------------------------------------------------------------------------

    def take(self, now_us: int) -> GroupRecord | None:
        """The next record; part after part, a batch of each. None when there is none now."""
        if self._unacked >= UNACKED_MAX or not self._may_deliver(now_us):
            return None
        empty = 0
        while empty < len(self._ring):
            assigned = self._ring[0]
            record = assigned.next(now_us)
            if record is None or assigned.at_end_of_batch:
                self._ring.rotate(-1)
            if record is None:
                empty += 1
                continue
            self._unacked += 1
            if self.tries_max and record.tries >= self.tries_max:
                self._give_up(now_us, record)
            else:
                return record
        return None

    def wake_waiter(self, now_us: int) -> None:
        """Tell whoever waits, if there is something to take."""
        self._checked_us = now_us
        if not self.waiting or self._unacked >= UNACKED_MAX or not self._may_deliver(now_us):
            return
        if any(assigned.has_next(now_us) for assigned in self._ring):
            self.waiting = False
            self._out.append(RecordsReady(self.number))

    def deadline_us(self) -> int | None:
        """When something that failed may be handed out again to whoever waits."""
        if not self.waiting:
            return None
        paused = (assigned.resume_at_us for assigned in self._ring if assigned.paused)
        # What is over already waits for something else: nothing may be handed out now.
        return min((resume_us for resume_us in paused if resume_us > self._checked_us), default=None)

    # --- settling ------------------------------------------------------------------------------------

    def _settled(self, record: GroupRecord) -> AssignedPartition | None:
        """What held it, if it was in hand until now."""
        assigned = record.assigned
        if assigned is None or not assigned.settled(record):
            return None
        self._unacked -= 1
        return assigned

    def ack(self, now_us: int, record: GroupRecord) -> None:
        assigned = self._settled(record)
        if assigned is not None:
            self._uncommitted += 1
            urgent = self._uncommitted >= COMMIT_RECORDS or assigned.revoked
            self._commit_by(now_us if urgent else now_us + COMMIT_MS * 1000)
            if self._unacked == UNACKED_MAX - 1:
                self.wake_waiter(now_us)

    def retry(self, now_us: int, record: GroupRecord) -> None:
        assigned = self._settled(record)
        if assigned is None:
            return
        again = msgspec.structs.replace(record, tries=record.tries + 1)
        if self.tries_max and again.tries >= self.tries_max:
            assigned.unacked[again.offset] = again
            self._unacked += 1
            self._give_up(now_us, again)
        else:
            assigned.resume_at_us = now_us + self._dead_letters.pause_us(record.tries)
            assigned.put_back(again)
            self._out.append(Notify(Redelivered(record.topic, record.partition, record.offset, again.tries)))
        self._commit_by(now_us + COMMIT_MS * 1000)

    def give_back(self, now_us: int, record: GroupRecord) -> None:
        assigned = self._settled(record)
        if assigned is not None:
            # Another object, so that whoever still has the first one can say nothing about it any more.
            assigned.put_back(msgspec.structs.replace(record))
            self._commit_by(now_us + COMMIT_MS * 1000)

    def _give_up(self, now_us: int, record: GroupRecord) -> None:
        """It stays in hand until the dead-letter topic has it."""
        if self.dead_letter:
            self._dead_letters.publish_dead_letter(now_us, self, record)
        else:
            self.dead_letter_stored(now_us, record)

    def dead_letter_stored(self, now_us: int, record: GroupRecord) -> None:
        position = record.topic, record.partition, record.offset
        self._out.append(Notify(DeadLettered(*position, record.tries, self.dead_letter)))
        self.ack(now_us, record)

    def dead_letter_failed(self, now_us: int, record: GroupRecord) -> None:
        assigned = self._settled(record)
        if assigned is not None:
            assigned.resume_at_us = now_us + self._dead_letters.pause_us(record.tries)
            assigned.put_back(msgspec.structs.replace(record))
