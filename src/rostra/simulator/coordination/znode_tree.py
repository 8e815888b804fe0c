"""The tree of znodes at one server, and what a committed transaction does to it.

Every server applies the same transactions in the same order, so all get the same tree and the same results. The rules
are ZooKeeper's: which error comes first, how sequential names are counted, which watches a change fires in which order.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rostra.fabric.coordination import (
    ANY_VERSION,
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
    Read,
    RequestFailed,
    Result,
    SetData,
    Stat,
    StatRead,
    VersionChecked,
    WatchFired,
    Write,
    WriteResult,
    ZnodeCreated,
    ZnodeDeleted,
)

ROOT = "/"


@dataclass(slots=True)
class Znode:
    data: bytes
    created_id: int
    modified_id: int
    session: int = 0
    version: int = 0
    creates: int = 0
    """How many children were ever created; the next sequential name ends with this number."""
    children: set[str] = field(default_factory=set)

    def stat(self) -> Stat:
        # Every create and every delete of a child counts once: those deleted are the creates that are no longer there.
        changes = 2 * self.creates - len(self.children)
        return Stat(self.version, changes, self.created_id, self.modified_id, self.session, len(self.children))

    def duplicate(self) -> Znode:
        return replace(self, children=set(self.children))


class OperationFailed(Exception):
    """An operation of a transaction that cannot be executed."""

    def __init__(self, reason: FailureReason) -> None:
        self.reason = reason


class ZnodeTree:
    def __init__(self) -> None:
        self._znodes = {ROOT: Znode(b"", 0, 0)}
        self._changed: dict[str, Znode | None] = {}
        """The znodes that the transaction under way wrote; None stands for a deleted one."""
        self._fired: list[WatchFired] = []

    # --- reads ---

    def read(self, operation: Read) -> Result:
        znode = self._znodes.get(operation.path)
        match operation:
            case GetStat():
                return StatRead(znode.stat() if znode else None)
            case _ if znode is None:
                return RequestFailed(FailureReason.NO_ZNODE)
            case GetData():
                return DataRead(znode.data, znode.stat())
            case GetChildren():
                return ChildrenRead(tuple(sorted(znode.children)), znode.stat())

    def ephemerals(self, session: int) -> list[str]:
        return sorted(path for path, znode in self._znodes.items() if znode.session == session)

    # --- transactions ---

    def apply(self, transaction_id: int, session: int, write: Write) -> tuple[Result, list[WatchFired]]:
        """Executes a write of this session; the result, and the changes in the order in which they fire watches."""
        operations = write.operations if isinstance(write, Multi) else (write,)
        results: list[WriteResult] = []
        for index, operation in enumerate(operations):
            try:
                results.append(self._execute(transaction_id, session, operation))
            except OperationFailed as failed:
                self._changed.clear()
                self._fired.clear()
                return RequestFailed(failed.reason, index), []
        fired = self._commit()
        return (MultiDone(tuple(results)) if isinstance(write, Multi) else results[0]), fired

    def close_session(self, session: int) -> list[WatchFired]:
        """Deletes the ephemeral znodes of a session that ended."""
        for path in self.ephemerals(session):
            self._delete(path)
        return self._commit()

    def _commit(self) -> list[WatchFired]:
        for path, znode in self._changed.items():
            if znode is None:
                self._znodes.pop(path, None)
            else:
                self._znodes[path] = znode
        self._changed.clear()
        fired, self._fired = self._fired, []
        return fired

    def _execute(
        self, transaction_id: int, session: int, operation: CreateZnode | SetData | DeleteZnode | CheckVersion
    ) -> WriteResult:
        match operation:
            case CreateZnode():
                return self._create(transaction_id, session, operation)
            case SetData(path, data, version):
                znode = self._of_version(path, version)
                znode.data = data
                znode.version += 1
                znode.modified_id = transaction_id
                self._fired.append(WatchFired(path, Change.DATA))
                return DataSet(znode.stat())
            case DeleteZnode(path, version):
                if path == ROOT:
                    raise OperationFailed(FailureReason.INVALID)
                if self._of_version(path, version).children:
                    raise OperationFailed(FailureReason.NOT_EMPTY)
                self._delete(path)
                return ZnodeDeleted()
            case CheckVersion(path, version):
                self._of_version(path, version)
                return VersionChecked()

    def _create(self, transaction_id: int, session: int, operation: CreateZnode) -> ZnodeCreated:
        parent_path = parent_of(operation.path)
        parent = self._writable(parent_path)
        path = f"{operation.path}{parent.creates:010d}" if operation.sequential else operation.path
        if self._current(path) is not None:
            raise OperationFailed(FailureReason.ZNODE_EXISTS)
        if parent.session:
            raise OperationFailed(FailureReason.PARENT_EPHEMERAL)
        parent.creates += 1
        parent.children.add(name_of(path))
        owner = session if operation.ephemeral else 0
        self._changed[path] = Znode(operation.data, transaction_id, transaction_id, owner)
        self._fired += [WatchFired(path, Change.CREATED), WatchFired(parent_path, Change.CHILDREN)]
        return ZnodeCreated(path)

    def _delete(self, path: str) -> None:
        parent_path = parent_of(path)
        self._writable(parent_path).children.remove(name_of(path))
        self._changed[path] = None
        self._fired += [WatchFired(path, Change.DELETED), WatchFired(parent_path, Change.CHILDREN)]

    def _of_version(self, path: str, version: int) -> Znode:
        znode = self._writable(path)
        if version not in (ANY_VERSION, znode.version):
            raise OperationFailed(FailureReason.BAD_VERSION)
        return znode

    def _current(self, path: str) -> Znode | None:
        return self._changed[path] if path in self._changed else self._znodes.get(path)

    def _writable(self, path: str) -> Znode:
        """The znode as the transaction sees it, copied so that a failing transaction leaves no trace."""
        znode = self._current(path)
        if znode is None:
            raise OperationFailed(FailureReason.NO_ZNODE)
        if path not in self._changed:
            znode = self._changed[path] = znode.duplicate()
        return znode


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or ROOT


def name_of(path: str) -> str:
    return path.rpartition("/")[2]
