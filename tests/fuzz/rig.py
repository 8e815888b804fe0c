"""One round of fuzzing in process: a broker with its driver, a client's decoder, and counts of the outcomes.

A round begins anew from its seed, so a failure is replayed by `python -m tests.fuzz SEED ROUND`.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import msgspec

from rostra.broker.api import ConnectionAccepted, ConnectionLost, MessageReceived, Reply, Stop, SyncFailed
from rostra.broker.settings import BrokerSettings
from rostra.errors import BatchRejected, DiskUntrusted, PeerViolation, RostraError, from_wire
from rostra.model.check import check_stored
from rostra.model.decode import iterate
from rostra.wire.frames import FROM_CLIENT, FROM_NODE, FrameReader, encode
from rostra.wire.messages import ClientMessage, Ended, Failed, Hello, NodeMessage, Ping, Pong, Push
from tests.fuzz import mutations
from tests.fuzz.corpus import Corpus, Frame
from tests.unit.broker.broker_driver import BrokerDriver, partition_id
from tests.unit.wire.streams import framed

FRAMES_PER_ROUND = 500
FRAME_BYTES_MAX = 1 << 20
HELLO = encode(Hello(0, 1, 1))
SETTINGS = BrokerSettings(
    frame_bytes_max=FRAME_BYTES_MAX,
    batch_bytes_max=1 << 16,
    batch_inflated_bytes_max=1 << 18,
    topics_max=6,
    producers_per_partition_max=2,
    requests_per_connection_max=50,
    tail_bytes_max=1 << 16,
)


class Tally(msgspec.Struct):
    """Counts of what was sent and of the outcomes."""

    frames: int = 0
    kinds: Counter[str] = msgspec.field(default_factory=Counter)
    violations: Counter[str] = msgspec.field(default_factory=Counter)
    rejections: Counter[str] = msgspec.field(default_factory=Counter)
    refusals: Counter[str] = msgspec.field(default_factory=Counter)
    mutations: Counter[str] = msgspec.field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        self.frames += other.frames
        for name in ("kinds", "violations", "rejections", "refusals", "mutations"):
            getattr(self, name).update(getattr(other, name))


class Round:
    def __init__(self, seed: int, number: int) -> None:
        self.rng = Random(f"{seed}/{number}")
        self.tally = Tally()
        self.driver = BrokerDriver(SETTINGS).start()
        self.good = self.driver.connect(1)
        # A flipped bit may well delete the topic "t"; no few of them spell this name.
        self.kept = self.driver.make_topic(self.good, "kept-by-the-good-client", segment_bytes=1 << 14)
        self.corpus = Corpus(self.rng, [self.kept, self.driver.make_topic(self.good, "t")])
        self._conn = 1
        self._stranger()

    def run(self, frames: int = FRAMES_PER_ROUND) -> Tally:
        for _ in range(frames):
            if self.rng.random() < 0.8:
                self._to_node()
            else:
                self._to_client()
            self.tally.frames += 1
        self._still_serves()
        self._ends()
        return self.tally

    # --- against a node ---

    def _stranger(self) -> None:
        """A new connection, greeted most of the time."""
        self._conn += 1
        self._reader: FrameReader[ClientMessage] = FrameReader(FROM_CLIENT)
        self.driver.step(ConnectionAccepted(self._conn))
        if self.rng.random() < 0.9:
            self._feed(HELLO)

    def _to_node(self) -> None:
        mutate = self.rng.choice(mutations.WEIGHED)
        self.tally.mutations[mutate.__name__] += 1
        self._feed(mutate(self.corpus, self.corpus.from_client()))
        if mutate is mutations.truncated and self.rng.random() < 0.5:
            self._hang_up()

    def _feed(self, raw: bytes) -> None:
        driver, conn = self.driver, self._conn
        try:
            for message, payload in self._reader.feed(raw):
                self.tally.kinds[type(message).__name__] += 1
                driver.step(MessageReceived(conn, message, payload))
        except PeerViolation as violation:
            self._violated(violation)
            return
        if conn in driver.greeted:
            self._reader.frame_bytes_max = FRAME_BYTES_MAX
        chance = self.rng.random()
        driver.full = chance < 0.02
        if chance < 0.6:
            # Otherwise the disk is slow, and what comes next meets replies that wait.
            driver.settle()
        self._listen()
        if conn in driver.closed:
            self._lose()

    def _hang_up(self) -> None:
        try:
            self._reader.closed()
        except PeerViolation as violation:
            self._violated(violation)
        else:
            self._lose()

    def _violated(self, violation: PeerViolation) -> None:
        self.tally.violations[violation.reason] += 1
        assert str(violation)
        self._lose()

    def _lose(self) -> None:
        self.driver.step(ConnectionLost(self._conn))
        self._stranger()

    def _listen(self) -> None:
        """Checks that every refusal is typed and that every message of the node can be decoded."""
        for effect in self.driver.effects:
            if isinstance(effect, Reply) and isinstance(effect.message, Failed | Ended):
                self._refused(from_wire(effect.message.code, effect.message.carried))
        self.driver.effects.clear()
        self.driver.log_lines.clear()

    def _refused(self, error: RostraError) -> None:
        self.tally.refusals[type(error).__name__] += 1
        if isinstance(error, BatchRejected):
            self.tally.rejections[error.reason] += 1
        elif isinstance(error, PeerViolation):
            self.tally.violations[error.reason] += 1

    # --- against a client ---

    def _to_client(self) -> None:
        mutate = self.rng.choice(mutations.WEIGHED)
        frame = self.corpus.from_node()
        if frame.payload:
            self._to_decoder(frame)
            return
        reader: FrameReader[NodeMessage] = FrameReader(FROM_NODE, FRAME_BYTES_MAX)
        try:
            for message, _ in reader.feed(mutate(self.corpus, frame)):
                self.tally.kinds[type(message).__name__] += 1
                if isinstance(message, Failed | Ended):
                    assert str(from_wire(message.code, message.carried))
            reader.closed()
        except PeerViolation as violation:
            self.tally.violations[violation.reason] += 1

    def _to_decoder(self, frame: Frame) -> None:
        """Pushed batches, damaged or forged, reach the application whole or not at all."""
        forged = bool(self.rng.randrange(2))
        payload = mutations.forge(self.rng, frame.payload) if forged else mutations.flip(self.rng, frame.payload)
        reader: FrameReader[NodeMessage] = FrameReader(FROM_NODE, FRAME_BYTES_MAX)
        ((message, received),) = reader.feed(framed(frame.kind, frame.meta, payload))
        assert isinstance(message, Push)
        assert received is not None
        self.tally.kinds["Push"] += 1
        try:
            if forged:
                for batch in iterate(received, raw_body_bytes_max=1 << 20):
                    batch.records("t", 0)
            else:
                check_stored(received, 0, partition_id(self.corpus.topics[0]))
        except BatchRejected as rejected:
            self.tally.rejections[rejected.reason] += 1

    # --- the end ---

    def _still_serves(self) -> None:
        """Checks that a good client is still served."""
        driver = self.driver
        driver.full = False
        driver.effects.clear()
        driver.step(MessageReceived(self.good, Ping(77)))
        assert driver.received(self.good, Pong) == [Pong(77)]
        driver.publish(self.good, self.kept, b"good")
        driver.settle()
        driver.subscribe(self.good, self.kept, 999, start="last", value=1)
        driver.settle()
        assert driver.pushed(self.good, 999) == [b"good"]

    def _ends(self) -> None:
        """Nothing that was left half done keeps a node from stopping."""
        if self.rng.random() < 0.5:
            self.driver.step(SyncFailed(DiskUntrusted("EIO")))
        self.driver.step(Stop())
        self.driver.settle()
        # What waits for the fabric's word is asked for again after a while.
        self.driver.advance_ms(1_000)
        self.driver.settle()
        assert self.driver.stopped


def run(seed: int, rounds: range) -> Tally:
    whole = Tally()
    for number in rounds:
        try:
            whole.add(Round(seed, number).run())
        except Exception as error:
            raise AssertionError(f"replay with: python -m tests.fuzz {seed} {number}") from error
    return whole
