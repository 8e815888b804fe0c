"""The identity of a node: random ids, drawn when its data directory is first used and stored there.

A node that joins a cluster has no cluster id at first. It stores the cluster's id before it sends members any message,
together with the addresses it joined through, so that it finds them again whatever settings it is started with.
"""

from __future__ import annotations

import random

import msgspec

from rostra.broker.broker import BrokerIdentity
from rostra.errors import CorruptLog, InvalidSetting
from rostra.log.files import Files
from rostra.log.journal import PATH as JOURNAL
from rostra.model.ids import ClusterId, NodeId, parse_id, random_id, text

PATH = "node.json"
FORMAT = 2
IDENTITY_BYTES_MAX = 1 << 16


class IdentityFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`through` are the peer addresses through which the node joined its cluster; a founder has none."""

    format: int
    cluster: str
    node: str
    fabric: str
    through: tuple[str, ...] = ()

    @property
    def identity(self) -> BrokerIdentity:
        return BrokerIdentity(ClusterId(parse_id(self.cluster)), NodeId(parse_id(self.node)))

    @property
    def founded(self) -> bool:
        return not self.through


class _Format(msgspec.Struct):
    format: int


def is_new(files: Files) -> bool:
    """Whether no node has used this directory yet."""
    return not files.exists(PATH)


def load_identity(files: Files, fabric: str, join: tuple[str, ...] = ()) -> IdentityFile:
    """Reads the identity, or draws a new one if the directory is empty.

    A start that failed, because its port was in use, has stored nothing: the next one may join a cluster after all.
    """
    identity_file = None if is_new(files) else _read(files)
    if identity_file is not None and join and identity_file.founded and not files.exists(JOURNAL):
        identity_file = None
    if identity_file is not None:
        if identity_file.fabric != fabric:
            raise InvalidSetting(
                "fabric", f"the data directory was written by {identity_file.fabric!r}, not {fabric!r}"
            )
        return identity_file
    source = random.SystemRandom()
    cluster = 0 if join else random_id(source)
    identity_file = IdentityFile(FORMAT, text(cluster), text(random_id(source)), fabric, join)
    _write(files, identity_file)
    return identity_file


def join_cluster(files: Files, identity_file: IdentityFile, cluster: ClusterId) -> IdentityFile:
    """Stores the id of the cluster that the node joins."""
    entered = msgspec.structs.replace(identity_file, cluster=text(cluster))
    _write(files, entered)
    return entered


def _read(files: Files) -> IdentityFile:
    file = files.open(PATH)
    try:
        written = file.read(0, IDENTITY_BYTES_MAX)
        found = msgspec.json.decode(written, type=_Format).format
        if found != FORMAT:
            raise CorruptLog(PATH, 0, f"format {found}, this version knows {FORMAT}")
        identity_file = msgspec.json.decode(written, type=IdentityFile)
        assert identity_file.identity.node
        return identity_file
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptLog(PATH, 0, str(error)) from None
    finally:
        file.close()


def _write(files: Files, identity_file: IdentityFile) -> None:
    """Replaces the file atomically."""
    file = files.open(PATH + ".new", create=True)
    try:
        file.truncate(0)
        file.append([msgspec.json.format(msgspec.json.encode(identity_file)) + b"\n"])
        file.begin_sync()()
    finally:
        file.close()
    files.rename(PATH + ".new", PATH)
    files.sync_directory("")
