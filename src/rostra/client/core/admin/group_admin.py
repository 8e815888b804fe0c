"""Administration of named subscriptions: list, describe, reset, delete."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from rostra.client.core.effects import (
    CallNumber,
    ClientEffect,
    Done,
    Fail,
    Result,
    SubscriptionDescription,
    SubscriptionList,
    SubscriptionPartition,
)
from rostra.client.core.internal_calls import InternalCalls
from rostra.client.core.options import Start, check_group_name, wire_start
from rostra.client.core.routing.coordinator_request import GROUPS_TOPIC, CoordinatorLookup, CoordinatorRequest, Reply
from rostra.client.core.routing.metadata_cache import MetadataCache
from rostra.client.core.routing.partition_route import PartitionRoute
from rostra.client.core.subscription.subscriptions import Subscriptions
from rostra.errors import PeerViolation, RostraError, TopicError, UnknownTopic
from rostra.wire.frames import Violation
from rostra.wire.groups import (
    PARTITIONS_PER_PAGE_MAX,
    DeleteGroup,
    DescribeGroup,
    GroupDescribed,
    GroupPage,
    GroupSummary,
    HeldPartition,
    ListGroups,
    Position,
    ResetGroup,
)
from rostra.wire.messages import ClientMessage, StartAt, Topic

Ends = dict[tuple[int, int], tuple[int, int, int]]
"""By topic id and index: the offset of a start, the end of what is readable, the application-visible number."""
OnDescribed = Callable[[int, GroupDescribed], None]


class GroupAdmin:
    def __init__(
        self,
        coordinators: CoordinatorLookup,
        metadata: MetadataCache,
        subscriptions: Subscriptions,
        internal_calls: InternalCalls,
        timeout_us: int,
        out: list[ClientEffect],
    ) -> None:
        self._coordinators = coordinators
        self._metadata = metadata
        self._subscriptions = subscriptions
        self._internal_calls = internal_calls
        self._timeout_us = timeout_us
        self._out = out

    # --- list ----------------------------------------------------------------------------------------

    def list_all(self, now_us: int, call: CallNumber) -> None:
        """Done with a `SubscriptionList`."""
        self._list(now_us, call, 0, "", ())

    def _list(
        self, now_us: int, call: CallNumber, partition: int, after: str, so_far: tuple[GroupSummary, ...]
    ) -> None:
        """Request one partition after another, page by page, each from its owner."""

        def found(now_us: int, topic: Topic, routes: list[PartitionRoute]) -> None:
            # Where each node keeps groups of its own, list those of the node that answers.
            routes = [route for route in routes if route.own] or routes
            if partition >= len(routes):
                self._out.append(Done(call, SubscriptionList(tuple(sorted(so_far, key=lambda group: group.name)))))
                return
            build = partial(ListGroups, partition=partition, after=after)
            due_us = now_us + self._timeout_us
            request = CoordinatorRequest("list subscriptions", build, answered, self._failing(call), due_us)
            self._coordinators.follow(now_us, request, routes[partition])

        def answered(now_us: int, message: Reply) -> None:
            if not isinstance(message, GroupPage):
                raise PeerViolation(Violation.OUT_OF_ORDER, f"{type(message).__name__} to ListGroups")
            groups = so_far + message.groups
            if message.more and message.groups:
                self._list(now_us, call, partition, message.groups[-1].name, groups)
            else:
                self._list(now_us, call, partition + 1, "", groups)

        def failed(now_us: int, error: RostraError) -> None:
            # No group exists yet.
            none_yet = isinstance(error, UnknownTopic)
            self._out.append(Done(call, SubscriptionList(())) if none_yet else Fail(call, error))

        self._metadata.find(now_us, GROUPS_TOPIC, found, failed, create=False)

    # --- describe ------------------------------------------------------------------------------------

    def describe(self, now_us: int, call: CallNumber, name: str) -> None:
        """Done with a `SubscriptionDescription`."""

        def described(now_us: int, group: GroupDescribed) -> None:
            topics = list(dict.fromkeys(part.name for part in group.partitions))
            self._look_up(now_us, topics, ("latest", 0), {}, partial(found, group), self._failing(call))

        def found(group: GroupDescribed, now_us: int, ends: dict[str, Ends]) -> None:
            self._out.append(Done(call, _description(group, ends)))

        check_group_name(name)
        self._describe(now_us, call, name, None, described)

    def _describe(
        self, now_us: int, call: CallNumber, name: str, so_far: GroupDescribed | None, described: OnDescribed
    ) -> None:
        def answered(now_us: int, message: Reply) -> None:
            if not isinstance(message, GroupDescribed):
                raise PeerViolation(Violation.OUT_OF_ORDER, f"{type(message).__name__} to DescribeGroup")
            partitions = message.partitions if so_far is None else so_far.partitions + message.partitions
            whole = msgspec.structs.replace(message, partitions=partitions)
            if message.more and message.partitions:
                self._describe(now_us, call, name, whole, described)
            else:
                described(now_us, whole)

        last = so_far.partitions[-1] if so_far is not None else None
        build = partial(
            DescribeGroup,
            name=name,
            after_topic=0 if last is None else last.topic,
            after_partition=-1 if last is None else last.partition,
        )
        self._send(now_us, call, name, f"describe {name}", build, answered)

    def _look_up(
        self,
        now_us: int,
        topics: list[str],
        start: tuple[StartAt, int],
        so_far: dict[str, Ends],
        found: Callable[[int, dict[str, Ends]], None],
        failed: Callable[[int, RostraError], None],
    ) -> None:
        """Find the offset of this start in each partition of these topics, by subscriptions without credit that are
        closed at once.
        """
        if not topics:
            found(now_us, so_far)
            return
        name, *rest = topics

        def live(now_us: int, result: Result | RostraError) -> None:
            offsets = so_far
            if not isinstance(result, RostraError):
                ends = {
                    (feed.route.topic, feed.route.index): (feed.next or 0, feed.commit, feed.partition)
                    for feed in subscription.feeds.values()
                }
                offsets = {**so_far, name: ends}
            elif not isinstance(result, TopicError):
                failed(now_us, result)
                return
            self._subscriptions.close(0, subscription)
            self._look_up(now_us, rest, start, offsets, found, failed)

        call = self._internal_calls.new(live)
        subscription = self._subscriptions.begin(now_us, call, name, start, None, 0, "raise", create=False)

    # --- reset, delete -------------------------------------------------------------------------------

    def reset(self, now_us: int, call: CallNumber, name: str, start: Start, topic: str | None = None) -> None:
        """Set all positions, or those in one topic, to where this start is now."""
        wired = wire_start(start)

        def described(now_us: int, group: GroupDescribed) -> None:
            chosen = [part for part in group.partitions if topic is None or part.name == topic]
            if topic is not None and not chosen:
                self._out.append(Fail(call, UnknownTopic(topic)))
                return
            topics = list(dict.fromkeys(part.name for part in chosen))
            self._look_up(now_us, topics, wired, {}, partial(found, chosen), self._failing(call))

        def found(chosen: list[HeldPartition], now_us: int, ends: dict[str, Ends]) -> None:
            positions = [
                Position(part.topic, part.partition, ends[part.name][part.topic, part.partition][0])
                for part in chosen
                if (part.topic, part.partition) in ends.get(part.name, {})
            ]
            self._reset(now_us, call, name, positions)

        check_group_name(name)
        self._describe(now_us, call, name, None, described)

    def _reset(self, now_us: int, call: CallNumber, name: str, positions: list[Position]) -> None:
        first, rest = positions[:PARTITIONS_PER_PAGE_MAX], positions[PARTITIONS_PER_PAGE_MAX:]

        def answered(now_us: int, message: Reply) -> None:
            if rest:
                self._reset(now_us, call, name, rest)
            else:
                self._out.append(Done(call, None))

        build = partial(ResetGroup, name=name, positions=tuple(first))
        self._send(now_us, call, name, f"reset {name}", build, answered)

    def delete(self, now_us: int, call: CallNumber, name: str) -> None:
        def answered(now_us: int, message: Reply) -> None:
            self._out.append(Done(call, None))

        check_group_name(name)
        self._send(now_us, call, name, f"delete {name}", partial(DeleteGroup, name=name), answered)

    # --- requests ------------------------------------------------------------------------------------

    def _send(
        self,
        now_us: int,
        call: CallNumber,
        name: str,
        what: str,
        build: Callable[[int], ClientMessage],
        answered: Callable[[int, Reply], None],
    ) -> None:
        self._coordinators.send(now_us, name, what, build, answered, self._failing(call))

    def _failing(self, call: CallNumber) -> Callable[[int, RostraError], None]:
        def failed(now_us: int, error: RostraError) -> None:
            self._out.append(Fail(call, error))

        return failed


def _description(group: GroupDescribed, ends: dict[str, Ends]) -> SubscriptionDescription:
    partitions = []
    for part in group.partitions:
        _, end, number = ends.get(part.name, {}).get((part.topic, part.partition), (0, 0, part.partition))
        # Before the first commit there is no position, only the start.
        offset = part.value if part.start == "offset" else end if part.start == "latest" else 0
        lag = max(end - offset, 0)
        partitions.append(SubscriptionPartition(part.name, number, offset, part.tries, end, lag, part.holder))
    return SubscriptionDescription(
        group.name,
        group.generation,
        group.patterns,
        group.tries_max,
        group.dead_letter,
        group.members,
        tuple(partitions),
    )
