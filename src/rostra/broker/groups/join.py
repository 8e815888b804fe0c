"""Joining a consumer group. The fabric first confirms the topic table, so that no matching topic is missed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rostra.broker.api import Conn
from rostra.broker.groups.group_table import (
    ConsumerGroup,
    GroupConfigured,
    GroupEntry,
    GroupTable,
    MemberJoined,
    growth_bytes,
)
from rostra.broker.groups.group_topics import StartOffsets, patterns_of
from rostra.broker.groups.store import GroupChange, GroupStore
from rostra.broker.partition.served_partition import ServedPartition
from rostra.broker.sessions import Session
from rostra.errors import (
    InvalidGroupName,
    InvalidTopicName,
    LimitExceeded,
    NodeStopping,
    NotAMember,
    RostraError,
    SettingsDiffer,
    UsageError,
)
from rostra.fabric.api import Confirm
from rostra.model.ids import Partition, check_topic_name
from rostra.model.patterns import Pattern
from rostra.wire.groups import GroupJoined, JoinGroup

if TYPE_CHECKING:
    from rostra.broker.broker import Broker


class PendingJoins(NamedTuple):
    """Joins that wait for the fabric's confirmation, and the partitions owned when it was requested."""

    token: int
    joining: list[tuple[Conn, JoinGroup]]
    partitions: tuple[Partition, ...]


class GroupJoin:
    """Joins that arrive during a confirmation wait for the next one, which serves all of them."""

    def __init__(self, broker: Broker, store: GroupStore) -> None:
        self._broker = broker
        self._store = store
        self._joining: list[tuple[Conn, JoinGroup]] = []
        self._confirming: PendingJoins | None = None

    @property
    def is_confirming(self) -> bool:
        return self._confirming is not None

    def join(self, conn: Conn, session: Session, message: JoinGroup) -> None:
        error = NodeStopping() if self._broker.stopping else _malformed(message)
        if error is not None:
            self._broker.refuse(conn, message.request, error)
            return
        session.waiting += 1
        self._joining.append((conn, message))
        if self._confirming is None:
            self.confirm()

    def confirm(self) -> None:
        token = self._broker.next_token()
        self._confirming = PendingJoins(token, self._joining, tuple(self._store.owned))
        self._joining = []
        self._broker.step_fabric(Confirm(token, ""))

    def confirmed(self, token: int) -> bool:
        """True if the token is this request's."""
        if self._confirming is None or self._confirming.token != token:
            return False
        confirming, self._confirming = self._confirming, None
        owned = self._store.owned
        owned.update({partition: True for partition in confirming.partitions if partition in owned})
        for conn, message in confirming.joining:
            if self._broker.request_done(conn):
                self._join(conn, message)
        if self._joining and self._confirming is None:
            self.confirm()
        return True

    def refused(self, token: int, error: RostraError) -> bool:
        """True if the token is this request's."""
        if self._confirming is None or self._confirming.token != token:
            return False
        waiting = [*self._confirming.joining, *self._joining]
        self._confirming, self._joining = None, []
        for conn, message in waiting:
            if self._broker.request_done(conn):
                self._broker.refuse(conn, message.request, error)
        return True

    def _join(self, conn: Conn, message: JoinGroup) -> None:
        broker, store = self._broker, self._store
        session = broker.sessions.get(conn)
        assert session is not None, "request_done is False for a lost connection"
        served = store.partition_of(message.name)
        if isinstance(served, RostraError):
            broker.refuse(conn, message.request, served)
            return
        changed = self._log_join(served, message)
        if isinstance(changed, RostraError):
            broker.refuse(conn, message.request, changed)
            return
        group = served.derived.groups.groups[message.name]
        member = group.members[message.member]
        member_key, now_us = (message.name, message.member), broker.now.mono_us
        elsewhere = store.connections.bind(member_key, conn, now_us)
        if elsewhere is not None:
            store.end_membership(elsewhere, member_key, NotAMember(*member_key))
        store.leases.schedule(member_key, now_us + member.lease_ms * 1000)
        joined = GroupJoined(
            message.request,
            group.generation,
            member.patterns,
            group.settings.tries_max,
            group.settings.dead_letter,
        )
        broker.proposer.reply_when_committed(conn, session, served, changed.last, joined, message.request)
        store.send_assignments(served, group, changed, also=message.member)

    def _log_join(self, served: ServedPartition, message: JoinGroup) -> GroupChange | RostraError:
        """Logs the group, the member or their settings, as far as they are new."""
        table = served.derived.groups
        group = table.get(message.name)
        current = group or ConsumerGroup(GroupConfigured(message.name))
        others = len(current.members.keys() - {message.member})
        settings = _settings_after(current.settings, message, others)
        if isinstance(settings, RostraError):
            return settings
        patterns = message.patterns or settings.patterns
        member = MemberJoined(message.name, message.member, patterns, message.lease_ms, message.client)
        error = self._limit_error(table, group, settings, member)
        if error is not None:
            return error
        entries: list[GroupEntry] = []
        if group is None or group.settings != settings:
            entries.append(settings)
        if current.members.get(message.member) != member:
            entries.append(member)
        known = sorted({*current.settings.patterns, *patterns_of(current.members.values())})
        start_offsets = StartOffsets(self._broker.topic_table, settings, known)
        members = {**current.members, member.member: member}
        return self._store.change(served, current, entries, members, current.partitions, start_offsets)

    def _limit_error(
        self, table: GroupTable, group: ConsumerGroup | None, settings: GroupConfigured, member: MemberJoined
    ) -> RostraError | None:
        bounds = self._broker.settings
        if group is None and len(table) >= bounds.groups_max:
            return LimitExceeded("groups_max", bounds.groups_max)
        if group is None or member.member not in group.members:
            if group is not None and len(group.members) >= bounds.members_per_group_max:
                return LimitExceeded("members_per_group_max", bounds.members_per_group_max)
            if table.bytes + growth_bytes(settings, member, 0) > bounds.groups_bytes_max:
                return LimitExceeded("groups_bytes_max", bounds.groups_bytes_max)
        return None


def _settings_after(current: GroupConfigured, message: JoinGroup, others: int) -> GroupConfigured | SettingsDiffer:
    """The group's settings after the join. The last member to join does not overwrite those of the others."""
    given = GroupConfigured(
        message.name,
        message.patterns or current.patterns,
        message.start,
        message.value,
        message.tries_max,
        message.dead_letter,
    )
    if not message.patterns and current.patterns:
        return current
    if message.alter or not others:
        return given
    if message.patterns:
        compared = {
            "the topics": (", ".join(sorted(current.patterns)), ", ".join(sorted(given.patterns))),
            "tries": (str(current.tries_max), str(given.tries_max)),
            "the dead letter": (current.dead_letter or "none", given.dead_letter or "none"),
        }
        for setting, (kept, asked) in compared.items():
            if kept != asked:
                return SettingsDiffer(message.name, setting, kept, asked, others)
    return current


def _malformed(message: JoinGroup) -> RostraError | None:
    try:
        check_topic_name(message.name)
    except InvalidTopicName as error:
        return InvalidGroupName(message.name, error.reason)
    try:
        for pattern in message.patterns:
            Pattern.parse(pattern)
        if message.dead_letter:
            check_topic_name(message.dead_letter)
    except UsageError as error:
        return error
    return None
