"""Every error that Rostra raises: its fact, its remedy and whether a retry helps.

RostraError
├── UsageError              a call with invalid arguments
│   ├── InvalidTopicName    ├── InvalidPattern     ├── InvalidSetting
│   ├── InvalidArgument     ├── RecordTooLarge     ├── CodecUnavailable
│   ├── LibraryMissing      ├── ClientClosed       ├── ProducerNotOpen
│   ├── ProducerClosed      └── ZookeeperMissing
├── TopicError
│   ├── UnknownTopic        ├── TopicExists        ├── TopicRecreated
│   └── TopicDeleted
├── PartitionError
│   ├── UnknownPartition    ├── OffsetOutOfRange   ├── RecordsExpired
│   ├── Moved               ├── Unavailable        └── PartitionDamaged
├── ClusterError
│   ├── UnknownMember       ├── MemberRemoved      ├── QuorumAtRisk
│   ├── ReplicasUnavailable ├── NotAReplica        ├── TransferTimedOut
│   └── UnsupportedByFabric
├── GroupError              about a named subscription
│   ├── InvalidGroupName    ├── UnknownGroup       ├── GroupExists
│   ├── AlreadySubscribed   ├── NotSubscribed      ├── GroupBusy
│   ├── SettingsDiffer      ├── NotAMember         └── StaleGeneration
├── PublishError
│   ├── BatchRejected       ├── UnknownProducer    ├── ProducerFenced
│   ├── SequenceGap         ├── NotAcknowledged    └── NotRegistered
├── StorageError
│   ├── DiskFull            ├── DiskFailed         ├── DiskUntrusted
│   ├── CorruptLog          ├── OffsetTrimmed      └── StoreInUse
├── PipelineFailed          a Spark query ended with an error
├── LakeError               about the files of an archive
│   ├── LakeInUse           ├── LakeChanged        └── LakeDamaged
├── AddressError            a node cannot listen
│   ├── AddressInUse        ├── AddressNotLocal    └── PortNotPermitted
├── LimitExceeded           a configured bound was reached
├── LinkError               between a client and a node, or two nodes
│   ├── Unreachable         ├── LinkLost           ├── TimedOut
│   ├── IncompatibleVersion ├── NotSupported       ├── NodeStopping
│   ├── WatchEnded          ├── OtherCluster       ├── OtherFabric
│   ├── OtherNode           └── WrongPort
├── PeerViolation           the other side broke the protocol: its connection is closed
└── RemoteError             a node reported an error that this version does not know
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

Field = int | str
"""Type of the values that an error carries across the wire."""


class RostraError(Exception):
    """Base of all errors. `str(error)` is the fact and, where there is one, the remedy: the next step for the user."""

    fact: ClassVar[str] = "something went wrong"
    remedy: ClassVar[str] = "see the log of the node"
    """What a Python program does about it; the command line has its own where that differs (`cli/remedies.py`)."""
    retryable: ClassVar[bool] = False
    kinds: ClassVar[dict[str, type[RostraError]]] = {}

    def __init_subclass__(cls) -> None:
        RostraError.kinds[cls.__name__] = cls

    def carried(self) -> dict[str, Field]:
        """The fields of this error by name, as they cross the wire."""
        return {name: getattr(self, name) for name in getattr(self, "__dataclass_fields__", ())}

    @property
    def summary(self) -> str:
        """The fact alone."""
        return self.fact.format(**self.carried())

    def __str__(self) -> str:
        carried = self.carried()
        return "; ".join(filter(None, (text.format(**carried) for text in (self.fact, self.remedy))))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), tuple(self.carried().values())


def from_wire(code: str, carried: dict[str, Field]) -> RostraError:
    """The error a node reported; one this version does not know becomes `RemoteError`."""
    kind = RostraError.kinds.get(code)
    if kind is None or "__dataclass_fields__" not in kind.__dict__:
        return RemoteError(code, ", ".join(f"{name}={value}" for name, value in carried.items()))
    expected = {field.name: int if field.type == "int" else str for field in fields(kind)}  # type: ignore[arg-type]
    # A field of another type would break the formatted text.
    if not all(isinstance(carried.get(name), wanted) for name, wanted in expected.items()):
        return RemoteError(code, ", ".join(f"{name}={value}" for name, value in carried.items()))
    return kind(**{name: carried[name] for name in carried if name in expected})


# --- usage ---------------------------------------------------------------------------------------


class UsageError(RostraError):
    """A call with invalid arguments or settings."""


@dataclass(eq=False)
class InvalidTopicName(UsageError):
    name: str
    reason: str
    fact = "{name!r} is not a topic name: {reason}"
    remedy = "use 1-249 of the letters a-z A-Z, digits, '.', '_', '-', with '/' between levels"


@dataclass(eq=False)
class InvalidPattern(UsageError):
    pattern: str
    reason: str
    fact = "{pattern!r} is not a pattern of topic names: {reason}"
    remedy = "write a topic name in which '+' stands for one whole level, and '#' at the end for all further ones"


@dataclass(eq=False)
class InvalidSetting(UsageError):
    setting: str
    reason: str
    fact = "the setting {setting} is wrong: {reason}"
    remedy = ""


@dataclass(eq=False)
class InvalidArgument(UsageError, TypeError):
    argument: str
    expected: str
    given: str
    hint: str
    fact = "{argument} must be {expected}, not {given}"
    remedy = "{hint}"


@dataclass(eq=False)
class RecordTooLarge(UsageError):
    bytes: int
    bytes_max: int
    fact = "a record of {bytes} bytes is over the limit of {bytes_max}"
    remedy = "split it, or raise batch_bytes_max on the node"


@dataclass(eq=False)
class CodecUnavailable(UsageError):
    codec: str
    fact = "no library for {codec} compression is installed"
    remedy = "pip install 'rostra[{codec}]'"


@dataclass(eq=False)
class LibraryMissing(UsageError):
    library: str
    extra: str
    fact = "{library} is not installed"
    remedy = "pip install 'rostra[{extra}]'"


@dataclass(eq=False)
class ZookeeperMissing(UsageError):
    reason: str
    fact = "there is no ZooKeeper server to start: {reason}"
    remedy = (
        "on Debian and Ubuntu: apt install zookeeper; elsewhere install Java and name the server's jars with "
        "ROSTRA_ZOOKEEPER_CLASS_PATH, or install Maven (mvn), which gets them"
    )


@dataclass(eq=False)
class ClientClosed(UsageError):
    fact = "this client is closed"
    remedy = "connect again"


@dataclass(eq=False)
class ProducerNotOpen(UsageError):
    topic: str
    fact = "the producer of {topic!r} is not open"
    remedy = "open the producer first: async with client.producer({topic!r}) as producer"


@dataclass(eq=False)
class ProducerClosed(UsageError):
    topic: str
    fact = "this producer of {topic!r} is closed"
    remedy = "open another one: client.producer({topic!r})"


# --- topics and partitions -----------------------------------------------------------------------


class TopicError(RostraError):
    """About a topic."""


@dataclass(eq=False)
class UnknownTopic(TopicError):
    topic: str
    fact = "there is no topic {topic!r}"
    remedy = "create it with client.create_topic({topic!r})"


@dataclass(eq=False)
class TopicExists(TopicError):
    topic: str
    fact = "topic {topic!r} exists already"
    remedy = "choose another name, or pass if_not_exists=True"


@dataclass(eq=False)
class TopicRecreated(TopicError):
    topic: str
    fact = "topic {topic!r} was deleted and created again: its records are other ones"
    remedy = "subscribe again and choose where to start"


@dataclass(eq=False)
class TopicDeleted(TopicError):
    topic: str
    fact = "topic {topic!r} was deleted"
    remedy = "subscribe again when it has been created again"


class PartitionError(RostraError):
    """About one partition of a topic."""


@dataclass(eq=False)
class UnknownPartition(PartitionError):
    topic: str
    partition: int
    fact = "topic {topic!r} has no partition {partition}"
    remedy = "client.describe_topic({topic!r}) shows its partitions"


@dataclass(eq=False)
class OffsetOutOfRange(PartitionError):
    topic: str
    partition: int
    offset: int
    first: int
    last: int
    fact = "offset {offset} is outside {topic}/{partition}, which holds {first} to {last}"
    remedy = "start at earliest, latest or an offset in that range"


@dataclass(eq=False)
class RecordsExpired(PartitionError):
    topic: str
    partition: int
    offset: int
    first: int
    fact = "retention removed offsets {offset} to {first} of {topic}/{partition} before they were read"
    remedy = "keep records for longer, or read with failOnDataLoss=false, which continues at {first}"


@dataclass(eq=False)
class Moved(PartitionError):
    address: str
    epoch: int
    retryable = True
    fact = "the partition is served at {address} (owner epoch {epoch})"
    remedy = "send the request there"


@dataclass(eq=False)
class Unavailable(PartitionError):
    topic: str
    partition: int
    reason: str
    retryable = True
    fact = "{topic}/{partition} is not available: {reason}"
    remedy = "try again; `rostra cluster status` shows its replicas"


@dataclass(eq=False)
class PartitionDamaged(PartitionError):
    topic: str
    partition: int
    offset: int
    fact = "the log of {topic}/{partition} is damaged at offset {offset}: records from there on are not served"
    remedy = "restore the segment from a copy, then restart the node"


# --- clusters ------------------------------------------------------------------------------------


class ClusterError(RostraError):
    """About the members of a cluster and what they hold. `node` is its name, or the id of an unknown one."""


@dataclass(eq=False)
class UnknownMember(ClusterError):
    node: str
    fact = "the cluster has no member {node}"
    remedy = "`rostra cluster members` lists them"


@dataclass(eq=False)
class MemberRemoved(ClusterError):
    node: str
    retryable = True
    fact = "node {node} was removed from its cluster"
    remedy = "ask another member; to join anew, start it with an empty data directory"


@dataclass(eq=False)
class QuorumAtRisk(ClusterError):
    node: str
    alive: int
    needed: int
    fact = "without node {node} only {alive} voters would be alive, and a majority needs {needed}"
    remedy = "restart the members that are down, or remove those first, or add members"


@dataclass(eq=False)
class ReplicasUnavailable(ClusterError):
    node: str
    topic: str
    partition: int
    fact = "too few replicas of {topic}/{partition} are alive to do without the one on node {node}"
    remedy = "restart the members that hold the others, or delete the topic"


@dataclass(eq=False)
class UnsupportedByFabric(ClusterError):
    fabric: str
    feature: str
    fact = "the fabric {fabric} does not support {feature}"
    remedy = "docs/guarantees.md lists what each fabric supports"


@dataclass(eq=False)
class NotAReplica(ClusterError):
    node: str
    topic: str
    partition: int
    fact = "node {node} has no complete replica of {topic}/{partition}"
    remedy = "choose a node that has one: `rostra cluster status` shows them"


@dataclass(eq=False)
class TransferTimedOut(ClusterError):
    node: str
    topic: str
    partition: int
    fact = "node {node} did not take over {topic}/{partition} in time"
    remedy = "check with `rostra cluster status` that it is alive and caught up, then try again"


# --- named subscriptions -------------------------------------------------------------------------


class GroupError(RostraError):
    """About a named subscription and its members."""


@dataclass(eq=False)
class InvalidGroupName(GroupError):
    name: str
    reason: str
    fact = "{name!r} is not a name for a subscription: {reason}"
    remedy = "use 1-249 of the letters a-z A-Z, digits, '.', '_', '-', '/'"


@dataclass(eq=False)
class UnknownGroup(GroupError):
    group: str
    fact = "there is no subscription named {group!r}"
    remedy = "client.list_subscriptions() lists them; client.subscribe(..., name={group!r}) creates it"


@dataclass(eq=False)
class GroupExists(GroupError):
    group: str
    fact = "a user or subscription named {group!r} exists already"
    remedy = "choose another name, or use the existing one"


@dataclass(eq=False)
class AlreadySubscribed(GroupError):
    group: str
    topic: str
    fact = "{group!r} is subscribed to {topic!r} already"
    remedy = "receive the records that wait, or unsubscribe first"


@dataclass(eq=False)
class NotSubscribed(GroupError):
    group: str
    topic: str
    fact = "{group!r} is not subscribed to {topic!r}"
    remedy = "user.topics() shows what it is subscribed to"


@dataclass(eq=False)
class GroupBusy(GroupError):
    group: str
    members: int
    retryable = True
    fact = "the subscription {group!r} has {members} members"
    remedy = "stop them, or wait for their leases to end, then try again"


@dataclass(eq=False)
class SettingsDiffer(GroupError):
    group: str
    setting: str
    current: str
    given: str
    members: int
    fact = "the subscription {group!r} has {setting} {current} for its {members} other members, and not {given}"
    remedy = "subscribe with the same settings, or stop the other members first"


@dataclass(eq=False)
class NotAMember(GroupError):
    group: str
    member: int
    retryable = True
    fact = "{member:016x} is not a member of {group!r}: its lease has ended, or it joined over another connection"
    remedy = "join again; records that were not acknowledged are redelivered"


@dataclass(eq=False)
class StaleGeneration(GroupError):
    group: str
    generation: int
    fact = "the partition is not assigned to this member of {group!r}, which is at generation {generation}"
    remedy = "stop handling its records: another member continues at the last committed position"


# --- publishing ----------------------------------------------------------------------------------


class PublishError(RostraError):
    """A publish was refused, or its outcome is not known."""


@dataclass(eq=False)
class BatchRejected(PublishError):
    reason: str
    detail: str
    fact = "the batch was rejected ({reason}): {detail}"
    remedy = "encode it with a Rostra client of a matching version"


@dataclass(eq=False)
class UnknownProducer(PublishError):
    producer: int
    fact = "producer {producer:016x} is not in the table of this partition"
    remedy = "start a new producer epoch; what was not acknowledged may be stored twice"


@dataclass(eq=False)
class ProducerFenced(PublishError):
    producer: int
    epoch: int
    fact = "producer {producer:016x} was replaced by one with the newer epoch {epoch}"
    remedy = "close this producer"


@dataclass(eq=False)
class SequenceGap(PublishError):
    producer: int
    expected: int
    got: int
    fact = "producer {producer:016x} sent sequence {got}, expected {expected}: batches in between are missing"
    remedy = "start a new producer epoch and resend what was not acknowledged"


@dataclass(eq=False)
class NotAcknowledged(PublishError):
    records: int
    waited_ms: int
    reason: str
    fact = "{records} records were not acknowledged within {waited_ms} ms ({reason}); they may or may not be stored"
    remedy = "send them again with the same producer, or raise the delivery timeout"


@dataclass(eq=False)
class NotRegistered(PublishError):
    topic: str
    partition: int
    publisher: int
    retryable = True
    fact = "publisher {publisher:016x} is not registered in partition {partition} of {topic!r} any more"
    remedy = "its lease ended; the client registers it again and resends"


# --- storage -------------------------------------------------------------------------------------


class StorageError(RostraError):
    """About a node's disk."""


