"""The cluster façade on the simulator: virtual time, and network and disk faults as the seed draws them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from rostra.broker.settings import BrokerSettings
from rostra.client.core.options import Options
from rostra.fabric.api import Fabric
from rostra.fabric.registry import FabricKind, NodeSetup
from rostra.model.ids import NodeId, Partition
from rostra.safeguards import ALL_ON, Without
from rostra.simulator.checkers import find_violations
from rostra.simulator.clients.simulated_client import FRAME_BYTES_MAX, SimulatedClient
from rostra.simulator.clock import MS_US, SECOND_US, Clock, random_for
from rostra.simulator.disk.faulty_files import FaultyFiles
from rostra.simulator.faults.fault_plan import Fault, FaultCounts, FaultPlan
from rostra.simulator.history import History
from rostra.simulator.network.client_network import ClientNetwork, SimulatedConnection
from rostra.simulator.network.peer_network import PeerNetwork
from rostra.simulator.network.splits import NetworkSplit
from rostra.simulator.trace import Trace
from rostra.simulator.world import simulated_node as simulator
from rostra.simulator.world.fabric_observer import committed_batches, partition_of, read_logs
from rostra.simulator.world.settings import raft_settings_for
from rostra.wire.frames import FROM_NODE, FrameReader, encode
from rostra.wire.messages import (
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Failed,
    Hello,
    Published,
    Subscribed,
    TopicDescribed,
)
from tests.contract.facade import (
    CONNECT_TIMEOUT_MS,
    LONG_TIMEOUT_MS,
    TIMEOUT_S,
    Cluster,
    ConditionTimeout,
    Node,
    NodeReply,
    NodeRequest,
)
from tests.contract.raw_connections import SimulatedRawConnection

SPARE_NODES = 1
"""Nodes that may join later."""
STEP_US = 10 * MS_US
FOR_EVER_US = 1_000_000 * SECOND_US


class SimulatedCoreClient(SimulatedClient):
    @property
    def now_us(self) -> int:
        return self.clock.now_us

    def later(self, callback: Callable[..., None], *args: object) -> None:
        self.clock.after(0, callback, *args)


class ContractNode(simulator.SimulatedNode):
    """A simulated node of any fabric in the registry."""

    kind: FabricKind

    def _make_fabric(self) -> Fabric:
        founds = not self.join
        seat = NodeSetup(self.id, self.address, self.peer_address, self.random, founds, self.join, self.without)
        self.fabric = self._observed(self.kind.make(seat))
        return self.fabric

    def voters(self) -> dict[Partition, tuple[str, tuple[NodeId, ...]]]:
        """None: not every fabric has voters, and no contract test needs them."""
        return {}


class SplitNetwork(ClientNetwork):
    """A client network with splits; a client is on the side of the node whose number is in its name."""

    def __init__(self, clock: Clock, plan: FaultPlan, fault_counts: FaultCounts, random: Random) -> None:
        super().__init__(clock, plan, fault_counts, random)
        self._sides: dict[Node, int] = {}
        self._held: list[SimulatedConnection] = []

    def split(self, sides: dict[Node, int]) -> None:
        self._sides = sides
        for link in list(self.links.values()):
            if self._crosses(link):
                # Neither end is notified; both notice by their timeouts.
                link.cut_off = True
                link.up.cut_us = link.down.cut_us = self.clock.now_us

    def heal(self) -> None:
        self._sides = {}
        held, self._held = self._held, []
        for link in held:
            self._try_connect(link)

    def _crosses(self, link: SimulatedConnection) -> bool:
        here = int(link.client.name.rpartition("@")[2])
        assert isinstance(link.node, ContractNode)
        return self._sides.get(here) != self._sides.get(link.node.id - 1)

    def _try_connect(self, link: SimulatedConnection) -> None:
        if self._crosses(link):
            self._held.append(link)
        else:
            super()._try_connect(link)


class RequestClient:
    """Sends one request and keeps the reply; reconnects if the connection is lost."""

    def __init__(self, network: ClientNetwork, node: Node, address: str, request: bytes) -> None:
        self.name = f"asker@{node}"
        self.answer: NodeReply | None = None
        self._network = network
        self._address = address
        self._request = request
        self._reader = FrameReader(FROM_NODE, FRAME_BYTES_MAX)
        self._dials = 1
        network.dial(self, self._dials, address)

    def opened(self, link: SimulatedConnection) -> None:
        link.up.send(encode(Hello(0, PROTOCOL_MIN, PROTOCOL_MAX)))
        link.up.send(self._request)

    def received(self, link: SimulatedConnection, chunk: bytes) -> None:
        for message, _ in self._reader.feed(chunk):
            if isinstance(message, Published | Subscribed | TopicDescribed | Failed):
                self.answer = message

    def lost(self, link: SimulatedConnection, reason: str) -> None:
        if self.answer is None:
            self._reader = FrameReader(FROM_NODE, FRAME_BYTES_MAX)
            self._dials += 1
            self._network.dial(self, self._dials, self._address)

    def congested(self, link: SimulatedConnection) -> None: ...
    def drained(self, link: SimulatedConnection) -> None: ...
    def record_in_flight(self, link: SimulatedConnection) -> None: ...


class SimulatedCluster(Cluster):
    def __init__(
        self,
        kind: FabricKind,
        count: int,
        seed: int,
        without: Without = ALL_ON,
        settings: BrokerSettings | None = None,
    ) -> None:
        self.guarantees = kind.guarantees
        self._settings = settings or limits(seed)
        self._seed = seed
        self._random = random_for(seed, "contract")
        self._clock = Clock()
        self._trace = Trace(self._clock)
        self._fault_counts = FaultCounts()
        self._history = History(replicated=count > 1)
        self._plan = network_faults(seed)
        self._network = SplitNetwork(self._clock, self._plan, self._fault_counts, random_for(seed, "network"))
        self._peer_network = PeerNetwork(
            self._clock,
            self._trace,
            self._plan,
            self._fault_counts,
            self._history,
            random_for(seed, "mesh"),
            (kind,),
        )
        self._network.fault_free = self._peer_network.fault_free = False
        self._nodes = [self._build(kind, number, without) for number in range(1, count + SPARE_NODES + 1)]
        self._peer_network.add(self._nodes)
        self._started = count
        self._clients: dict[tuple[Node, int], SimulatedCoreClient] = {}
        self._raw_connections = 0
        self._new_clients = 0
        for number in range(count):
            self._nodes[number].join = (self._nodes[0].peer_address,) if number else ()
        self.restart(*range(count))
        self.await_members(count)

    def _build(self, kind: FabricKind, number: int, without: Without) -> ContractNode:
        node = ContractNode(
            number,
            self._clock,
            self._trace,
            self._plan,
            self._fault_counts,
            self._history,
            FaultyFiles(random_for(self._seed, f"disk {number}")),
            self._settings,
            raft_settings_for(self._plan, self._random),
            random_for(self._seed, f"node {number}"),
            without,
        )
        node.kind = kind
        node.client_network, node.peer_network = self._network, self._peer_network
        node.fault_free = False
        self._network.hosts[node.address] = node
        return node

    def find_violations(self) -> list[str]:
        """Violations that the checkers of the simulator find, besides what the test asserts."""
        history = self._history
        for node in self._nodes:
            if node.fabric is not None:
                commits = node.fabric.commits()
                for partition, batches in read_logs(node.files).items():
                    history.final_logs[node.id, partition] = committed_batches(batches, commits.get(partition, 0))
        return find_violations(history)

    # --- clients and time ----------------------------------------------------------------------------

    @property
    def count(self) -> int:
        return self._started

    @property
    def running(self) -> list[Node]:
        return [number for number, node in enumerate(self._nodes) if node.up]

    def address(self, node: Node) -> str:
        return self._nodes[node].address

    @property
    def now_us(self) -> int:
        return self._clock.now_us

    def client(self, node: Node, timeout_ms: int) -> SimulatedCoreClient:
        found = self._clients.get((node, timeout_ms))
        if found is None:
            found = self._clients[node, timeout_ms] = self._client(f"{timeout_ms}@{node}", node, timeout_ms)
        return found

    def new_client(self, node: Node, *, auto_create: bool = False) -> SimulatedCoreClient:
        self._new_clients += 1
        return self._client(f"newcomer {self._new_clients}@{node}", node, LONG_TIMEOUT_MS, auto_create=auto_create)

    def _client(self, name: str, node: Node, timeout_ms: int, *, auto_create: bool = False) -> SimulatedCoreClient:
        options = Options(
            (self.address(node),),
            auto_create=auto_create,
            connect_timeout_ms=CONNECT_TIMEOUT_MS,
            call_timeout_ms=timeout_ms,
            delivery_timeout_ms=timeout_ms,
            backoff_ms_max=200,
        )
        random = random_for(self._seed, f"client {name}")
        client = SimulatedCoreClient(name, self._clock, self._trace, self._history, self._network, options, random)
        client.start()
        return client

    def run_until(self, true: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
        deadline_us = self._clock.now_us + int(timeout_s * SECOND_US)
        while not true():
            if self._history.exceptions:
                raise AssertionError(self._history.exceptions[0])
            if self._clock.now_us >= deadline_us:
                story = "\n".join(self._trace.lines())
                raise ConditionTimeout(
                    f"not within {timeout_s:g} virtual seconds of seed {self._seed}: {what}\n{story}"
                )
            self._clock.run_until(self._clock.now_us + STEP_US)

    def request_node(self, node: Node, message: NodeRequest, payload: bytes | bytearray = b"") -> NodeReply:
        requester = RequestClient(self._network, node, self.address(node), encode(message, len(payload)) + payload)
        self.run_until(lambda: requester.answer is not None, f"node {node} to answer {message}")
        assert requester.answer is not None
        return requester.answer

    def raw_connection(self, node: Node) -> SimulatedRawConnection:
        self._raw_connections += 1
        return SimulatedRawConnection(f"wire{self._raw_connections}@{node}", self._network, self.address(node))

    def segments(self, node: Node, partition: Partition) -> list[bytes]:
        files = self._nodes[node].files
        paths = [path for path in files.paths("topics") if path.endswith(".log") and partition_of(path) == partition]
        return [files.read_whole(path) for path in sorted(paths)]

    # --- faults --------------------------------------------------------------------------------------

    def crash(self, *nodes: Node) -> None:
        """Kills the process or cuts the power, as the seed draws."""
        for node in nodes:
            self._nodes[node].crash(power=self._random.random() < 0.5)

    def cut_power(self) -> None:
        for node in self.running:
            self._nodes[node].crash(power=True)

    def restart(self, *nodes: Node) -> None:
        for node in nodes:
            self._nodes[node].host_up = True
            assert self._nodes[node].start()
        self.run_until(lambda: all(self._nodes[node].listening for node in nodes), f"nodes {nodes} to listen")

    def pause(self, node: Node) -> None:
        self._nodes[node].pause(FOR_EVER_US)

    def resume(self, node: Node) -> None:
        self._nodes[node].resume()

    def partition(self, *sides: list[Node]) -> None:
        side_of = {node: number for number, side in enumerate(sides) for node in side}
        ids = {NodeId(node + 1): side for node, side in side_of.items()}
        ways = frozenset((one, other) for one in ids for other in ids if ids[one] != ids[other])
        now_us = self._clock.now_us
        self._peer_network.splits.append(NetworkSplit(Fault.HALVES, ways, now_us, FOR_EVER_US, flaps=False))
        self._network.split(side_of)

    def heal(self) -> None:
        self._peer_network.splits.clear()
        self._network.heal()

    def join(self, through: Node = 0) -> Node:
        node, self._started = self._started, self._started + 1
        self._nodes[node].join = (self._nodes[through].peer_address,)
        self.restart(node)
        return node


def network_faults(seed: int) -> FaultPlan:
    """A fault plan of the seed with network delays, slow links and disks, lost, duplicated and reordered messages.

    It has no faults of nodes: the tests inject those.
    """
    drawn = FaultPlan.draw(random_for(seed, "weather"))
    no_intervals = {name: 0 for name in FaultPlan.__struct_fields__ if name.endswith("_every_us")}
    return msgspec.structs.replace(drawn, **no_intervals, sync_fails=0.0, write_fails=0.0, crash_in_io=0.0, syncs=True)


def limits(seed: int) -> BrokerSettings:
    """Settings with pushes and reads so small that a few records need several."""
    random = random_for(seed, "limits")
    return msgspec.structs.replace(
        BrokerSettings(),
        heartbeat_ms=400,
        group_partitions=2,
        group_segment_bytes=1 << 12,
        retention_check_ms=200,
        tail_bytes_max=random.choice((1 << 10, 1 << 20)),
        push_bytes_max=random.choice((1 << 9, 1 << 20)),
        read_bytes_max=random.choice((1 << 9, 1 << 20)),
    )
