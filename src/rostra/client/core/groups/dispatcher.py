"""What a member hands out: the next record of whatever it holds, until each is settled."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from rostra.client.core.effects import ClientEffect, Notify, RecordsReady, SubscriptionNumber
from rostra.client.core.events import DeadLettered, Redelivered
from rostra.client.core.groups.assigned_partition import AssignedPartition, GroupRecord

MOVE_MS = 100
MOVE_RECORDS = 1_000
"""Positions move when so much time has passed since an acknowledgement, or so many were given."""
IN_HAND_MAX = 10_000
"""Nothing more is handed out while so many records are in hand: what dies with the member comes again."""


class DeadLetters(Protocol):
    """Who brings records to the dead-letter topic, and tells `buried` or `not_buried`."""

    def pause_us(self, failures: int) -> int: ...
    def bury(self, now_us: int, hands: Dispatcher, record: GroupRecord) -> None: ...


class Dispatcher:
    """`may` says whether anything may be handed out at this time; `hurry` that positions are to be moved by then."""

    def __init__(
        self,
        number: SubscriptionNumber,
        name: str,
        undertaker: DeadLetters,
        may: Callable[[int], bool],
        hurry: Callable[[int], None],
        out: list[ClientEffect],
    ) -> None:
        self.number = number
        self.name = name
        self.tries_max = 0
        self.dead_letter = ""
        self.waiting = False
        """Whether somebody waits for records, who is to be told when there are any."""
        self._undertaker = undertaker
        self._may = may
        self._hurry = hurry
        self._out = out
        self._ring: deque[AssignedPartition] = deque()
        self._in_hand = 0
        self._unmoved = 0
        self._stirred_us = 0

    def add(self, holding: AssignedPartition) -> None:
        self._ring.append(holding)

    def remove(self, holding: AssignedPartition) -> None:
        self._ring.remove(holding)
        self._in_hand -= len(holding.in_hand)
        holding.end()

    def moving(self) -> None:
        """What was acknowledged so far is on its way to the coordinator."""
        self._unmoved = 0

    # --- taking --------------------------------------------------------------------------------------

    def take(self, now_us: int) -> GroupRecord | None:
        """The next record; part after part, a batch of each. None when there is none now."""
        if self._in_hand >= IN_HAND_MAX or not self._may(now_us):
            return None
        barren = 0
        while barren < len(self._ring):
            holding = self._ring[0]
            record = holding.next(now_us)
            if record is None or holding.at_end_of_batch:
                self._ring.rotate(-1)
            if record is None:
                barren += 1
                continue
            self._in_hand += 1
            if self.tries_max and record.tries >= self.tries_max:
                self._give_up(now_us, record)
            else:
                return record
        return None

    def stir(self, now_us: int) -> None:
        """Tell whoever waits, if there is something to take."""
        self._stirred_us = now_us
        if not self.waiting or self._in_hand >= IN_HAND_MAX or not self._may(now_us):
            return
        if any(holding.has_next(now_us) for holding in self._ring):
            self.waiting = False
            self._out.append(RecordsReady(self.number))

    def deadline_us(self) -> int | None:
        """When something that failed may be handed out again to whoever waits."""
        if not self.waiting:
            return None
        paused = (holding.resume_at_us for holding in self._ring if holding.pauses)
        # What is over already waits for something else: nothing may be handed out now.
        return min((resume_us for resume_us in paused if resume_us > self._stirred_us), default=None)

    # --- settling ------------------------------------------------------------------------------------

    def _settled(self, record: GroupRecord) -> AssignedPartition | None:
        """What held it, if it was in hand until now."""
        holding = record.holding
        if holding is None or not holding.settled(record):
            return None
        self._in_hand -= 1
        return holding

    def ack(self, now_us: int, record: GroupRecord) -> None:
        holding = self._settled(record)
        if holding is not None:
            self._unmoved += 1
            urgent = self._unmoved >= MOVE_RECORDS or holding.leaving
            self._hurry(now_us if urgent else now_us + MOVE_MS * 1000)
            if self._in_hand == IN_HAND_MAX - 1:
                self.stir(now_us)

    def retry(self, now_us: int, record: GroupRecord) -> None:
        holding = self._settled(record)
        if holding is None:
            return
        again = msgspec.structs.replace(record, tries=record.tries + 1)
        if self.tries_max and again.tries >= self.tries_max:
            holding.in_hand[again.offset] = again
            self._in_hand += 1
            self._give_up(now_us, again)
        else:
            holding.resume_at_us = now_us + self._undertaker.pause_us(record.tries)
            holding.back(again)
            self._out.append(Notify(Redelivered(record.topic, record.partition, record.offset, again.tries)))
        self._hurry(now_us + MOVE_MS * 1000)

    def give_back(self, now_us: int, record: GroupRecord) -> None:
        holding = self._settled(record)
        if holding is not None:
            # Another object, so that whoever still has the first one can say nothing about it any more.
            holding.back(msgspec.structs.replace(record))
            self._hurry(now_us + MOVE_MS * 1000)

    def _give_up(self, now_us: int, record: GroupRecord) -> None:
        """It stays in hand until the dead-letter topic has it."""
        if self.dead_letter:
            self._undertaker.bury(now_us, self, record)
        else:
            self.buried(now_us, record)

    def buried(self, now_us: int, record: GroupRecord) -> None:
        place = record.topic, record.partition, record.offset
        self._out.append(Notify(DeadLettered(*place, record.tries, self.dead_letter)))
        self.ack(now_us, record)

    def not_buried(self, now_us: int, record: GroupRecord) -> None:
        holding = self._settled(record)
        if holding is not None:
            holding.resume_at_us = now_us + self._undertaker.pause_us(record.tries)
            holding.back(msgspec.structs.replace(record))