@dataclass(eq=False)
class DiskFull(StorageError):
    retryable = True
    fact = "the disk of the node is full: publishes are refused, reads go on"
    remedy = "free space or shorten retention; clients retry automatically"


@dataclass(eq=False)
class DiskFailed(StorageError):
    reason: str
    fact = "a read or write on the disk of the node failed ({reason})"
    remedy = "check the disk, then restart the node"


@dataclass(eq=False)
class DiskUntrusted(StorageError):
    reason: str
    retryable = True
    fact = "the disk of the node may have lost writes ({reason}): the node acknowledges nothing until it is restarted"
    remedy = "check the disk, then restart the node; clients retry automatically"


@dataclass(eq=False)
class CorruptLog(StorageError):
    path: str
    position: int
    detail: str
    fact = "{path} is damaged at byte {position}: {detail}"
    remedy = "restore the file from a copy"


@dataclass(eq=False)
class OffsetTrimmed(StorageError):
    offset: int
    first: int
    fact = "offset {offset} is below {first}, where the log begins now: retention removed it"
    remedy = "start at earliest"


@dataclass(eq=False)
class StoreInUse(StorageError):
    path: str
    fact = "{path} is used by another node process"
    remedy = "stop that process or choose another data directory"


@dataclass(eq=False)
class PipelineFailed(RostraError):
    reason: str
    fact = "the query failed: {reason}"
    remedy = "fix the cause and start it again: it continues where it stopped"


