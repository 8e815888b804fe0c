"""What happens to named subscriptions by themselves: they come to this node and go, topics come and go, leases end."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from rostra.broker.groups.coordinator_locator import GROUPS_TOPIC, place_of
from rostra.broker.groups.join import GroupJoin
from rostra.broker.groups.store import GroupStore
from rostra.broker.groups.topic_matching import patterns_of
from rostra.broker.partition.served_partition import ServedPartition
from rostra.errors import RostraError
from rostra.fabric.api import LogLine, SetTimer

if TYPE_CHECKING:
    from rostra.broker.broker import Broker

GROUPS_TIMER = "broker/groups"
TOGETHER_US = 20_000
"""Topics that come or go within this are handed out together: a member is told its whole set each time."""
AGAIN_US = 200_000
"""After so long what was refused is tried again."""
AT_ONCE = 500
"""Names or members that are seen to in one step: others wait meanwhile."""
LATE_US = 1_000_000
"""A timer that fires this late tells of a node that stood still itself, and heard nobody."""


class GroupMaintenance:
    """One timer for all of it; names without members are never looked at."""

    def __init__(self, broker: Broker, stewardship: GroupStore, admission: GroupJoin) -> None:
        self._broker = broker
        self._stewardship = stewardship
        self._admission = admission
        self._unsettled: dict[str, None] = {}
        """Names whose topics may have changed."""
        self._settle_us = 0
        self._confirm_us = 0
        self._timer_us: int | None = None

    # --- partitions ---

    def serving(self, served: ServedPartition) -> None:
        """The fabric said who owns a partition of `_groups`."""
        owned = self._stewardship.owned
        if not served.owner:
            if owned.pop(served.partition, None) is not None:
                self._lost(served)
        elif served.partition not in owned:
            owned[served.partition] = False
            self.follow(served)

    def follow(self, served: ServedPartition) -> None:
        """The book is not what this owner made of it: it was another's until now, or its end was cut."""
        stewardship, now_us = self._stewardship, self._broker.now.mono_us
        if served.partition not in stewardship.owned:
            return
        for name, group in sorted(served.books.groups.groups.items()):
            for member, joined in sorted(group.members.items()):
                stewardship.seats.expect((name, member), now_us)
                stewardship.leases.look_at((name, member), now_us + joined.lease_ms * 1000)
            if group.members:
                stewardship.interest.set(name, patterns_of(group.members.values()))
                self._unsettle(name)
        self.set_timer()

    def _lost(self, served: ServedPartition) -> None:
        """Members go on at the next coordinator, which knows them."""
        stewardship, error = self._stewardship, self._broker.placement.not_owner(served)
        known = self._broker.catalogue.named(GROUPS_TOPIC)
        for seated in list(stewardship.seats.by_member):
            if known is None or place_of(known, seated[0]) is served:
                conn = stewardship.seats.leave(seated)
                stewardship.interest.set(seated[0], ())
                if conn is not None:
                    stewardship.end(conn, seated, error)

    # --- topics ---

    def topic_changed(self, topic: str) -> None:
        """It came or went."""
        for name in self._stewardship.interest.match(topic):
            self._unsettle(name)
        self.set_timer()

    def _unsettle(self, name: str) -> None:
        if not self._unsettled:
            self._settle_us = self._broker.now.mono_us + TOGETHER_US
        self._unsettled[name] = None

    def _settle(self) -> None:
        names = list(islice(self._unsettled, AT_ONCE))
        for name in names:
            del self._unsettled[name]
        for name in names:
            found = self._stewardship.find(name)
            if found is None or not found[1].members:
                self._stewardship.interest.set(name, ())
                continue
            served, group = found
            changed = (
                self._stewardship.change(served, group, [], group.members, group.parts)
                if self._stewardship.owned[served.partition]
                else None
            )
            if changed is None or isinstance(changed, RostraError):
                self._unsettle(name)
                self._settle_us = self._broker.now.mono_us + AGAIN_US
            else:
                self._stewardship.tell(served, group, changed)

    # --- time ---

    def set_timer(self) -> None:
        times = [self._stewardship.leases.next_us]
        if self._unsettled:
            times.append(self._settle_us)
        if self._is_unsure():
            times.append(max(self._confirm_us, self._broker.now.mono_us))
        at_us = min((time for time in times if time is not None), default=None)
        if at_us is not None and (self._timer_us is None or at_us < self._timer_us):
            self._timer_us = at_us
            self._broker.out.append(SetTimer(GROUPS_TIMER, max(at_us, self._broker.now.mono_us)))

    def _is_unsure(self) -> bool:
        return not self._admission.is_asking and not all(self._stewardship.owned.values())

    def timer(self) -> None:
        now_us = self._broker.now.mono_us
        late_us = now_us - (self._timer_us or now_us)
        self._timer_us = None
        if self._is_unsure() and now_us >= self._confirm_us:
            self._confirm_us = now_us + AGAIN_US
            self._admission.confirm()
        if self._unsettled and now_us >= self._settle_us:
            self._settle()
        self._judge(now_us, late_us if late_us > LATE_US else 0)
        self.set_timer()

    def _judge(self, now_us: int, late_us: int) -> None:
        """Whose lease has ended? Whoever was heard meanwhile is looked at again when that could be so."""
        stewardship = self._stewardship
        dead: dict[str, list[int]] = {}
        for seated in stewardship.leases.due(now_us, AT_ONCE):
            name, member = seated
            found = stewardship.find(name)
            joined = found[1].members.get(member) if found is not None else None
            if found is None or joined is None:
                stewardship.seats.leave(seated)
                continue
            until_us = stewardship.seats.heard_us(seated) + joined.lease_ms * 1000 + late_us
            if until_us <= now_us and stewardship.owned[found[0].partition]:
                dead.setdefault(name, []).append(member)
                # Should it not be logged after all, it is found here again.
                until_us = now_us + joined.lease_ms * 1000
            stewardship.leases.look_at(seated, max(until_us, now_us + 1))
        for name, members in dead.items():
            self._bury(name, members)

    def _bury(self, name: str, members: list[int]) -> None:
        found = self._stewardship.find(name)
        changed = self._stewardship.dismiss(*found, members, died=True) if found is not None else None
        if found is not None and changed is not None and not isinstance(changed, RostraError):
            about: dict[str, int | str] = {"name": name, "members": len(members)}
            self._broker.out.append(LogLine("warning", "members of a named subscription fell silent", about))
            self._stewardship.tell(*found, changed)
