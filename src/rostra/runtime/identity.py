"""Who a node is: random ids, chosen when its data directory is first used and kept there."""

from __future__ import annotations

import random

import msgspec

from rostra.broker.broker import Identity
from rostra.errors import CorruptLog
from rostra.log.files import Files
from rostra.model.ids import ClusterId, NodeId, parse_id, random_id, text

PATH = "node.json"
FORMAT = 1


class Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    cluster: str
    node: str


def is_new(files: Files) -> bool:
    """Whether no node has used this directory yet."""
    return not files.exists(PATH)


def identify(files: Files) -> Identity:
    """The identity on disk. An empty directory becomes a new node, never an old one that forgot itself."""
    if not is_new(files):
        file = files.open(PATH)
        try:
            card = msgspec.json.decode(file.read(0, 1 << 16), type=Card)
            if card.format != FORMAT:
                raise CorruptLog(PATH, 0, f"format {card.format}, this version knows {FORMAT}")
            return Identity(ClusterId(parse_id(card.cluster)), NodeId(parse_id(card.node)))
        except (msgspec.DecodeError, ValueError) as error:
            raise CorruptLog(PATH, 0, str(error)) from None
        finally:
            file.close()
    source = random.SystemRandom()
    identity = Identity(ClusterId(random_id(source)), NodeId(random_id(source)))
    card = Card(FORMAT, text(identity.cluster), text(identity.node))
    file = files.open(PATH + ".new", create=True)
    try:
        file.truncate(0)
        file.append([msgspec.json.format(msgspec.json.encode(card)) + b"\n"])
        file.begin_sync()()
    finally:
        file.close()
    files.rename(PATH + ".new", PATH)
    files.sync_directory("")
    return identity