class LakeError(RostraError):
    """About a lake, the files that an archive writes."""


@dataclass(eq=False)
class LakeInUse(LakeError):
    lake: str
    holder: str
    fact = "the lake {lake} has a writer: {holder}"
    remedy = "wait until it ends, or stop it"


@dataclass(eq=False)
class LakeChanged(LakeError):
    lake: str
    reason: str
    fact = "the lake {lake} is not as this writer left it: {reason}"
    remedy = "nothing was added; start again, as the only writer"


@dataclass(eq=False)
class LakeDamaged(LakeError):
    path: str
    plan: str
    fact = "{path} is missing, or not as long as {plan} says"
    remedy = "put it back from a copy, or archive into another lake"


class AddressError(RostraError):
    """A node cannot listen at an address. `argument` is the setting that has it: listen, peer_listen or metrics."""


@dataclass(eq=False)
class AddressInUse(AddressError):
    address: str
    argument: str
    suggestion: str
    fact = "{address} is in use"
    remedy = "try {argument}={suggestion!r}"


@dataclass(eq=False)
class AddressNotLocal(AddressError):
    address: str
    argument: str
    fact = "this machine has no address {address}"
    remedy = "try {argument}='127.0.0.1:7400', or '0.0.0.0:7400' for all of its addresses"


