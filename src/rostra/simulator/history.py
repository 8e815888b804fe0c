"""The history of one seed: what clients sent and received, and what nodes stored. Checkers see nothing else.

Theory of operation. Applications record each operation when they start it and when its result arrives: records sent,
acknowledged, failed and delivered, subscriptions, topic changes. The peer network and the fabric observers add leaders,
commits and truncations; at the end the final readers add what is stored. Checkers compare these.

Record values are unique, so a value identifies the record that an application sent.
"""

from __future__ import annotations

from typing import NamedTuple

from rostra.errors import RostraError
from rostra.model.decode import Batch
from rostra.model.ids import Partition
from rostra.wire.messages import Acks, TopicSettings

OPERATIONS_MIN = 300
"""A seed with fewer client operations tests too little, and fails."""
INDEX_END = 1 << 32
"""From here on a partition number is a partition id (flood)."""


class RecordSent(NamedTuple):
    """A record that an application passed to its producer; `order` counts the producer's records."""

    value: bytes
    producer: str
    order: int
    topic: str
    acks: Acks
    at_us: int = 0
    key: bytes | None = None


class RecordAcked(NamedTuple):
    """An acknowledgement; its offset is -1 if the record is known to be stored, but not where."""

    value: bytes
    topic: int
    partition: int
    offset: int
    at_us: int = 0


class RecordFailed(NamedTuple):
    """A record that the producer gave up."""

    value: bytes
    error: RostraError


class RecordDelivered(NamedTuple):
    """One record delivered to a subscriber."""

    at_us: int
    offset: int
    value: bytes | None


