"""What a fabric and a coordination service say to each other: requests, answers, watches and states of the session.

The service holds a tree of *znodes*, as ZooKeeper does. A fabric sends a `CoordinationRequest` to the peer
`COORDINATION`, and everything the service says arrives from that peer, in the order of the session:

- Requests are executed in the order in which they were sent, and answered in that order, each once.
- A watch fires before any answer that shows the change, and only once.
- Reads may be stale: they show some earlier state. `SyncServer` ends that for later reads. They do not go back behind
  an earlier answer, except after a disconnect that lasted longer than the session timeout.
- Before `SessionDisconnected` every open request is answered by `FailureReason.OUTCOME_UNKNOWN`: it was executed, or
  is executed before any later request of this session, or never. All watches end.
- The driver reconnects and opens sessions by itself: after `SessionDisconnected` come `SessionResumed`, or
  `SessionExpired` and `SessionStarted`. Without a connection a request is answered by `FailureReason.NOT_CONNECTED`
  and was not executed.
"""

from __future__ import annotations

from enum import StrEnum

from rostra.fabric.values import Value

ANY_VERSION = -1
"""The version of a write or check that fits every version of the znode."""


class Stat(Value, frozen=True, array_like=True):
    """What the service knows of a znode besides its data."""

    version: int
    """How often the data was set since the znode was created."""
    children_version: int
    """How often a child was created or deleted."""
    created_id: int
    """The transaction that created the znode: another one after it was deleted and created anew."""
    modified_id: int
    """The transaction that wrote the data."""
    session: int
    """The session that an ephemeral znode lives as long as; 0 for a persistent one."""
    children: int


# --- requests --------------------------------------------------------------------------------------


class CreateZnode(Value, frozen=True, tag=True):
    """Creates a znode, which ends with the session if it is ephemeral. To the name of a sequential one the service
    appends ten digits, higher than those of all earlier children of its parent."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


class SetData(Value, frozen=True, tag=True):
    path: str
    data: bytes
    version: int = ANY_VERSION


class DeleteZnode(Value, frozen=True, tag=True):
    path: str
    version: int = ANY_VERSION


class CheckVersion(Value, frozen=True, tag=True):
    """Makes its multi fail unless the znode exists and has this version."""

    path: str
    version: int = ANY_VERSION


class Multi(Value, frozen=True, tag=True):
    """Executes all operations in order as one transaction, or none."""

    operations: tuple[CreateZnode | SetData | DeleteZnode | CheckVersion, ...]


class GetData(Value, frozen=True, tag=True):
    """Reads a znode. The watch fires when its data is set or it is deleted; none is left on a missing znode."""

    path: str
    watch: bool = False


class GetChildren(Value, frozen=True, tag=True):
    """Reads the names of the children. The watch fires when a child is created or deleted, or the znode is deleted."""

    path: str
    watch: bool = False


class GetStat(Value, frozen=True, tag=True):
    """Asks whether a znode exists. The watch, also on a missing znode, fires when it is created, set or deleted."""

    path: str
    watch: bool = False


class SyncServer(Value, frozen=True, tag=True):
    """Makes later reads of this session show everything that was committed before."""

    path: str


Write = CreateZnode | SetData | DeleteZnode | Multi
Read = GetData | GetChildren | GetStat
Operation = Write | Read | SyncServer


class CoordinationRequest(Value, frozen=True, tag=True):
    """An operation under a number of the fabric's, which its answer repeats."""

    number: int
    operation: Operation


# --- answers ---------------------------------------------------------------------------------------


class FailureReason(StrEnum):
    """Why an operation was not executed; of `OUTCOME_UNKNOWN` nobody knows whether it was."""

    NO_ZNODE = "the znode or its parent does not exist"
    ZNODE_EXISTS = "the znode exists"
    BAD_VERSION = "the znode has another version"
    NOT_EMPTY = "the znode has children"
    PARENT_EPHEMERAL = "an ephemeral znode has no children"
    NOT_PERMITTED = "the credentials do not permit it"
    INVALID = "the service rejected the arguments"
    TOO_LARGE = "the request is larger than the service accepts"
    TOO_MANY = "too many requests are open"
    NOT_CONNECTED = "there is no connection to the service"
    OUTCOME_UNKNOWN = "the connection was lost before the answer"


class ZnodeCreated(Value, frozen=True, tag=True):
    path: str
    """With the digits of a sequential znode."""


class DataSet(Value, frozen=True, tag=True):
    stat: Stat


class ZnodeDeleted(Value, frozen=True, tag=True):
    pass


class VersionChecked(Value, frozen=True, tag=True):
    pass


class MultiDone(Value, frozen=True, tag=True):
    results: tuple[ZnodeCreated | DataSet | ZnodeDeleted | VersionChecked, ...]


class DataRead(Value, frozen=True, tag=True):
    data: bytes
    stat: Stat


class ChildrenRead(Value, frozen=True, tag=True):
    names: tuple[str, ...]
    """Sorted."""
    stat: Stat


class StatRead(Value, frozen=True, tag=True):
    stat: Stat | None
    """None: the znode does not exist."""


class SyncDone(Value, frozen=True, tag=True):
    pass


class RequestFailed(Value, frozen=True, tag=True):
    reason: FailureReason
    index: int = 0
    """In a multi: the first operation that could not be executed."""


WriteResult = ZnodeCreated | DataSet | ZnodeDeleted | VersionChecked
Result = WriteResult | MultiDone | DataRead | ChildrenRead | StatRead | SyncDone | RequestFailed


class CoordinationAnswer(Value, frozen=True, tag=True):
    number: int
    result: Result


# --- watches and session ---------------------------------------------------------------------------


class Change(StrEnum):
    CREATED = "created"
    DATA = "data"
    DELETED = "deleted"
    CHILDREN = "children"


class WatchFired(Value, frozen=True, tag=True):
    """The znode changed. `CHILDREN` uses up the watch of `GetChildren`, `CREATED` and `DATA` that of `GetData` and
    `GetStat`, `DELETED` both."""

    path: str
    change: Change


class SessionStarted(Value, frozen=True, tag=True):
    """There is a connection, and a new session without ephemeral znodes and watches."""

    session: int


class SessionResumed(Value, frozen=True, tag=True):
    """There is a connection again. The session's ephemeral znodes are still there, its watches are not."""

    session: int


class SessionDisconnected(Value, frozen=True, tag=True):
    """The connection is lost. The session goes on at the service until its timeout."""


class SessionExpired(Value, frozen=True, tag=True):
    """The service ended the session and deleted its ephemeral znodes. A new one is opened."""

    session: int


class SessionRefused(Value, frozen=True, tag=True):
    """The service refused the credentials. No further session is opened."""


SessionEvent = SessionStarted | SessionResumed | SessionDisconnected | SessionExpired | SessionRefused
CoordinationMessage = CoordinationAnswer | WatchFired | SessionEvent
"""Everything that arrives from the service."""


_FIELDS_BYTES = 128
"""A bound for what surrounds path and data in an encoded operation."""


def request_bytes(operation: Operation | CheckVersion) -> int:
    """The size of a request at the service, at most."""
    match operation:
        case Multi(operations):
            return sum(map(request_bytes, operations)) + _FIELDS_BYTES
        case CreateZnode(path, data) | SetData(path, data):
            return len(path.encode()) + len(data) + _FIELDS_BYTES
        case _:
            return len(operation.path.encode()) + _FIELDS_BYTES
