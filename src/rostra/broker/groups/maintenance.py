"""Timer-driven maintenance of consumer groups: coordinator changes, topic changes, lease expiry."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from rostra.broker.groups.group_topics import patterns_of
from rostra.broker.groups.join import GroupJoin
from rostra.broker.groups.store import GroupStore
from rostra.broker.partition.served_partition import ServedPartition
from rostra.broker.topics.internal_topics import GROUPS_TOPIC, coordinating_partition
from rostra.errors import RostraError
from rostra.fabric.api import LogLine, SetTimer

if TYPE_CHECKING:
    from rostra.broker.broker import Broker

GROUPS_TIMER = "broker/groups"
BATCH_WINDOW_US = 20_000
"""Topic changes within this time cause one rebalance: each sends a member its whole set."""
RETRY_US = 200_000
"""Delay before a refused change is retried."""
PER_STEP_MAX = 500
"""Groups or members handled in one step, so that other requests are not delayed."""
LATE_US = 1_000_000
"""A timer that fires this late means that this node was stalled and heard no member."""


class GroupMaintenance:
    """One timer for all groups; groups without members cost nothing."""

    def __init__(self, broker: Broker, store: GroupStore, joins: GroupJoin) -> None:
        self._broker = broker
        self._store = store
        self._joins = joins
        self._to_rebalance: dict[str, None] = {}
        """Groups whose topics may have changed."""
        self._rebalance_us = 0
        self._confirm_us = 0
        self._timer_us: int | None = None

    # --- partitions ---

    def serving(self, served: ServedPartition) -> None:
        """The fabric announced the owner of a partition of `_groups`."""
        owned = self._store.owned
        if not served.owner:
            if owned.pop(served.partition, None) is not None:
                self._lost(served)
        elif served.partition not in owned:
            owned[served.partition] = False
            self.state_rewound(served)

    def state_rewound(self, served: ServedPartition) -> None:
        """The table was not written by this owner, or was truncated: adopts its members and schedules rebalances."""
        store, now_us = self._store, self._broker.now.mono_us
        if served.partition not in store.owned:
            return
        for name, group in sorted(served.derived.groups.groups.items()):
            for member, joined in sorted(group.members.items()):
                store.connections.expect((name, member), now_us)
                store.leases.schedule((name, member), now_us + joined.lease_ms * 1000)
            if group.members:
                store.pattern_index.set(name, patterns_of(group.members.values()))
                self._schedule_rebalance(name)
        self.set_timer()

    def _lost(self, served: ServedPartition) -> None:
        """Members continue at the new coordinator, which knows them from the log."""
        store, error = self._store, self._broker.placement.not_owner(served)
        known = self._broker.topic_table.by_name(GROUPS_TOPIC)
        for member_key in list(store.connections.by_member):
            if known is None or coordinating_partition(known, member_key[0]) is served:
                conn = store.connections.remove(member_key)
                store.pattern_index.set(member_key[0], ())
                if conn is not None:
                    store.end_membership(conn, member_key, error)

    # --- topics ---

    def topic_changed(self, topic: str) -> None:
        """The topic was created or deleted, or got a partition."""
        for name in self._store.pattern_index.match(topic):
            self._schedule_rebalance(name)
        self.set_timer()

    def _schedule_rebalance(self, name: str) -> None:
        if not self._to_rebalance:
            self._rebalance_us = self._broker.now.mono_us + BATCH_WINDOW_US
        self._to_rebalance[name] = None

    def _rebalance(self) -> None:
        names = list(islice(self._to_rebalance, PER_STEP_MAX))
        for name in names:
            del self._to_rebalance[name]
        for name in names:
            found = self._store.find(name)
            if found is None or not found[1].members:
                self._store.pattern_index.set(name, ())
                continue
            served, group = found
            changed = (
                self._store.change(served, group, [], group.members, group.partitions)
                if self._store.owned[served.partition]
                else None
            )
            if changed is None or isinstance(changed, RostraError):
                self._schedule_rebalance(name)
                self._rebalance_us = self._broker.now.mono_us + RETRY_US
            else:
                self._store.send_assignments(served, group, changed)

    # --- time ---

    def set_timer(self) -> None:
        times = [self._store.leases.next_us]
        if self._to_rebalance:
            times.append(self._rebalance_us)
        if self._needs_confirm():
            times.append(max(self._confirm_us, self._broker.now.mono_us))
        at_us = min((time for time in times if time is not None), default=None)
        if at_us is not None and (self._timer_us is None or at_us < self._timer_us):
            self._timer_us = at_us
            self._broker.out.append(SetTimer(GROUPS_TIMER, max(at_us, self._broker.now.mono_us)))

    def _needs_confirm(self) -> bool:
        return not self._joins.is_confirming and not all(self._store.owned.values())

    def timer(self) -> None:
        now_us = self._broker.now.mono_us
        late_us = now_us - (self._timer_us or now_us)
        self._timer_us = None
        if self._needs_confirm() and now_us >= self._confirm_us:
            self._confirm_us = now_us + RETRY_US
            self._joins.confirm()
        if self._to_rebalance and now_us >= self._rebalance_us:
            self._rebalance()
        self._expire_leases(now_us, late_us if late_us > LATE_US else 0)
        self.set_timer()

    def _expire_leases(self, now_us: int, late_us: int) -> None:
        """Removes members whose lease has expired; schedules the next check of those heard meanwhile."""
        store = self._store
        dead: dict[str, list[int]] = {}
        for member_key in store.leases.due(now_us, PER_STEP_MAX):
            name, member = member_key
            found = store.find(name)
            joined = found[1].members.get(member) if found is not None else None
            if found is None or joined is None:
                store.connections.remove(member_key)
                continue
            until_us = store.connections.heard_us(member_key) + joined.lease_ms * 1000 + late_us
            if until_us <= now_us and store.owned[found[0].partition]:
                dead.setdefault(name, []).append(member)
                # If the removal is not logged, the member is checked again.
                until_us = now_us + joined.lease_ms * 1000
            store.leases.schedule(member_key, max(until_us, now_us + 1))
        for name, members in dead.items():
            self._remove_expired(name, members)

    def _remove_expired(self, name: str, members: list[int]) -> None:
        found = self._store.find(name)
        changed = self._store.remove_members(*found, members, died=True) if found is not None else None
        if found is not None and changed is not None and not isinstance(changed, RostraError):
            about: dict[str, int | str] = {"name": name, "members": len(members)}
            self._broker.out.append(LogLine("warning", "member leases of a named subscription expired", about))
            self._store.send_assignments(*found, changed)
