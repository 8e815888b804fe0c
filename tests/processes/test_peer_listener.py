"""The listener for peers: which handshakes and frames it accepts and refuses."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

import rostra.testing
from rostra.broker.settings import BrokerSettings
from rostra.errors import (
    IncompatibleVersion,
    OtherCluster,
    OtherFabric,
    PeerViolation,
    RostraError,
    from_wire,
)
from rostra.fabric.registry import DEFAULT, FABRICS
from rostra.runtime.network.handshake import ANSWERS
from rostra.runtime.node import PEER_FRAME_BYTES_MORE
from rostra.testing.process import NotReady, ProcessNode
from rostra.wire.frames import Dialect, Framed, FrameReader, Violation, encode
from rostra.wire.messages import Failed, Hello, Ping, Welcome
from rostra.wire.peers import PEER_PROTOCOL, PeerHello, PeerRefused, PeerWelcome
from tests.fuzz import mutations
from tests.fuzz.corpus import Corpus, Frame, by_its_fields
from tests.fuzz.memory import GROWTH_BYTES_MAX, resident_bytes
from tests.fuzz.raw import RawClient
from tests.fuzz.raw_peer import RawPeer
from tests.processes.command_line import wait_until

SEED = 20_261_116
FRAMES = 1_500
WARM_UP = 100
KINDS: tuple[Any, ...] = FABRICS[DEFAULT].peer_kinds
FROM_PEERS: Dialect[Framed] = Dialect((PeerHello, *KINDS), payload_optional=True)


def cluster_of(node: ProcessNode) -> int:
    with RawClient(node.address, greet=False) as client:
        client.say(Hello(0, 1, 1))
        return client.hear(Welcome)[0].cluster


def error_of(answer: object) -> RostraError:
    assert isinstance(answer, PeerRefused)
    return from_wire(answer.code, dict(answer.carried))


def test_a_client_is_refused_at_the_peer_address() -> None:
    with rostra.testing.process_node() as node:
        with RawPeer(node.peer_address) as client:
            client.say(Ping(1))
            error = error_of(client.answer())
            assert isinstance(error, PeerViolation) and error.reason == Violation.UNKNOWN_KIND
            assert client.is_hung_up_on()
        cluster = cluster_of(node)
        with RawPeer(node.peer_address) as client:
            client.hello(cluster)
            assert isinstance(client.answer(), PeerWelcome)
            client.say(Ping(1))
            assert isinstance(error_of(client.answer()), PeerViolation)


def test_a_peer_is_refused_at_the_client_address() -> None:
    with rostra.testing.process_node() as node:
        with RawClient(node.address, greet=False) as peer:
            peer.send(encode(PeerHello(PEER_PROTOCOL, cluster_of(node), 5, "127.0.0.1:1", DEFAULT)))
            failed, _ = peer.hear(Failed)
            error = from_wire(failed.code, dict(failed.carried))
            assert isinstance(error, PeerViolation) and error.reason == Violation.UNKNOWN_KIND
        with RawClient(node.address) as peer:
            peer.send(encode(KINDS[0](1)))
            assert peer.hear(Failed)[0].code == "PeerViolation"


def test_a_peer_of_another_cluster_fabric_or_version_is_refused_with_the_reason() -> None:
    with rostra.testing.process_node() as node:
        cluster = cluster_of(node)
        with RawPeer(node.peer_address) as stranger:
            stranger.hello(cluster + 1, node=77)
            assert isinstance(error_of(stranger.answer()), OtherCluster)
            assert stranger.is_hung_up_on()
        with RawPeer(node.peer_address) as stranger:
            stranger.hello(cluster, fabric="paper")
            assert isinstance(error_of(stranger.answer()), OtherFabric)
        with RawPeer(node.peer_address) as stranger:
            stranger.hello(cluster, version=PEER_PROTOCOL + 1)
            assert isinstance(error_of(stranger.answer()), IncompatibleVersion)
        refused = [line for line in node.log_lines() if line.event == "peer refused"]
        assert len(refused) == 3
        assert all(line.level == "warning" for line in refused)
        assert "belongs to cluster" in str(refused[0].about["reason"])
        assert refused[0].about["peer"] == f"{77:016x}"


def test_a_node_without_a_cluster_gets_the_cluster_id_and_the_link_is_closed() -> None:
    with rostra.testing.process_node() as node, RawPeer(node.peer_address) as newcomer:
        newcomer.hello(0)
        answer = newcomer.answer()
        assert isinstance(answer, PeerWelcome) and answer.cluster == cluster_of(node)
        assert newcomer.is_hung_up_on()


def test_a_node_of_one_cluster_does_not_join_another(tmp_path: Path) -> None:
    with rostra.testing.process_node() as ours, rostra.testing.process_node(directory=tmp_path) as theirs:
        assert cluster_of(theirs) != cluster_of(ours)
        theirs.stop()
        theirs.join = (ours.peer_address,)
        with pytest.raises(NotReady, match="the data directory of this node belongs to cluster"):
            theirs.start()


class PeerCorpus(Corpus):
    """Frames that only a member may send."""

    def from_client(self) -> Frame:
        kind = self.rng.choice((PeerHello, *KINDS))
        return self._frame(kind, by_its_fields(kind))

    def publish(self) -> Frame:
        (entries,) = (kind for kind in KINDS if kind.payload)
        return self._frame(entries, by_its_fields(entries))


def expected(raw: bytes, *, greeted: bool) -> Violation | None:
    """The reason for which the link must be closed; None for a message that a member may send."""
    reader: FrameReader[Framed] = FrameReader(FROM_PEERS)
    if greeted:
        reader.frame_bytes_max = BrokerSettings().frame_bytes_max + PEER_FRAME_BYTES_MORE
    try:
        messages = reader.feed(raw)
        if messages and isinstance(messages[0][0], PeerHello) is greeted:
            return Violation.OUT_OF_ORDER if greeted else Violation.NOT_GREETED
        reader.closed()
    except PeerViolation as violation:
        return Violation(violation.reason)
    return None


@pytest.mark.requirement("CM-20:peers")
def test_every_bad_frame_of_a_peer_closes_its_link_only() -> None:
    rng = Random(SEED)
    due: Counter[Violation] = Counter()
    with rostra.testing.process_node(fsync="never") as node:
        cluster = cluster_of(node)
        corpus = PeerCorpus(rng, [1])
        assert node.pid is not None
        with RawPeer(node.peer_address) as member:
            member.hello(cluster, node=4)
            assert isinstance(member.answer(), PeerWelcome)
            for number in range(FRAMES):
                if number == WARM_UP:
                    before = resident_bytes(node.pid)
                greeted = rng.random() < 0.8
                raw = rng.choice(mutations.ALL)(corpus, corpus.from_client())
                reason = expected(raw, greeted=greeted)
                if reason is None:
                    continue
                with RawPeer(node.peer_address) as bad:
                    if greeted:
                        bad.hello(cluster, node=1000 + number)
                        assert isinstance(bad.answer(), PeerWelcome)
                    bad.send(raw)
                    bad.finish()
                due[reason] += 1
            # The one that was there all along is still linked.
            member.hello(cluster)
            assert isinstance(error_of(member.answer()), PeerViolation)
        assert resident_bytes(node.pid) - before < GROWTH_BYTES_MAX
        with node.client() as client:
            assert client.publish("afterwards", b"x").offset == 1
        assert node.running
        wait_until(lambda: closed(node).total() > due.total(), "every closing to be logged")
        logged = closed(node)
    assert {reason: count for reason, count in due.items() if logged[reason] < count} == {}
    assert set(due) >= {Violation.CHECKSUM, Violation.MALFORMED, Violation.UNKNOWN_KIND, Violation.FRAME_TOO_LARGE}


def closed(node: ProcessNode) -> Counter[Violation]:
    return Counter(
        next(one for one in Violation if f"({one})" in str(line.about["reason"]))
        for line in node.log_lines()
        if line.event == "peer link closed"
    )


def test_a_handshake_is_answered_with_welcome_or_refused() -> None:
    assert set(ANSWERS.kinds) == {PeerWelcome.kind, PeerRefused.kind, Failed.kind}, "the last from a port for clients"