@dataclass(eq=False)
class PortNotPermitted(AddressError):
    port: int
    argument: str
    fact = "port {port} needs root"
    remedy = "choose a port from 1024 on for {argument}"


@dataclass(eq=False)
class LimitExceeded(RostraError):
    limit: str
    bound: int
    fact = "the limit {limit} = {bound} is reached"
    remedy = "use less of it, or raise {limit} on the node"


class LinkError(RostraError):
    """Between a client and a node."""

    retryable = True


@dataclass(eq=False)
class Unreachable(LinkError):
    addresses: str
    reason: str
    fact = "no node answers at {addresses} ({reason})"
    remedy = "start one with `rostra serve`, or give connect() the right address"


@dataclass(eq=False)
class LinkLost(LinkError):
    reason: str
    fact = "the connection was lost ({reason})"
    remedy = "the client reconnects automatically"


@dataclass(eq=False)
class TimedOut(LinkError):
    what: str
    waited_ms: int
    reason: str
    fact = "no answer to {what} within {waited_ms} ms ({reason})"
    remedy = "try again, or raise the timeout"


@dataclass(eq=False)
class IncompatibleVersion(LinkError):
    ours: str
    theirs: str
    retryable = False
    fact = "this side speaks protocol versions {ours}, the other {theirs}"
    remedy = "upgrade the older side"


