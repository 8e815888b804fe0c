"""Members of named subscriptions at a cluster. What they take they settle when the promise says so."""

from __future__ import annotations

from rostra.client.core.effects import Result
from rostra.client.core.groups.assigned_partition import GroupRecord
from rostra.client.core.options import MemberSettings
from rostra.errors import RostraError
from tests.contract.people import Station


class Member:
    def __init__(self, station: Station, name: str, settings: MemberSettings) -> None:
        self.name = name
        self.taken: list[GroupRecord] = []
        """In the order in which they were handed out."""
        self.joined = False
        self.left = False
        self.ended: RostraError | None = None
        self._station = station
        call = station.call(f"join {name}", self._answered)
        self.membership = station.core.join(station.now_us, call, name, settings, self)
        station.delivered[self.membership.number] = lambda _: None
        station.finished[self.membership.number] = self._finished
        station.act()

    def _answered(self, result: Result | RostraError) -> None:
        if isinstance(result, RostraError):
            self.ended = result
        else:
            self.joined = True

    def _finished(self, error: RostraError) -> None:
        self.ended = error

    # --- records -------------------------------------------------------------------------------------

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for record in self.taken]

    def take(self, most: int = 1_000_000, *, ack: bool = False) -> list[GroupRecord]:
        """What there is to take by now, acknowledged at once or not."""
        station = self._station
        taken: list[GroupRecord] = []
        while len(taken) < most and (record := self.membership.dispatcher.take(station.now_us)) is not None:
            taken.append(record)
            if ack:
                record.ack()
        self.taken += taken
        station.act()
        return taken

    def ack(self, record: GroupRecord) -> None:
        self.membership.dispatcher.ack(self._station.now_us, record)
        self._station.act()

    def retry(self, record: GroupRecord) -> None:
        self.membership.dispatcher.retry(self._station.now_us, record)
        self._station.act()

    def give_back(self, record: GroupRecord) -> None:
        self.membership.dispatcher.give_back(self._station.now_us, record)
        self._station.act()

    # --- going ---------------------------------------------------------------------------------------

    def leave(self) -> None:
        call = self._station.call(f"leave {self.name}", self._gone)
        self._station.core.leave(self._station.now_us, call, self.membership)
        self._station.act()

    def _gone(self, result: Result | RostraError) -> None:
        self.left = not isinstance(result, RostraError)
        self.ended = result if isinstance(result, RostraError) else None

    def die(self) -> None:
        """Its program ends: nothing is said, and its connections close."""
        self._station.core.close(self._station.now_us)
        self._station.act()
