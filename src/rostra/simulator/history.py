"""What could be seen from outside in one seed. Checkers judge by this and by nothing else.

Values are unique: a value names the record that an application sent.
"""

from __future__ import annotations

from typing import NamedTuple

from rostra.errors import RostraError
from rostra.model.decode import Batch
from rostra.model.ids import Partition
from rostra.wire.messages import Acks, TopicSettings

OPERATIONS_MIN = 300
"""Of a seed: with fewer it has shown little."""
INDEX_END = 1 << 32
"""Beyond it a partition's number is an id."""


class RecordSent(NamedTuple):
    """An application gave this record to its producer; `order` counts the producer's records."""

    value: bytes
    producer: str
    order: int
    topic: str
    acks: Acks
    at_us: int = 0
    key: bytes | None = None


class RecordAcked(NamedTuple):
    """The producer was told where the record is stored; offset -1: only that it is."""

    value: bytes
    topic: int
    partition: int
    offset: int
    at_us: int = 0


class RecordFailed(NamedTuple):
    """The producer was told that the record is given up."""

    value: bytes
    error: RostraError


class RecordDelivered(NamedTuple):
    """One record shown to a subscriber."""

    at_us: int
    offset: int
    value: bytes | None


class DeliveredPartition:
    """What one subscription got of one partition."""

    def __init__(self, topic: int, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.records: list[RecordDelivered] = []
        self.start: tuple[int, int] | None = None
        """Where the node said that delivery begins, and where the partition's visible end was then."""
        self.position = 0
        """The offset behind the last one that the client was shown or passed over."""


def partition_key(topic: int, partition: int) -> tuple[int, int]:
    """A partition with an id of its own is named by that alone, whatever its topic's id is at a node."""
    return (partition, 0) if partition >= INDEX_END else (topic, partition)


class SubscriptionHistory:
    """One subscription from its first word to its last."""

    def __init__(self, name: str, topic: str, start: str, value: int) -> None:
        self.name = name
        self.topic = topic
        self.start = start
        self.value = value
        self.feeds: dict[tuple[int, int], DeliveredPartition] = {}
        self.established = False
        self.unsubscribed_us: int | None = None
        """When unsubscribing was acknowledged."""
        self.unsubscribing = False
        self.ended: RostraError | None = None
        self.ended_us = 0

    def feed(self, topic: int, partition: int) -> DeliveredPartition:
        key = partition_key(topic, partition)
        if key not in self.feeds:
            self.feeds[key] = DeliveredPartition(*key)
        return self.feeds[key]


class PatternHistory:
    """One subscription to patterns. `topics` are those it had at the end, if it lasted so long."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.feeds: dict[tuple[int, int], DeliveredPartition] = {}
        self.established = False
        self.unsubscribing = False
        self.unsubscribed_us: int | None = None
        """When unsubscribing was acknowledged."""
        self.ended: RostraError | None = None
        self.topics: list[int] | None = None

    def feed(self, topic: int, partition: int) -> DeliveredPartition:
        return self.feeds.setdefault((topic, partition), DeliveredPartition(topic, partition))


class StoredRecord(NamedTuple):
    """A record or a control record as a fresh reader got it at the end."""

    offset: int
    value: bytes | None
    control: bool
    publisher: int = 0
    owner_flags: int = 0

    @property
    def shown(self) -> bool:
        """Whether subscribers are to get it."""
        return not self.control and not self.owner_flags


def stored_in(batch: Batch) -> list[StoredRecord]:
    header = batch.header
    listed_partitions = zip(batch.offsets(), batch.values(), strict=True)
    return [
        StoredRecord(offset, value, batch.is_control, header.producer, header.owner_flags)
        for offset, value in listed_partitions
    ]


class FinalPartition:
    """A partition as a fresh reader found it after healing, through the wire."""

    def __init__(self, topic: int, name: str, partition: int, settings: TopicSettings) -> None:
        self.topic = topic
        self.name = name
        self.partition = partition
        self.settings = settings
        self.first = 0
        self.commit = 0
        self.bytes = 0
        self.stored: list[StoredRecord] = []
        self.damaged_at: int | None = None
        """Where the node said that damage begins."""
        self.served_damage: str = ""
        """What was wrong with the bytes that it served, if anything was."""
        self.complete = False
        """The reader came to the commit offset, or to the damage."""


class CreatedTopic(NamedTuple):
    topic: int
    name: str


class TopicNameRequest(NamedTuple):
    """One request about a topic's name, from when it was asked until it was answered.

    `outcome` is the topic's id, 0 for "there is none", -1 for "it is there", None if nobody knows; `once`: it was sent
    a single time, so what it says of the topic was not of its own making.
    """

    who: str
    what: str
    name: str
    began_us: int
    ended_us: int
    outcome: int | None
    sent_once: bool = True


class StoredBatch(NamedTuple):
    """A batch in a node's log: where it lies, and a digest of its bytes."""

    base: int
    end: int
    digest: int


class TruncatedCommit(NamedTuple):
    """A node cut its log, and what it cut was known to be committed."""

    node: int
    partition: Partition
    offset: int
    at_us: int


class LivenessDemand(NamedTuple):
    """What must be possible again when a majority is back, and when it was first achieved; 0: it was not."""

    what: str
    since_us: int
    until_us: int
    done_us: int


class GroupHistory:
    """A named subscription, as its members saw it."""

    def __init__(self, name: str, topics: list[str]) -> None:
        self.name = name
        self.topics = topics
        self.acknowledged: set[tuple[int, int, int]] = set()
        """(topic, partition, offset) that a member acknowledged."""
        self.skipped: list[tuple[str, int, range]] = []
        """What had expired where a member looked for it, and it was told so; another copy may still have it."""
        self.redelivered: list[str] = []
        """What was handed out although the coordinator keeps that it was acknowledged."""
        self._committed: dict[tuple[int, int], int] = {}

    def commit_position(self, topic: int, partition: int, offset: int) -> None:
        """The coordinator has said that nothing below this is left to do."""
        self._committed[topic, partition] = max(offset, self._committed.get((topic, partition), 0))

    def has_skipped(self, topic: str, partition: int, offset: int) -> bool:
        return any((topic, partition) == (of, part) and offset in range_ for of, part, range_ in self.skipped)

    def record_delivery(self, topic: int, partition: int, offset: int, member: str, at_us: int) -> None:
        committed = self._committed.get((topic, partition), 0)
        if offset < committed:
            self.redelivered.append(f"{member} got {topic:x}/{partition}:{offset} at {at_us}, but {committed} was kept")


class History:
    def __init__(self, *, replicated: bool = False) -> None:
        self.replicated = replicated
        """Whether there are several nodes: then neither damage to one of them nor its loss excuses anything."""
        self.per_origin = False
        """Whether every node orders records of its own: then those that only it has return with it."""
        self.sent: dict[bytes, RecordSent] = {}
        self.acked: dict[bytes, RecordAcked] = {}
        self.failed: dict[bytes, RecordFailed] = {}
        self.subscriptions: list[SubscriptionHistory] = []
        self.pattern_subscriptions: list[PatternHistory] = []
        self.created: list[CreatedTopic] = []
        """Topics whose creation was acknowledged."""
        self.delete_asked: set[str] = set()
        self.deleted: dict[int, int] = {}
        """Topics whose deletion was acknowledged, and when."""
        self.strengths: dict[int, dict[int, int]] = {}
        """By publisher, the strengths its application asked for, and when."""
        self.maybe_duplicated: set[bytes] = set()
        """Records that a client said may be stored twice."""
        self.reported_damage: dict[tuple[str, int, int], int] = {}
        """(topic name, partition, offset) that the node reported as damaged, and when that was first heard."""
        self.flipped: set[tuple[int, int]] = set()
        """(topic, partition) whose files a fault has damaged."""
        self.flipped_at: set[tuple[int, Partition]] = set()
        """The same, with the node at which it was."""
        self.torn: set[tuple[int, int]] = set()
        """(topic, partition) whose files have lost in a power cut what no sync had vouched for."""
        self.unsettled: list[str] = []
        """What was still waiting when the time to converge was over."""
        self.final: dict[tuple[int, int], FinalPartition] = {}
        self.listed: dict[int, str] = {}
        """Topics by id at the end."""
        self.queue_sizes: dict[str, tuple[int, int]] = {}
        """The highest level seen of each queue, and its bound."""
        self.exceptions: list[str] = []
        """Exceptions that came out where only typed errors may."""
        self.operations = 0
        self.starts_us: list[int] = []
        """When the node was started."""
        self.leaders: dict[tuple[Partition, int], dict[int, None]] = {}
        """Who spoke as the leader of a partition in a term."""
        self.committed: dict[Partition, dict[StoredBatch, int]] = {}
        """What nodes had in their logs where they called it committed, and which node was the first."""
        self.synced_offsets: dict[tuple[int, Partition], int] = {}
        """How far each node's disk has come, where acknowledgements name nodes."""
        self.false_claims: list[str] = []
        """Nodes that called committed what they do not have."""
        self.truncated_commits: list[TruncatedCommit] = []
        self.final_logs: dict[tuple[int, Partition], list[StoredBatch]] = {}
        """Each node's log at the end, as far as it is committed there."""
        self.name_requests: list[TopicNameRequest] = []
        self.liveness_demands: list[LivenessDemand] = []
        self.groups: dict[str, GroupHistory] = {}
        self.listed_partitions: set[tuple[int, int]] = set()
        """(topic, partition) of all that is listed at the end."""
        self.listed_by_node: dict[int, dict[int, str]] = {}
        """Topics by id at the end, as each node lists them."""

    def record_strength(self, publisher: int, strength: int, at_us: int) -> None:
        self.strengths.setdefault(publisher, {}).setdefault(strength, at_us)

    def is_outdated(self, final: FinalPartition, value: bytes | None, offset: int) -> bool:
        """Whether compaction may have removed it: a later record of the same key is there, or may be behind damage."""
        sent = self.sent.get(value) if value is not None else None
        if not final.settings.compaction or sent is None or sent.key is None:
            return False
        later = (self.sent.get(one.value or b"") for one in final.stored if one.shown and one.offset > offset)
        if any(other is not None and other.key == sent.key for other in later):
            return True
        same = (other for other in self.sent.values() if (other.topic, other.key) == (sent.topic, sent.key))
        return self.damage_of(final) is not None and any(other.value != value for other in same)

    def saw_leader(self, partition: Partition, term: int, node: int) -> None:
        self.leaders.setdefault((partition, term), {})[node] = None

    def record_queue_size(self, queue: str, size: int, bound: int) -> None:
        if size > self.queue_sizes.get(queue, (-1, 0))[0]:
            self.queue_sizes[queue] = (size, bound)

    def damage_of(self, final: FinalPartition) -> int | None:
        """From which offset on records may be missing: where the node reported damage, if a fault had done any.

        What a power cut tears may be called damaged too, but it was never acknowledged nor shown: that excuses nothing.
        """
        if self.per_origin and (final.topic, final.partition) in self.flipped:
            # Perhaps nobody else was there when it was acknowledged.
            return 0
        if self.replicated or (final.topic, final.partition) not in self.flipped:
            return None
        reported = [at for name, index, at in self.reported_damage if (name, index) == (final.name, final.partition)]
        return min(reported, default=None)
