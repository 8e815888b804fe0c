"""Translates operations into requests of kazoo, and kazoo's values and exceptions into results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_never

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooClient
from kazoo.protocol import serialization
from kazoo.protocol.states import EventType, WatchedEvent, ZnodeStat
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from rostra.fabric.coordination import (
    Change,
    CheckVersion,
    ChildrenRead,
    CreateZnode,
    DataRead,
    DataSet,
    DeleteZnode,
    FailureReason,
    GetChildren,
    GetData,
    GetStat,
    Multi,
    MultiDone,
    Operation,
    RequestFailed,
    Result,
    SetData,
    Stat,
    StatRead,
    SyncDone,
    SyncServer,
    VersionChecked,
    WatchFired,
    WriteResult,
    ZnodeCreated,
    ZnodeDeleted,
)

_EPHEMERAL = 1
_SEQUENTIAL = 2

OWN_ACL: list[ACL] = [*CREATOR_ALL_ACL, *READ_ACL_UNSAFE]
"""With credentials: all rights for their user, reading for everybody."""

_REASONS: dict[type[Exception], FailureReason] = {
    kazoo_errors.NoNodeError: FailureReason.NO_ZNODE,
    kazoo_errors.NodeExistsError: FailureReason.ZNODE_EXISTS,
    kazoo_errors.BadVersionError: FailureReason.BAD_VERSION,
    kazoo_errors.NotEmptyError: FailureReason.NOT_EMPTY,
    kazoo_errors.NoChildrenForEphemeralsError: FailureReason.PARENT_EPHEMERAL,
    kazoo_errors.NoAuthError: FailureReason.NOT_PERMITTED,
    kazoo_errors.InvalidACLError: FailureReason.NOT_PERMITTED,
    kazoo_errors.BadArgumentsError: FailureReason.INVALID,
    kazoo_errors.APIError: FailureReason.INVALID,
}
CONNECTION_ERRORS = (
    kazoo_errors.ConnectionLoss,
    kazoo_errors.ConnectionClosedError,
    kazoo_errors.SessionExpiredError,
    kazoo_errors.AuthFailedError,
)
"""What kazoo gives to requests whose connection is lost."""

_CHANGES = {
    EventType.CREATED: Change.CREATED,
    EventType.CHANGED: Change.DATA,
    EventType.DELETED: Change.DELETED,
    EventType.CHILD: Change.CHILDREN,
}
_NOT_THE_CAUSE = (kazoo_errors.RolledBackError, kazoo_errors.RuntimeInconsistency)
"""What kazoo gives for the operations of a failed multi before and after the one that failed."""


def kazoo_request(client: KazooClient, operation: Operation, watch: Callable[[WatchedEvent], None]) -> Any:
    """The request of kazoo's protocol for an operation.

    The methods of `KazooClient` return the result of a request that is under way already, and some complete in two
    stages; either can bring answers and watches out of order.
    """
    match operation:
        case GetData(path, watched):
            return serialization.GetData(_full(client, path), watch if watched else None)
        case GetChildren(path, watched):
            return serialization.GetChildren2(_full(client, path), watch if watched else None)
        case GetStat(path, watched):
            return serialization.Exists(_full(client, path), watch if watched else None)
        case SyncServer(path):
            return serialization.Sync(_full(client, path))
        case Multi(operations):
            return serialization.Transaction([_kazoo_write(client, each) for each in operations])
        case _:
            return _kazoo_write(client, operation)


def _kazoo_write(client: KazooClient, operation: CreateZnode | SetData | DeleteZnode | CheckVersion) -> Any:
    path = _full(client, operation.path)
    match operation:
        case CreateZnode(data=data, ephemeral=ephemeral, sequential=sequential):
            flags = (_EPHEMERAL if ephemeral else 0) | (_SEQUENTIAL if sequential else 0)
            return serialization.Create(path, data, client.default_acl or OPEN_ACL_UNSAFE, flags)
        case SetData(data=data, version=version):
            return serialization.SetData(path, data, version)
        case DeleteZnode(version=version):
            return serialization.Delete(path, version)
        case CheckVersion(version=version):
            return serialization.CheckVersion(path, version)
        case _:
            assert_never(operation)


def _full(client: KazooClient, path: str) -> str:
    """The path below the one that the address of the service ends with."""
    root: str = client.chroot
    return (root if path == "/" else root + path) or "/"


def result_of(client: KazooClient, operation: Operation, value: Any) -> Result:
    """The result of an operation that the service executed."""
    match operation:
        case CreateZnode():
            return ZnodeCreated(client.unchroot(value))
        case SetData() | DeleteZnode():
            return _write_result(operation, value)
        case GetData():
            data, stat = value
            return DataRead(data, _stat(stat))
        case GetChildren():
            names, stat = value
            return ChildrenRead(tuple(sorted(names)), _stat(stat))
        case GetStat():
            return StatRead(None if value is None else _stat(value))
        case SyncServer():
            return SyncDone()
        case Multi(operations):
            for index, outcome in enumerate(value):
                if isinstance(outcome, Exception) and not isinstance(outcome, _NOT_THE_CAUSE):
                    return failure_of(outcome, index)
            return MultiDone(tuple(_write_result(*each) for each in zip(operations, value, strict=True)))
        case _:
            assert_never(operation)


def _write_result(operation: CreateZnode | SetData | DeleteZnode | CheckVersion, value: Any) -> WriteResult:
    match operation:
        case CreateZnode():
            return ZnodeCreated(str(value))
        case SetData():
            return DataSet(_stat(value))
        case DeleteZnode():
            return ZnodeDeleted()
        case CheckVersion():
            return VersionChecked()
        case _:
            assert_never(operation)


def failure_of(error: BaseException, index: int = 0) -> RequestFailed:
    """An error that is not among the known ones leaves open whether the request was executed."""
    for kind, reason in _REASONS.items():
        if isinstance(error, kind):
            return RequestFailed(reason, index)
    return RequestFailed(FailureReason.OUTCOME_UNKNOWN, index)


def event_of(event: WatchedEvent) -> WatchFired | None:
    """None for what kazoo tells its watchers when it forgets them."""
    change = _CHANGES.get(event.type)
    return None if change is None else WatchFired(event.path, change)


def _stat(stat: ZnodeStat) -> Stat:
    return Stat(stat.version, stat.cversion, stat.czxid, stat.mzxid, stat.ephemeralOwner, stat.numChildren)
