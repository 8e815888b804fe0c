"""The handshake between two nodes: only nodes of the same cluster, fabric and version are linked."""

from __future__ import annotations

import msgspec

from rostra.errors import IncompatibleVersion, OtherCluster, OtherFabric, RostraError, WrongPort, from_wire
from rostra.model.ids import ClusterId, NodeId, text
from rostra.wire.frames import Dialect
from rostra.wire.messages import Failed, Hello
from rostra.wire.peers import PEER_PROTOCOL, HandshakeAnswer, PeerHello, PeerRefused, PeerWelcome

ANSWERS: Dialect[HandshakeAnswer | Failed] = Dialect((PeerWelcome, PeerRefused, Failed))
"""A port for clients answers with `Failed`."""
NO_CLUSTER = ClusterId(0)


class NodeIdentity(msgspec.Struct, frozen=True):
    """What a node tells its peers about itself. Cluster 0: it has none yet."""

    cluster: ClusterId
    node: NodeId
    address: str
    fabric: str
    name: str = ""
    client_address: str = ""
    """Where it listens for clients; not sent."""

    def hello(self) -> PeerHello:
        return PeerHello(PEER_PROTOCOL, self.cluster, self.node, self.address, self.fabric, self.name)


def check_hello(own: NodeIdentity, hello: PeerHello) -> RostraError | None:
    """Why the node is refused, if it is."""
    if hello.version != PEER_PROTOCOL:
        return IncompatibleVersion(str(PEER_PROTOCOL), str(hello.version))
    if hello.fabric != own.fabric:
        return OtherFabric(own.fabric, hello.fabric)
    if NO_CLUSTER not in (hello.cluster, own.cluster) and hello.cluster != own.cluster:
        return OtherCluster(text(own.cluster), text(hello.cluster))
    return None


def welcome(own: NodeIdentity) -> PeerWelcome:
    return PeerWelcome(PEER_PROTOCOL, own.cluster, own.node, own.name)


def refusal(error: RostraError) -> PeerRefused:
    return PeerRefused(type(error).__name__, error.carried())


def wrong_port(own: NodeIdentity, hello: Hello) -> Failed:
    """Answers a client that has connected to the port for nodes."""
    port, client_port = (int(address.rpartition(":")[2]) for address in (own.address, own.client_address))
    error = WrongPort(port, "nodes", "clients", client_port)
    return Failed(hello.request, type(error).__name__, error.carried())


def check_answer(answer: HandshakeAnswer | Failed, port: int) -> PeerWelcome:
    """The answer if it is a welcome; raises the error of a refusal."""
    if isinstance(answer, Failed):
        # By default the port for nodes is the next one.
        raise WrongPort(port, "clients", "nodes", port + 1)
    if isinstance(answer, PeerRefused):
        raise from_wire(answer.code, dict(answer.carried))
    return answer
