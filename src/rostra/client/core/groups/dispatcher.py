"""Delivers the records of a member's partitions to the application, and settles them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from rostra.client.core.effects import ClientEffect, Notify, RecordsReady, SubscriptionNumber
from rostra.client.core.events import DeadLettered, DeliveryPaused, Redelivered
from rostra.client.core.groups.assigned_partition import AssignedPartition, GroupRecord

COMMIT_MS = 100
COMMIT_RECORDS = 1_000
"""Positions are committed after this time since an acknowledgement, or after this many of them."""
UNACKED_MAX = 10_000
"""Nothing more is delivered while this many records are unacknowledged; they are delivered again if the member dies."""


class DeadLetters(Protocol):
    """Publishes records to the dead-letter topic and calls `dead_letter_stored` or `dead_letter_failed`."""

    def pause_us(self, failures: int) -> int: ...
    def publish_dead_letter(self, now_us: int, dispatcher: Dispatcher, record: GroupRecord) -> None: ...


class Dispatcher:
    """`may_deliver` says whether anything may be delivered now; `commit_by` requests a commit of positions by that
    time.
    """

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
        """Whether a caller waits for records and is to be woken."""
        self._dead_letters = dead_letters
        self._may_deliver = may_deliver
        self._commit_by = commit_by
        self._out = out
        self._ring: deque[AssignedPartition] = deque()
        self._unacked = 0
        self._uncommitted = 0
        self._paused = False
        """Whether the application was told that too many records are unacknowledged."""
        self._checked_us = 0

    def add(self, assigned: AssignedPartition) -> None:
        self._ring.append(assigned)

    def remove(self, assigned: AssignedPartition) -> None:
        self._ring.remove(assigned)
        self._unacked -= len(assigned.unacked)
        assigned.end()

    def committing(self) -> None:
        """Everything acknowledged so far is being committed."""
        self._uncommitted = 0

    # --- delivery ------------------------------------------------------------------------------------

    def take(self, now_us: int) -> GroupRecord | None:
        """The next record, taking turns among partitions after each batch; None if there is none now."""
        if self._unacked >= UNACKED_MAX:
            self._pause()
            return None
        if not self._may_deliver(now_us):
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

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._out.append(Notify(DeliveryPaused(self.name, self._unacked)))

    def wake_waiter(self, now_us: int) -> None:
        """Wake a waiting caller if there is a record for it."""
        self._checked_us = now_us
        if not self.waiting or self._unacked >= UNACKED_MAX or not self._may_deliver(now_us):
            return
        if any(assigned.has_next(now_us) for assigned in self._ring):
            self.waiting = False
            self._out.append(RecordsReady(self.number))

    def deadline_us(self) -> int | None:
        """When a failed record may be delivered again to a waiting caller."""
        if not self.waiting:
            return None
        paused = (assigned.resume_at_us for assigned in self._ring if assigned.paused)
        # A time that has passed is blocked by something else: nothing may be delivered now.
        return min((resume_us for resume_us in paused if resume_us > self._checked_us), default=None)

    # --- settlement ----------------------------------------------------------------------------------

    def _settled(self, record: GroupRecord) -> AssignedPartition | None:
        """The partition of the record, if the record was unacknowledged until now."""
        assigned = record.assigned
        if assigned is None or not assigned.settled(record):
            return None
        self._unacked -= 1
        if self._unacked <= UNACKED_MAX // 2:
            self._paused = False
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
            # A new object, so that the old one can not settle it any more.
            assigned.put_back(msgspec.structs.replace(record))
            self._commit_by(now_us + COMMIT_MS * 1000)

    def _give_up(self, now_us: int, record: GroupRecord) -> None:
        """The record stays unacknowledged until it is stored in the dead-letter topic."""
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
