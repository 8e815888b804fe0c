"""Split votes and heartbeats: the Raft state machine on virtual time, without randomness.

Two members with equal election timeouts request votes at the same time, and each votes for itself: no candidate wins,
term after term. With different timeouts there is a leader, and its heartbeats keep it in office.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random

from rich.console import Console
from rich.text import Text

from rostra.demo.scenario import ScenarioFailed
from rostra.fabric.api import Append, Echo, FabricEffect, LogLine, Now, Persist, Recovered, Send, Sync
from rostra.fabric.consensus.hard_state import GroupConfig, GroupConfigAt, HardState
from rostra.fabric.consensus.messages import GroupMessage, RequestVoteReply
from rostra.fabric.consensus.raft_group import RaftGroup
from rostra.fabric.consensus.roles import Role
from rostra.fabric.raft.settings import RaftSettings
from rostra.model.batch import last_offset
from rostra.model.ids import NodeId, Partition, PartitionIndex, TopicId

HERE = Partition(TopicId(7), PartitionIndex(0))
NODES = (NodeId(1), NodeId(2))
STEP_US = 1_000
"""Duration of a message and of a write to disk."""
ROUNDS_MS = 1_600
ELECTION_MS = 2_000
CALM_MS = 300
TERMS_MIN = 3
HEARTBEATS_MIN = 4
LOG_EVENTS = ("asks for votes", "leads", "follows")


class ShortestTimeout(Random):
    """No randomness: every timeout is the shortest."""

    def uniform(self, a: float, b: float) -> float:
        return a


class LongestTimeout(ShortestTimeout):
    """Every timeout is the longest."""

    def uniform(self, a: float, b: float) -> float:
        return b


class VirtualNetwork:
    """Virtual time, two members, and a network with the same delay for every message."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()
        self.settings = RaftSettings()
        self.us = 0
        self.heartbeats = 0
        self.shows_heartbeats = False
        self.members = {node: SimulatedMember(self, node) for node in NODES}

    @property
    def now(self) -> Now:
        return Now(self.us, self.us)

    def later(self, after_us: int, action: Callable[[], None]) -> None:
        heappush(self._events, (self.us + after_us, next(self._order), action))

    def run(self, ms: int) -> None:
        until_us = self.us + ms * 1000
        while self._events and self._events[0][0] <= until_us:
            self.us, _, action = heappop(self._events)
            action()
        self.us = until_us

    def print_line(self, node: NodeId | None, role: str, text: str, style: str = "cyan") -> None:
        who = f"node {node}" if node is not None else ""
        line = f"{self.us / 1000:9.1f} ms  {who:<6}  {role:<12}  info     {text}" if node else f"{'':9}     {text}"
        self._console.print(Text(line, style=style), soft_wrap=True)

    def leaders(self) -> list[NodeId]:
        return [node for node, member in self.members.items() if member.group.role is Role.LEADER]


