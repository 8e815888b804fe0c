"""The handshake between two nodes. After it the link carries messages of their fabric.

Kinds begin at 96, which no message of clients uses, so that neither listener accepts messages of the other.
"""

from __future__ import annotations

from typing import ClassVar

from rostra.wire.fields import Carried, Id, Index, Message, Text

PEER_PROTOCOL = 1
"""Incremented for incompatible changes; appending fields with defaults is compatible."""


class PeerHello(Message, frozen=True, array_like=True):
    """First on every link. Cluster 0: the node has none yet and asks which one this is.

    `address` is where the node listens for peers itself, `name` what it is called in logs.
    """

    kind: ClassVar[int] = 96
    version: Index
    cluster: Id
    node: Id
    address: Text
    fabric: Text
    name: Text = ""


class PeerWelcome(Message, frozen=True, array_like=True):
    """Cluster 0: the answering node has none yet either, and closes the link."""

    kind: ClassVar[int] = 97
    version: Index
    cluster: Id
    node: Id
    name: Text = ""


class PeerRefused(Message, frozen=True, array_like=True):
    """The link is closed for this reason."""

    kind: ClassVar[int] = 98
    code: Text
    carried: Carried


HandshakeAnswer = PeerWelcome | PeerRefused
