"""Consumer group members of the contract tests; a test decides when they settle records."""

from __future__ import annotations

from rostra.client.core.effects import Result
from rostra.client.core.groups.assigned_partition import GroupRecord
from rostra.client.core.options import MemberSettings
from rostra.errors import RostraError
from tests.contract.clients import CoreClient


class GroupMember:
    def __init__(self, client: CoreClient, name: str, settings: MemberSettings) -> None:
        self.name = name
        self.taken: list[GroupRecord] = []
        """All records taken so far, in order of delivery."""
        self.joined = False
        self.left = False
        self.ended: RostraError | None = None
        self._client = client
        call = client.call(f"join {name}", self._answered)
        self.membership = client.core.join(client.now_us, call, name, settings, self)
        client.delivered[self.membership.number] = lambda _: None
        client.finished[self.membership.number] = self._finished
        client.run_effects()

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

    def take(self, limit: int = 1_000_000, *, ack: bool = False) -> list[GroupRecord]:
        """Takes the records available now; acknowledges them at once if `ack`."""
        client = self._client
        taken: list[GroupRecord] = []
        while len(taken) < limit and (record := self.membership.dispatcher.take(client.now_us)) is not None:
            taken.append(record)
            if ack:
                record.ack()
        self.taken += taken
        client.run_effects()
        return taken

    def ack(self, record: GroupRecord) -> None:
        self.membership.dispatcher.ack(self._client.now_us, record)
        self._client.run_effects()

    def retry(self, record: GroupRecord) -> None:
        self.membership.dispatcher.retry(self._client.now_us, record)
        self._client.run_effects()

    def give_back(self, record: GroupRecord) -> None:
        self.membership.dispatcher.give_back(self._client.now_us, record)
        self._client.run_effects()

    # --- leaving -------------------------------------------------------------------------------------

    def leave(self) -> None:
        call = self._client.call(f"leave {self.name}", self._on_left)
        self._client.core.leave(self._client.now_us, call, self.membership)
        self._client.run_effects()

    def _on_left(self, result: Result | RostraError) -> None:
        self.left = not isinstance(result, RostraError)
        self.ended = result if isinstance(result, RostraError) else None

    def crash(self) -> None:
        """Ends its program: closes its connections without leaving the group."""
        self._client.core.close(self._client.now_us)
        self._client.run_effects()
