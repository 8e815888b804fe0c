"""ZeroMQ PUB/SUB: no broker at all, the publisher serves its subscribers itself."""

from collections.abc import Iterable, Sequence

import zmq

from benchmarks.contender import Durability, Endpoint, Pace, PacedContender, Stage
from benchmarks.records import Inbox
from benchmarks.servers import Servers, free_port

TURN_RECORDS = 500


class ZeroMq(PacedContender):
    name = "ZeroMQ, no broker"
    durability = Durability.NOTHING
    settings = ("pyzmq PUB/SUB over TCP, high-water marks off",)

    def __init__(self, *, subscribers: int) -> None:
        # A PUB socket drops what nobody has asked for yet, so the publisher counts subscriptions.
        self._subscribers = subscribers

    def start(self, servers: Servers) -> Endpoint:
        return Endpoint(port=free_port())

    def publish(self, endpoint: Endpoint, topic: str, stage: Stage, messages: Iterable[bytes]) -> None:
        with zmq.Context() as context, self._bind(context, endpoint, stage) as socket:
            stage.ready()
            stage.wait_for_start()
            send = socket.send
            for message in messages:
                send(message)
            stage.finished()

    def publish_paced(self, endpoint: Endpoint, topic: str, stage: Stage, pace: Pace) -> None:
        with zmq.Context() as context, self._bind(context, endpoint, stage) as socket:
            stage.ready()
            stage.wait_for_start()
            for value in pace.values():
                socket.send(value)
            stage.finished()

    def subscribe(self, endpoint: Endpoint, topic: str, stage: Stage, inboxes: Sequence[Inbox]) -> None:
        with zmq.Context() as context:
            poller = zmq.Poller()
            receivers = {}
            for inbox in inboxes:
                socket = context.socket(zmq.SUB)
                socket.set_hwm(0)
                socket.setsockopt(zmq.LINGER, 0)
                socket.setsockopt(zmq.SUBSCRIBE, b"")
                socket.connect(f"tcp://127.0.0.1:{endpoint.port}")
                poller.register(socket, zmq.POLLIN)
                receivers[socket] = inbox
            stage.ready()
            timeout_ms = int(stage.timeout_s * 1000)
            while not all(inbox.is_full() for inbox in inboxes):
                readable = poller.poll(timeout_ms)
                if not readable:
                    break
                for socket, _ in readable:
                    drain(socket, receivers[socket])
            stage.finished()
            for socket in receivers:
                socket.close()

    def _bind(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: Endpoint, stage: Stage) -> zmq.Socket[bytes]:
        # XPUB is PUB that also shows subscriptions; VERBOSE shows each, not just the first.
        socket = context.socket(zmq.XPUB)
        socket.set_hwm(0)
        socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        socket.setsockopt(zmq.LINGER, int(stage.timeout_s * 1000))
        socket.bind(f"tcp://127.0.0.1:{endpoint.port}")
        for _ in range(self._subscribers):
            if not socket.poll(int(stage.timeout_s * 1000)):
                raise TimeoutError("a subscriber never connected")
            socket.recv()
        return socket


def drain(socket: zmq.Socket[bytes], inbox: Inbox) -> None:
    """Take what has arrived, within a bound that lets the other sockets have their turn."""
    receive, append = socket.recv, inbox.append
    try:
        for _ in range(TURN_RECORDS):
            append(receive(zmq.NOBLOCK))
    except zmq.Again:
        return
