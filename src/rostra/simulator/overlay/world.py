"""One seed: a ring grows, suffers, comes to rest, and is judged."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import xxhash

from rostra.fabric.overlay import join
from rostra.fabric.overlay.effects import Effect, LookupDone
from rostra.fabric.overlay.lookup import find
from rostra.fabric.overlay.members import Member
from rostra.fabric.overlay.ring import remember
from rostra.fabric.overlay.routing import owns
from rostra.fabric.overlay.state import Overlay, former_neighbours
from rostra.model.ids import NodeId
from rostra.model.keyspace import Key
from rostra.safeguards import Without
from rostra.simulator.overlay.ideal import (
    acquainted,
    in_order,
    largest_gap,
    owner_of,
    shown,
    wrong_fingers,
    wrong_neighbours,
)
from rostra.simulator.overlay.invariants import broken_invariants, keeps_promise, unordered_list
from rostra.simulator.overlay.network import Network
from rostra.simulator.overlay.scenario import ROUND_US, ChurnScenario

VIOLATIONS_MAX = 5
LOOKUPS = 12
CONTACTS = 3
CHECKED = "list changes with invariants checked"
SUSPENDED = "list changes during unification"
NAMED = "contacts named by an operator"
EVENTS_MAX = 2_000_000
"""Ten times what a seed needs: beyond it, packets beget packets."""
MAIN_RING = 0


class OverlayWorld:
    """Runs one scenario. `violations` says what was wrong; it ends at the first few."""

    def __init__(
        self, scenario: ChurnScenario, random: Random, without: Without, show: Callable[[str], None] | None = None
    ) -> None:
        self.scenario = scenario
        self.violations: list[str] = []
        self.counts = dict.fromkeys(("joins", "crashes", "restarts", "splits", NAMED, CHECKED, SUSPENDED), 0)
        self.rounds_to_heal = 0
        self._random = random
        self._without = without
        self._show = show
        self._network = Network(Random(random.getrandbits(64)), scenario.settings)
        self._network.told = self._told
        self._next_node = 0
        self._crashed: dict[NodeId, Overlay] = {}
        self._digest = xxhash.xxh3_64()
        self._claimed = False
        self._seen: dict[NodeId, tuple[Member, ...]] = {}
        self._ring_of: dict[Member, int] = {}
        """The ring that each member is or was in. A restarted node begins a ring of its own beside the main ring."""
        self._rings_begun = MAIN_RING
        self._unifying = False
        """Whether the main ring is being joined with another one, or lost a member that nobody could keep."""
        self._done: list[LookupDone] = []

    @property
    def nodes(self) -> dict[NodeId, Overlay]:
        return self._network.nodes

    @property
    def network(self) -> Network:
        return self._network

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def run(self) -> None:
        for phase in (self._grow, self._churn, self._split, self._rest):
            phase()
            if self.violations:
                return

    # --- phases ---

    def _grow(self) -> None:
        """A founder, and as many joins as the invariants need; then they hold at every event."""
        self._start_node()
        base = min(self.scenario.nodes, self.scenario.settings.successors_max + 1)
        for _ in range(base - 1):
            self._pass(self._random.uniform(0, 0.5))
            self._start_node()
        self._await_neighbours(self.scenario.rounds_to_heal(base), "a ring that only grew")
        self._claimed = self.scenario.claims_invariants
        self._ring_of = dict.fromkeys((one.me for one in self.nodes.values()), MAIN_RING)

    def _churn(self) -> None:
        """The rest joins while others crash and return."""
        scenario, network = self.scenario, self._network
        network.loss, network.duplication = scenario.loss, scenario.duplication
        end_us = network.now_us + scenario.churn_rounds * ROUND_US
        missing = scenario.nodes - len(self.nodes) - scenario.split_joins
        for _ in range(missing):
            network.at(network.now_us + int(self._random.uniform(0, 0.6) * (end_us - network.now_us)), self._start_node)
        while network.now_us < end_us and not self.violations:
            self._pass(self._random.expovariate(scenario.crashes))
            self._strike()
            for node in sorted(self._crashed):
                if self._random.random() < scenario.restarts:
                    self._restart(node)

    def _split(self) -> None:
        if not self.scenario.split_rounds or self.violations:
            return
        self._claimed = False
        self.counts["splits"] += 1
        ring = [one.me.node for one in in_order(self.nodes.values())]
        if self.scenario.split_by_arc:
            cut = self._random.randint(1, max(len(ring) - 1, 1))
            side = {node: int(at >= cut) for at, node in enumerate(ring)}
        else:
            side = {node: self._random.randint(0, 1) for node in ring}
        self._network.side = {node: side.get(node, 0) for node in self.nodes}
        self._trace(f"split {sorted(side.items())}")
        begin_us, end_us = self._network.now_us, self._network.now_us + self.scenario.split_rounds * ROUND_US
        for _ in range(self.scenario.split_joins):
            # Some join a side of the split, some the rings that are being unified.
            self._network.at(self._random.randint(begin_us, end_us + 2 * ROUND_US), self._start_node)
        self._pass(self.scenario.split_rounds)
        self._network.side = {}
        self._trace("healed")
        # Each side may have lost more than a ring survives as one; claimed again as soon as there is one ring.
        self._ring_of = dict.fromkeys((one.me for one in self.nodes.values()), MAIN_RING)
        self._claimed, self._unifying = self.scenario.claims_invariants, True
        self._pass(2)

    def _rest(self) -> None:
        """No more faults: neighbours must be right within the promised rounds, then fingers, then lookups."""
        network = self._network
        network.loss = network.duplication = 0.0
        settings = self.scenario.settings
        self._offer_contacts()
        self._await_neighbours(self.scenario.rounds_to_heal(largest_gap(self.nodes.values())), "after all faults")
        if self.violations:
            return
        # Every finger is looked up once within as many rounds as there are fingers.
        for _ in range(settings.bits):
            if not wrong_fingers(self.nodes.values()):
                break
            self._pass(1)
        self.violations += wrong_fingers(self.nodes.values())[:VIOLATIONS_MAX]
        if not self.violations:
            self._judge_lookups()

    def _offer_contacts(self) -> None:
        """An operator names a member to nodes that know nobody who lives: all their contacts, or all that were their
        neighbours before a restart, are dead, and so are all that knew them."""
        for group in acquainted(self.nodes.values())[1:]:
            overlay = self.nodes[min(group)]
            named = self._random.choice([one.me for one in in_order(self.nodes.values()) if one.me.node not in group])
            self.counts[NAMED] += 1
            self._trace(f"an operator names {named} to {overlay.me}")
            if overlay.joined:
                remember(overlay, named)
            else:
                overlay.contacts = (named,)

    def _await_neighbours(self, rounds: int, when: str) -> None:
        wrong: list[str] = []
        for passed in range(rounds + 1):
            wrong = wrong_neighbours(self.nodes.values())
            if not wrong or self.violations:
                self.rounds_to_heal = passed
                return
            if passed < rounds:
                self._pass(1)
        self.violations += [f"{when}, {rounds} rounds later: {text}" for text in wrong[:VIOLATIONS_MAX]]

    def _judge_lookups(self) -> None:
        members = [one.me for one in in_order(self.nodes.values())]
        keys = [member.key for member in members]
        asked: dict[tuple[NodeId, int], Key] = {}
        for _ in range(LOOKUPS):
            overlay = self.nodes[self._random.choice(members).node]
            key = Key(self._random.getrandbits(self.scenario.settings.bits))
            number = find(overlay, self._network.now_us, key)
            asked[overlay.me.node, number] = key
            self._network.settle(overlay)
            owners = [one.me for one in self.nodes.values() if owns(one, key)]
            if owners != [owner_of(members, keys, key)]:
                self.violations.append(f"key {key:x} is owned by {owners}")
        self._pass(2)
        if len(self._done) != LOOKUPS:
            self.violations.append(f"{len(self._done)} of {LOOKUPS} lookups ended")
        for done in self._done:
            if done.owner != owner_of(members, keys, done.key):
                self.violations.append(f"a lookup of {done.key:x} found {done.owner}")

    # --- faults ---

    def _start_node(self) -> None:
        self._next_node += 1
        node = NodeId(self._next_node)
        me = Member(Key(self._random.getrandbits(self.scenario.settings.bits)), node)
        overlay = Overlay(me, self.scenario.settings, Random(self._random.getrandbits(64)), self._without)
        now_us = self._network.now_us
        contacts = [one.me for one in in_order(self.nodes.values())]
        if contacts:
            first = self._random.choice(contacts)
            side = self._network.side
            if side:
                side[node] = side[first.node]
                contacts = [contact for contact in contacts if side[contact.node] == side[node]]
            chosen = tuple(self._random.sample(contacts, min(CONTACTS, len(contacts))))
            join.join(overlay, now_us, chosen)
            self.counts["joins"] += 1
        else:
            join.create(overlay, now_us)
        self._trace(f"start {me}")
        self._network.start(overlay)

    def _strike(self) -> None:
        """Kills one node, or up to r-1 of one list at once, as far as a ring is promised to survive it."""
        members = in_order(self.nodes.values())
        chosen = self._random.choice(members)
        listed = [member.node for member in chosen.successors if member.node in self.nodes]
        victims = [chosen.me.node]
        if self._random.random() < 0.5 and listed:
            victims = self._random.sample(listed, self._random.randint(1, max(len(listed) - 1, 1)))
        for node in victims:
            if self._keeps_promise(node, claimed=self._claimed):
                self._trace(f"crash {self.nodes[node].me}")
                self._crashed[node] = self._network.crash(node)
                self._seen.pop(node, None)
                self.counts["crashes"] += 1
        self._check(None)

    def _restart(self, node: NodeId) -> None:
        before = self._crashed.pop(node)
        self.counts["restarts"] += 1
        me = before.me
        now_us = self._network.now_us
        random = Random(self._random.getrandbits(64))
        me = Member(me.key, node, me.boot + 1)
        overlay = Overlay(me, self.scenario.settings, random, self._without)
        if before.joined:
            join.restart(overlay, now_us, former_neighbours(before))
        else:
            # It never was a member: it joins as if for the first time.
            contacts = tuple(one.me for one in in_order(self.nodes.values()))
            join.join(overlay, now_us, contacts[:CONTACTS])
        self._trace(f"restart {me}")
        if overlay.lone:
            self._rings_begun += 1
            self._ring_of[me] = self._rings_begun
        self._network.start(overlay)
        self._check(overlay)

    # --- events ---

    def _pass(self, rounds: float) -> None:
        """Lets time pass, and checks after each event that changed a list or who is alive."""
        network = self._network
        end_us = network.now_us + int(rounds * ROUND_US)
        while not self.violations and network.due_us <= end_us:
            overlay = network.step()
            if overlay is not None:
                self._digest.update(b"%d %d" % (network.now_us, overlay.me.node))
                if overlay.successors is not self._seen.get(overlay.me.node):
                    self._check(overlay)
            if network.events > EVENTS_MAX:
                self.violations.append(f"{EVENTS_MAX} events and no end")
        network.now_us = max(network.now_us, end_us)

    def _check(self, overlay: Overlay | None) -> None:
        """After an event of one node, or after a crash."""
        if overlay is not None:
            self._trace(f"{overlay.me} predecessor {overlay.predecessor} successors {shown(overlay.successors)}")
            wrong = unordered_list(overlay)
            if wrong is not None:
                self.violations.append(wrong)
            self._follow_rings(overlay)
            self._seen[overlay.me.node] = overlay.successors
        if not self._claimed or self.violations:
            return
        if self._unifying:
            self.counts[SUSPENDED] += 1
            self._unifying = bool(self._broken()) or not self._keeps_promise()
        else:
            self.counts[CHECKED] += 1
            self.violations += self._broken()[:VIOLATIONS_MAX]

    def _keeps_promise(self, victim: NodeId | None = None, *, claimed: bool = True) -> bool:
        """Whether the main ring, after the loss of a node, is one that it is promised to survive as."""
        if claimed and victim is not None and not self._in_main_ring(self.nodes[victim]):
            return True
        ring, under_way = self.nodes, self._network.under_way()
        if claimed:
            ring = {node: one for node, one in ring.items() if self._in_main_ring(one)}
            under_way = (packet for packet in under_way if self._ring_of.get(packet.sender) == MAIN_RING)
        successors_max = self.scenario.settings.successors_max
        return keeps_promise(ring, self.nodes, under_way, successors_max, victim=victim, claimed=claimed)

    def _in_main_ring(self, overlay: Overlay) -> bool:
        return self._ring_of.get(overlay.me) == MAIN_RING

    def _broken(self) -> list[str]:
        ring = [one for one in self.nodes.values() if self._in_main_ring(one)]
        return broken_invariants(ring, self.scenario.settings.successors_max)

    def _follow_rings(self, overlay: Overlay) -> None:
        """Notes which ring a node is in. The invariants are those of one ring with unique keys: they rest while the
        main ring is being joined with a ring that restarted nodes formed, and when a member had to leave its place to
        another with the same key and the rest is less than what a ring is promised to survive as."""
        before = self._seen.get(overlay.me.node)
        if not overlay.joined:
            if before and self._claimed and not self._keeps_promise():
                self._unifying = True
            return
        successor = overlay.successor
        theirs = self._ring_of.get(successor) if successor is not None else None
        if theirs is None:
            return
        mine = self._ring_of.get(overlay.me)
        if mine is None or not before:
            self._ring_of[overlay.me] = theirs
        elif mine != theirs:
            both = (mine, theirs)
            self._ring_of = {member: min(both) if ring in both else ring for member, ring in self._ring_of.items()}
            self._unifying = self._unifying or MAIN_RING in both

    def _told(self, overlay: Overlay, effect: Effect) -> None:
        if isinstance(effect, LookupDone):
            self._done.append(effect)

    def _trace(self, line: str) -> None:
        self._digest.update(line.encode())
        if self._show is not None:
            self._show(f"{self._network.now_us / 1e6:10.3f} {line}")
