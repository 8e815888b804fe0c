"""Who a node is: random ids, chosen when its data directory is first used and kept there.

A node that is to join a cluster has none at first. It takes over the cluster's id before it says a word to its members,
and remembers through whom it came: so it finds them again, whatever it is started with.
"""

from __future__ import annotations

import random

import msgspec

from rostra.broker.broker import BrokerIdentity
from rostra.errors import CorruptLog, InvalidSetting
from rostra.log.files import Files
from rostra.model.ids import ClusterId, NodeId, parse_id, random_id, text

PATH = "node.json"
FORMAT = 2
CARD_BYTES_MAX = 1 << 16


class IdentityFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`through` are the peer addresses by which the node came into its cluster; a founder has none."""

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


def identify(files: Files, fabric: str, join: tuple[str, ...] = ()) -> IdentityFile:
    """The card on disk. An empty directory becomes a new node, never an old one that forgot itself."""
    if not is_new(files):
        card = _read(files)
        if card.fabric != fabric:
            raise InvalidSetting("fabric", f"the data directory was written by {card.fabric!r}, not {fabric!r}")
        return card
    source = random.SystemRandom()
    cluster = 0 if join else random_id(source)
    card = IdentityFile(FORMAT, text(cluster), text(random_id(source)), fabric, join)
    _write(files, card)
    return card


def enter(files: Files, card: IdentityFile, cluster: ClusterId) -> IdentityFile:
    """Makes the node one of this cluster, durably."""
    entered = msgspec.structs.replace(card, cluster=text(cluster))
    _write(files, entered)
    return entered


def _read(files: Files) -> IdentityFile:
    file = files.open(PATH)
    try:
        written = file.read(0, CARD_BYTES_MAX)
        found = msgspec.json.decode(written, type=_Format).format
        if found != FORMAT:
            raise CorruptLog(PATH, 0, f"format {found}, this version knows {FORMAT}")
        card = msgspec.json.decode(written, type=IdentityFile)
        assert card.identity.node
        return card
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptLog(PATH, 0, str(error)) from None
    finally:
        file.close()


def _write(files: Files, card: IdentityFile) -> None:
    """Replaces the card as a whole: a crash leaves the old one or the new one."""
    file = files.open(PATH + ".new", create=True)
    try:
        file.truncate(0)
        file.append([msgspec.json.format(msgspec.json.encode(card)) + b"\n"])
        file.begin_sync()()
    finally:
        file.close()
    files.rename(PATH + ".new", PATH)
    files.sync_directory("")