class SimulatedMember:
    """One member and its disk, on which every write takes the same time."""

    def __init__(self, network: VirtualNetwork, node: NodeId) -> None:
        self._network = network
        self.node = node
        self._end = 0
        self._fires_at: int | None = None
        hard = HardState(configs=(GroupConfigAt(0, 0, GroupConfig(NODES)),))
        found = Recovered(HERE, 0, 0, ())
        tokens = count(1)
        self.group = RaftGroup(
            node, found, hard, settings=network.settings, random=ShortestTimeout(), next_token=lambda: next(tokens)
        )
        self.group.name = "news"

    def start(self) -> None:
        self.group.start(self._network.now)
        self.step()
        self._heartbeat()

    def step(self) -> None:
        for effect in self.group.take_effects():
            self._carry_out(effect)
        at_us = self.group.deadline_us
        if at_us is not None and at_us != self._fires_at:
            self._fires_at = at_us
            self._network.later(max(at_us - self._network.us, 0), lambda: self._fire(at_us))

    def _fire(self, at_us: int) -> None:
        if self.group.deadline_us == at_us:
            self._fires_at = None
            self.group.deadline_passed(self._network.now)
            self.step()

    def _carry_out(self, effect: FabricEffect) -> None:
        network = self._network
        match effect:
            case Send():
                self._send(effect)
            case Persist():
                network.later(STEP_US, lambda: self._persisted(effect))
            case Echo():
                self.group.persisted(network.now, effect.number)
                self.step()
            case Append():
                self._end = last_offset(effect.batch) + 1
            case Sync():
                end = self._end
                network.later(STEP_US, lambda: self._synced(end))
            case LogLine() if effect.event in LOG_EVENTS:
                about = effect.about
                leader = f", leader node {about['leader']}" if "leader" in about else ""
                line = f"{effect.event} {about['partition']}, term {about['term']}{leader}"
                network.print_line(self.node, str(about["role"]), line)
            case _:
                pass

    def _persisted(self, effect: Persist) -> None:
        for following in effect.then:
            self._carry_out(following)

    def _synced(self, end: int) -> None:
        self.group.synced(self._network.now, 0, end)
        self.step()

    def _send(self, effect: Send) -> None:
        peer = self._network.members[effect.peer]
        message = effect.message
        payload = b"".join(effect.payload)
        if isinstance(message, RequestVoteReply) and not message.pre_vote:
            answer = "votes for" if message.granted else "has already voted, not for"
            self._network.print_line(
                self.node, str(self.group.role), f"{answer} node {effect.peer}, term {message.requested_term}"
            )
        self._network.later(STEP_US, lambda: peer.receive(self.node, message, payload))

    def receive(self, sender: NodeId, message: object, payload: bytes) -> None:
        assert isinstance(message, GroupMessage)
        self.group.receive(self._network.now, sender, message, bytearray(payload) if payload else None)
        self.step()

    def _heartbeat(self) -> None:
        network = self._network
        for peer, beat in self.group.heartbeats(network.now):
            network.heartbeats += 1
            if network.shows_heartbeats:
                network.print_line(self.node, str(self.group.role), f"heartbeat to node {peer}, term {self.group.term}")
            reply = network.members[peer].group.heartbeat_received(network.now, self.node, beat)
            network.members[peer].step()
            if reply is not None:
                self.group.heartbeat_answered(network.now, peer, reply)
        self.step()
        network.later(network.settings.heartbeat_us, self._heartbeat)


def show_split_vote(console: Console) -> None:
    network = VirtualNetwork(console)
    timeout_ms = network.settings.election_timeout_ms_min
    network.print_line(None, "", f"two nodes, both with an election timeout of exactly {timeout_ms} ms", "bold")
    for member in network.members.values():
        member.start()
    network.run(ROUNDS_MS)
    term = max(member.group.term for member in network.members.values())
    if network.leaders() or term < TERMS_MIN:
        raise ScenarioFailed(
            f"equal timeouts give no leader, term after term; term {term}, leaders {network.leaders()}"
        )
    network.print_line(None, "", f"{term} terms, and no leader in any of them: each vote was split", "bold")
    network.print_line(None, "", "now node 2 waits longer than node 1", "bold")
    network.members[NODES[1]].group.random = LongestTimeout()
    network.run(ELECTION_MS)
    if len(network.leaders()) != 1:
        raise ScenarioFailed("different timeouts give one leader")
    leader = network.members[network.leaders()[0]]
    elected, network.heartbeats, network.shows_heartbeats = leader.group.term, 0, True
    network.print_line(
        None, "", f"node {leader.node} leads in term {elected}; its heartbeats keep it in office", "bold"
    )
    network.run(CALM_MS)
    if network.heartbeats < HEARTBEATS_MIN or leader.group.term != elected or network.leaders() != [leader.node]:
        raise ScenarioFailed("heartbeats keep the leader")