class DeliveredPartition:
    """What one subscription received of one partition."""

    def __init__(self, topic: int, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.records: list[RecordDelivered] = []
        self.start: tuple[int, int] | None = None
        """The start offset that the node confirmed, and the commit offset at that time."""
        self.position = 0
        """The offset after the last one that was delivered or skipped."""


def partition_key(topic: int, partition: int) -> tuple[int, int]:
    """The key of a partition in a history. A partition with an id of its own (flood) is identified by that alone."""
    return (partition, 0) if partition >= INDEX_END else (topic, partition)


class SubscriptionHistory:
    """One subscription of a client to a topic, from its request to its end."""

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
    """One pattern subscription. `topics` are the ids of those it had at the end, if it lasted until then."""

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
    """A record or control record that a final reader found."""

    offset: int
    value: bytes | None
    control: bool
    publisher: int = 0
    owner_flags: int = 0

    @property
    def shown(self) -> bool:
        """Whether subscribers should receive it."""
        return not self.control and not self.owner_flags


def stored_in(batch: Batch) -> list[StoredRecord]:
    header = batch.header
    listed_partitions = zip(batch.offsets(), batch.values(), strict=True)
    return [
        StoredRecord(offset, value, batch.is_control, header.producer, header.owner_flags)
        for offset, value in listed_partitions
    ]


class FinalPartition:
    """A partition as a final reader found it over the wire, after healing."""

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
        """The first damaged offset that the node reported."""
        self.served_damage: str = ""
        """What was wrong with the bytes that the node served; empty if nothing."""
        self.complete = False
        """Whether the reader reached the commit offset or the damage."""


class CreatedTopic(NamedTuple):
    topic: int
    name: str


class TopicNameRequest(NamedTuple):
    """One request about a topic name, with the times of request and reply.

    `outcome` is the topic's id, 0 for "does not exist", -1 for "exists", None if unknown. `sent_once` is False if the
    client retried it: then the reply may describe the effect of an earlier attempt.
    """

    who: str
    what: str
    name: str
    began_us: int
    ended_us: int
    outcome: int | None
    sent_once: bool = True


class StoredBatch(NamedTuple):
    """A batch in a node's log: its offsets and a digest of its bytes."""

    base: int
    end: int
    digest: int


class TruncatedCommit(NamedTuple):
    """A truncation that removed a batch known to be committed."""

    node: int
    partition: Partition
    offset: int
    at_us: int


class LivenessDemand(NamedTuple):
    """An operation that must succeed once a majority is back, and when it did; 0 if it did not."""

    what: str
    since_us: int
    until_us: int
    done_us: int


class GroupHistory:
    """A consumer group, as its members saw it."""

    def __init__(self, name: str, topics: list[str]) -> None:
        self.name = name
        self.topics = topics
        self.acknowledged: set[tuple[int, int, int]] = set()
        """(topic, partition, offset) of every record that a member acknowledged."""
        self.skipped: list[tuple[str, int, range]] = []
        """Offsets that had expired at the replica a member read from, as reported to it."""
        self.redelivered: list[str] = []
        """Deliveries below the position that the coordinator had committed."""
        self._committed: dict[tuple[int, int], int] = {}

    def commit_position(self, topic: int, partition: int, offset: int) -> None:
        """Records the position that the coordinator committed: all below it is acknowledged."""
        self._committed[topic, partition] = max(offset, self._committed.get((topic, partition), 0))

    def has_skipped(self, topic: str, partition: int, offset: int) -> bool:
        return any((topic, partition) == (of, part) and offset in range_ for of, part, range_ in self.skipped)

    def record_delivery(self, topic: int, partition: int, offset: int, member: str, at_us: int) -> None:
        committed = self._committed.get((topic, partition), 0)
        if offset < committed:
            self.redelivered.append(
                f"{member} got {topic:x}/{partition}:{offset} at {at_us}, but {committed} was committed"
            )


class SinkCommitHistory:
    """One attempt to write a batch of a query: what was staged for it, and what became of its commit."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.values: dict[bytes, str] = {}
        """The values that were staged, and their topics."""
        self.sent = False
        """Whether a commit was requested."""
        self.decided = False
        """Whether the reply said that this commit was the one that decided."""
        self.refused = False


class SinkHistory:
    """A query that writes exactly once."""

    def __init__(self, query: str) -> None:
        self.query = query
        self.commits: list[SinkCommitHistory] = []
        self.decided: set[int] = set()
        """Batches that are decided, as far as its drivers know."""


class History:
    """What happened in one seed, collected while it runs."""

    def __init__(self, *, replicated: bool = False) -> None:
        self.replicated = replicated
        """Whether there are several nodes: then damage to or loss of one of them excuses nothing."""
        self.per_origin = False
        """Whether each node orders the records published to it (flood): records that only it has return with it."""
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
        """By publisher, the strengths its application requested, and when first."""
        self.maybe_duplicated: set[bytes] = set()
        """Records that a client reported as possibly duplicated (`MayDuplicate`)."""
        self.reported_damage: dict[tuple[str, int, int], int] = {}
        """(topic name, partition, offset) that a node reported as damaged, and when first."""
        self.flipped: set[tuple[int, int]] = set()
        """(topic, partition) in whose files bits were flipped."""
        self.flipped_at: set[tuple[int, Partition]] = set()
        """(node, partition) of the same."""
        self.torn: set[tuple[int, int]] = set()
        """(topic, partition) whose files lost unsynced bytes in a power cut."""
        self.unsettled: list[str] = []
        """What had not converged in time."""
        self.final: dict[tuple[int, int], FinalPartition] = {}
        self.listed: dict[int, str] = {}
        """Topic names by id at the end."""
        self.queue_sizes: dict[str, tuple[int, int]] = {}
        """The largest size of each queue, and its bound."""
        self.exceptions: list[str] = []
        """Exceptions where only typed errors are allowed."""
        self.operations = 0
        self.starts_us: list[int] = []
        """When nodes were started."""
        self.leaders: dict[tuple[Partition, int], dict[int, None]] = {}
        """Nodes that acted as leader of a partition in a term."""
        self.committed: dict[Partition, dict[StoredBatch, int]] = {}
        """Batches that nodes reported as committed, and the first node to do so."""
        self.synced_offsets: dict[tuple[int, Partition], int] = {}
        """The synced offset of each node and partition, where acknowledgements name nodes (flood)."""
        self.false_claims: list[str] = []
        """Commits and acknowledgements beyond what a node's log or disk holds."""
        self.truncated_commits: list[TruncatedCommit] = []
        self.final_logs: dict[tuple[int, Partition], list[StoredBatch]] = {}
        """The log of each node and partition at the end, up to its commit offset."""
        self.name_requests: list[TopicNameRequest] = []
        self.liveness_demands: list[LivenessDemand] = []
        self.groups: dict[str, GroupHistory] = {}
        self.sinks: dict[str, SinkHistory] = {}
        self.listed_partitions: set[tuple[int, int]] = set()
        """(topic, partition) of all topics listed at the end."""
        self.listed_by_node: dict[int, dict[int, str]] = {}
        """By node, the topics it lists at the end."""

    def record_strength(self, publisher: int, strength: int, at_us: int) -> None:
        self.strengths.setdefault(publisher, {}).setdefault(strength, at_us)

    def is_outdated(self, final: FinalPartition, value: bytes | None, offset: int) -> bool:
        """Whether compaction may have removed a record: a later one has its key, or may be in damaged bytes."""
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
        """The offset from which on records may be missing: the reported damage, if bits were flipped there.

        Nodes may report writes torn by a power cut as damage too. That excuses nothing, because such records were
        neither acknowledged nor delivered.
        """
        if self.per_origin and (final.topic, final.partition) in self.flipped:
            # The node may have been alone when it acknowledged the record.
            return 0
        if self.replicated or (final.topic, final.partition) not in self.flipped:
            return None
        reported = [at for name, index, at in self.reported_damage if (name, index) == (final.name, final.partition)]
        return min(reported, default=None)
