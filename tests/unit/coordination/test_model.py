"""The model of a coordination service: stale reads, sessions, lost answers, a wiped service."""

from __future__ import annotations

from random import Random

from rostra.fabric.coordination import (
    Change,
    CoordinationAnswer,
    CoordinationMessage,
    CoordinationRequest,
    CreateZnode,
    DataRead,
    DeleteZnode,
    FailureReason,
    GetChildren,
    GetData,
    GetStat,
    Multi,
    Operation,
    RequestFailed,
    Result,
    SessionDisconnected,
    SessionExpired,
    SessionResumed,
    SessionStarted,
    SetData,
    StatRead,
    SyncServer,
    WatchFired,
    ZnodeCreated,
)
from rostra.simulator.clock import SECOND_US, Clock
from rostra.simulator.coordination.service import CoordinationService
from rostra.simulator.coordination.simulated_session import SimulatedSession


class Model:
    """A service and its clients, run until nothing is under way."""

    def __init__(self, seed: int = 0) -> None:
        self.clock = Clock()
        self.random = Random(seed)
        self.service = CoordinationService(self.clock, self.random)

    def client(self, server: int = 0) -> ModelClient:
        client = ModelClient(self, server)
        client.session.start()
        self.run()
        return client

    def run(self, seconds: int = 1) -> None:
        self.clock.run_until(self.clock.now_us + seconds * SECOND_US)


class ModelClient:
    def __init__(self, model: Model, server: int) -> None:
        self.model = model
        self.heard: list[CoordinationMessage] = []
        self.session = SimulatedSession(model.service, model.clock, model.random, self.heard.append)
        self.session.next_server = server
        self._number = 0

    def submit(self, operation: Operation) -> None:
        self._number += 1
        self.session.submit(CoordinationRequest(self._number, operation))

    def call(self, operation: Operation) -> Result:
        self.submit(operation)
        self.model.run()
        return next(
            message.result
            for message in self.heard
            if isinstance(message, CoordinationAnswer) and message.number == self._number
        )

    def forget(self) -> None:
        self.heard.clear()


def data_of(result: Result) -> bytes:
    assert isinstance(result, DataRead)
    return result.data


def test_a_read_at_a_lagging_server_is_stale_until_a_sync() -> None:
    model = Model()
    writer, reader = model.client(0), model.client(1)
    writer.call(CreateZnode("/a", b"old"))
    model.service.lag(1, True)
    writer.call(SetData("/a", b"new"))
    assert data_of(reader.call(GetData("/a"))) == b"old"
    reader.submit(SyncServer("/a"))
    reader.submit(GetData("/a"))
    model.run()
    assert len(reader.heard) == 2  # neither the sync nor the read behind it is answered yet
    model.service.lag(1, False)
    model.run()
    answer = reader.heard[-1]
    assert isinstance(answer, CoordinationAnswer) and data_of(answer.result) == b"new"


def test_a_session_reads_what_it_wrote() -> None:
    model = Model()
    client = model.client(1)
    model.service.lag(1, True)
    client.submit(CreateZnode("/a", b"mine"))
    client.submit(GetData("/a"))
    model.run()
    assert client.heard[1:] == []
    model.service.lag(1, False)
    model.run()
    answer = client.heard[-1]
    assert isinstance(answer, CoordinationAnswer) and data_of(answer.result) == b"mine"


def test_a_client_does_not_go_back_to_a_server_that_is_behind_it() -> None:
    model = Model()
    client = model.client(0)
    model.service.lag(1, True)
    client.call(CreateZnode("/a"))
    client.session.next_server = 1
    client.session.disconnect()
    model.run()
    assert client.heard[-1:] == [SessionDisconnected()]
    model.service.lag(1, False)
    model.run()
    assert client.heard[-1:] == [SessionResumed(client.session.session)]


def test_a_lost_answer_leaves_the_outcome_unknown_and_the_write_done() -> None:
    model = Model()
    client = model.client()
    client.session.lose_messages_after(0)
    client.submit(CreateZnode("/a"))
    model.run()
    client.forget()
    client.session.disconnect()
    assert client.heard[0] == CoordinationAnswer(1, RequestFailed(FailureReason.OUTCOME_UNKNOWN))
    assert client.heard[1] == SessionDisconnected()
    model.run()
    assert client.call(CreateZnode("/a")) == RequestFailed(FailureReason.ZNODE_EXISTS)


def test_a_lost_request_is_not_executed() -> None:
    model = Model()
    client = model.client()
    client.submit(CreateZnode("/a"))
    client.session.disconnect(requests_arriving=0)
    model.run()
    assert client.call(GetStat("/a")) == StatRead(None)


def test_an_expired_session_loses_its_ephemeral_znodes_before_its_client_hears_of_it() -> None:
    model = Model()
    client, other = model.client(), model.client(1)
    client.call(CreateZnode("/a", ephemeral=True))
    other.call(GetStat("/a", watch=True))
    client.session.isolate()
    model.run(5)
    assert other.heard[-1] != WatchFired("/a", Change.DELETED)
    model.run(2)
    assert other.heard[-1] == WatchFired("/a", Change.DELETED)
    assert client.heard[-1] == SessionDisconnected()
    expired = client.session.session
    client.session.rejoin()
    model.run()
    assert client.heard[-2:] == [SessionExpired(expired), SessionStarted(client.session.session)]


def test_a_failing_multi_leaves_no_trace() -> None:
    model = Model()
    client = model.client()
    client.call(GetChildren("/", watch=True))
    failing = Multi((CreateZnode("/a-", sequential=True), DeleteZnode("/missing")))
    assert client.call(failing) == RequestFailed(FailureReason.NO_ZNODE, 1)
    assert client.call(CreateZnode("/a-", sequential=True)) == ZnodeCreated("/a-0000000000")
    assert sum(isinstance(message, WatchFired) for message in client.heard) == 1


def test_a_watch_fires_once_and_before_the_answer() -> None:
    model = Model()
    client = model.client()
    client.call(GetStat("/a", watch=True))
    client.forget()
    client.call(CreateZnode("/a"))
    client.call(SetData("/a", b"again"))
    assert client.heard[0] == WatchFired("/a", Change.CREATED)
    assert [type(message) for message in client.heard[1:]] == [CoordinationAnswer, CoordinationAnswer]


def test_requests_without_a_connection_are_refused() -> None:
    model = Model()
    client = model.client()
    client.session.isolate()
    assert client.call(SyncServer("/")) == RequestFailed(FailureReason.NOT_CONNECTED)


def test_a_wiped_service_ends_all_sessions() -> None:
    model = Model()
    client = model.client()
    client.call(CreateZnode("/a"))
    expired = client.session.session
    model.service.start(committed=0)
    model.run(10)
    assert SessionExpired(expired) in client.heard
    assert client.call(GetStat("/a")) == StatRead(None)


def test_the_same_seed_gives_the_same_course() -> None:
    def course() -> list[CoordinationMessage]:
        model = Model(7)
        client = model.client()
        for number in range(20):
            client.submit(CreateZnode(f"/{number}"))
            if number % 7 == 3:
                client.session.disconnect()
                model.run()
        model.run()
        return client.heard

    assert course() == course()
