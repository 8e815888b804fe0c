"""Moves of topics that come and go, and of a node that crashes."""

from __future__ import annotations

import msgspec

from rostra.safeguards import ALL_ON, Without
from rostra.simulator.disk.faulty_files import SimulatedCrash
from rostra.wire.messages import (
    CreateTopic,
    DeleteTopic,
    Failed,
    Publish,
    Subscribe,
    Subscribed,
    TopicCreated,
    TopicDropped,
    TopicSettings,
    Unsubscribe,
    Unsubscribed,
)
from tests.unit.broker.play import OPERATOR, PLENTY, SEGMENT_BYTES, Place, Sent, move, records_of
from tests.unit.broker.play_readers import ReadersPlay
from tests.unit.broker.reference import Topic


class TopicsPlay(ReadersPlay):
    def __init__(self, seed: int, without: Without = ALL_ON) -> None:
        super().__init__(seed, without)
        self.dead: dict[str, int] = {}
        """The last topic of a name that was deleted."""

    # --- topics ---

    @move(name=2, partitions=1, exclusive=2, compaction=1, retention=3)
    def make_or_delete(self, *, name: int, partitions: int, exclusive: int, compaction: int, retention: int) -> None:
        which = f"t/{name}"
        if which in self.reference.topics:
            if len(self.reference.topics) > 1:
                self.delete(which)
            return
        settings = TopicSettings(
            partitions=partitions + 1,
            segment_bytes=SEGMENT_BYTES,
            ownership="shared" if exclusive else "exclusive",
            compaction=bool(compaction),
            tombstone_ms=2000,
            retention_ms=3000 if retention == 1 else 0,
            retention_bytes=9000 if retention == 2 else 0,
        )
        made = self.ask(CreateTopic(self.desk.request(), which, settings), TopicCreated)
        self.reference.topics[which] = Topic(made.topic.topic, made.topic.settings)
        assert msgspec.structs.replace(made.topic.settings, replicas=0) == settings

    def delete(self, name: str) -> None:
        self.desk.say(OPERATOR, DeleteTopic(request := self.desk.request(), name))
        self.desk.settle()
        over = [number for number, reading in self.readings.items() if reading.place[0] == name]
        for number in over:
            del self.readings[number]
        self.listen()
        assert isinstance(self.replies.pop(request), TopicDropped)
        for number in over:
            assert self.ended.pop(number).code == "TopicDeleted"
        self.dead[name] = self.reference.delete(name)

    @move(name=2)
    def ask_for_the_dead(self, *, name: int) -> None:
        """A topic that was made again is another one."""
        which = f"t/{name}"
        if which in self.dead:
            message = Subscribe(self.desk.request(), self.next_number(), self.dead[which], 0, "earliest", 0, PLENTY)
            refused = self.ask(message, Failed)
            expected = ("TopicRecreated",) if which in self.reference.topics else ("TopicDeleted",)
            assert refused.code in (*expected, "UnknownTopic"), refused

    # --- crashes ---

    @move(_settled=False, power=1, gives_up=1)
    def crash(self, *, power: int, gives_up: int) -> None:
        """What was not acknowledged is sent again; if its producer gives up, a beginning of it may be there."""
        if not power:
            self.desk.disk.flush()
        self.start_again(bool(power), bool(gives_up))

    @move(_settled=False, operations=40, keeps_house=1, power=1, gives_up=1)
    def crash_in_the_middle(self, *, operations: int, keeps_house: int, power: int, gives_up: int) -> None:
        """The process ends between two changes to its files."""
        self.desk.files.faults.operations_left = operations
        try:
            if keeps_house:
                self.keep_house_once()
            self.desk.settle()
        except SimulatedCrash:
            pass
        self.desk.files.faults.operations_left = None
        self.start_again(bool(power), bool(gives_up))

    def keep_house_once(self) -> None:
        """What a node does by itself to keep its logs small."""

    def start_again(self, power: bool, gives_up: bool) -> None:
        # What was acknowledged until now must be there.
        self.listen()
        self.desk = self.desk.after_a_crash(power=power)
        self.readings.clear()
        self.conns.clear()
        self.pushes.clear()
        self.ended.clear()
        self.replies.clear()
        self.desk.connect(OPERATOR)
        doubts, self.doubts = self.doubts, []
        self.restarted()
        for sent in doubts:
            if gives_up and self.reference.topics[sent.place[0]].settings.ownership == "shared":
                continue
            self.sent_again(sent)
        if gives_up:
            for place in self.places():
                self.adopt(place, [sent for sent in doubts if sent.place == place])
        for place in self.places():
            self.look(place)

    def restarted(self) -> None:
        """Who was connected comes again."""

    def sent_again(self, sent: Sent) -> None:
        topic, request = self.topic_id(sent.place), self.desk.request()
        self.judged(sent.place, sent.producer)
        self.desk.say(self.conn(sent.producer), Publish(request, topic, sent.place[1], "all", True), sent.batch)
        self.doubts.append(sent._replace(request=request))
        self.settle()

    def adopt(self, place: Place, doubts: list[Sent]) -> None:
        """The producers start anew; what the log kept of their last words is a beginning of these."""
        part = self.part(place)
        if self.reference.topics[place[0]].settings.ownership != "shared" or not doubts:
            return
        number = self.next_number()
        begun = self.ask(self._subscribe(place, number, "offset", max(part.end, part.first)), Subscribed)
        found = records_of(self.pushes.pop((OPERATOR, number), []), begun.next)
        self.ask(Unsubscribe(self.desk.request(), number), Unsubscribed)
        for sent in doubts:
            known = part.producers[sent.producer]
            part.producers[sent.producer] = known._replace(epoch=known.epoch + 1, expected=0, sent={})
            kept, found = found[: len(sent.rows)], found[len(sent.rows) :]
            if kept:
                assert [record._replace(offset=0) for record in kept] == sent.rows
                part.append(kept)
            else:
                assert not found