@dataclass(eq=False)
class NotSupported(LinkError):
    feature: str
    retryable = False
    fact = "the node is too old for {feature}"
    remedy = "upgrade the node, or do without it"


@dataclass(eq=False)
class NodeStopping(LinkError):
    fact = "the node is stopping"
    remedy = "the client tries another node, or waits for this one"


@dataclass(eq=False)
class WatchEnded(LinkError):
    reason: str
    fact = "the node ended the watch for topics ({reason})"
    remedy = "the client starts another watch, at another node if it can"


@dataclass(eq=False)
class OtherCluster(LinkError):
    ours: str
    theirs: str
    retryable = False
    fact = "the data directory of this node belongs to cluster {ours}, the other node to cluster {theirs}"
    remedy = "give the address of a node of its cluster; to join another cluster, start with an empty data directory"


@dataclass(eq=False)
class OtherFabric(LinkError):
    ours: str
    theirs: str
    retryable = False
    fact = "this node runs the fabric {ours}, the other runs {theirs}"
    remedy = "all nodes of a cluster run the same fabric"


@dataclass(eq=False)
class OtherNode(LinkError):
    address: str
    expected: str
    found: str
    fact = "node {found} answers at {address}, not node {expected}"
    remedy = "node {expected} announces its new address when it is back"


@dataclass(eq=False)
class WrongPort(LinkError):
    port: int
    purpose: str
    others: str
    other_port: int
    retryable = False
    fact = "port {port} is for {purpose}; {others} use {other_port}"
    remedy = "give the address with port {other_port}"


@dataclass(eq=False)
class PeerViolation(RostraError):
    reason: str
    detail: str
    fact = "the other side broke the protocol ({reason}): {detail}"
    remedy = "its connection is closed; use a client of a matching version"


@dataclass(eq=False)
class RemoteError(RostraError):
    code: str
    detail: str
    fact = "the node reported {code} ({detail}), unknown to this version"
    remedy = "upgrade this client"
