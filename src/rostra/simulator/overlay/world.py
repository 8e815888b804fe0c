"""One seed: a ring grows, suffers, comes to rest, and is judged."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import xxhash

from rostra.fabric.overlay import join
from rostra.fabric.overlay.effects import Effect, LookupDone
from rostra.fabric.overlay.lookup import find
from rostra.fabric.overlay.members import Member
from rostra.fabric.overlay.routing import owns
from rostra.fabric.overlay.state import Overlay, former_neighbours
from rostra.model.ids import NodeId
from rostra.model.keyspace import Key
from rostra.safeguards import Safeguard, Without
from rostra.simulator.overlay.ideal import in_order, largest_gap, owner_of, shown, wrong_fingers, wrong_neighbours
from rostra.simulator.overlay.invariants import broken_invariants, keeps_promise, unordered_list
from rostra.simulator.overlay.network import Network
from rostra.simulator.overlay.scenario import ROUND_US, ChurnScenario

VIOLATIONS_MAX = 5
LOOKUPS = 12
CONTACTS = 3
CHECKED = "list changes with invariants checked"
SUSPENDED = "list changes during unification"
EVENTS_MAX = 2_000_000
"""Ten times what a seed needs: beyond it, packets beget packets."""


class OverlayWorld:
    """Runs one scenario. `violations` says what was wrong; it ends at the first few."""

    def __init__(
        self, scenario: ChurnScenario, random: Random, without: Without, show: Callable[[str], None] | None = None
    ) -> None:
        self.scenario = scenario
        self.violations: list[str] = []
        self.counts = dict.fromkeys(("joins", "crashes", "restarts", "splits", CHECKED, SUSPENDED), 0)
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
        self._outside: set[NodeId] = set()
        """Restarted, and not in the ring of the others yet."""
        self._unifying = False
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

    def _churn(self) -> None:
        """The rest joins while others crash and return."""
        scenario, network = self.scenario, self._network
        network.loss, network.duplication = scenario.loss, scenario.duplication
        end_us = network.now_us + scenario.churn_rounds * ROUND_US
        missing = scenario.nodes - len(self.nodes)
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
        self._pass(self.scenario.split_rounds)
        self._network.side = {}
        self._trace("healed")

    def _rest(self) -> None:
        """No more faults: neighbours must be right within the promised rounds, then fingers, then lookups."""
        network = self._network
        network.loss = network.duplication = 0.0
        settings = self.scenario.settings
        self._offer_contacts()
        rounds = self.scenario.rounds_to_heal(largest_gap(self.nodes.values()))
        if self.scenario.split_rounds:
            # Each round tries one lost member; the first that lives again may be the last that is tried.
            rounds += settings.passive_max
        self._await_neighbours(rounds, "after all faults")
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
        """An operator names others to nodes that could not join because all their contacts are dead."""
        for overlay in [one for one in self.nodes.values() if not one.joined]:
            if not any(contact.node in self.nodes for contact in overlay.contacts):
                contacts = [one.me for one in in_order(self.nodes.values())]
                overlay.contacts = tuple(self._random.sample(contacts, min(CONTACTS, len(contacts))))

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
                self._outside.discard(node)
                self.counts["crashes"] += 1
        self._check(None)

    def _restart(self, node: NodeId) -> None:
        before = self._crashed.pop(node)
        self.counts["restarts"] += 1
        me = before.me
        now_us = self._network.now_us
        random = Random(self._random.getrandbits(64))
        if Safeguard.RESTART_ALONE in self._without and before.joined:
            overlay = Overlay(me, self.scenario.settings, random, self._without)
            join.restart(overlay, now_us, ())
            overlay.predecessor, overlay.successors = before.predecessor, before.successors
        else:
            me = Member(me.key, node, me.boot + 1)
            overlay = Overlay(me, self.scenario.settings, random, self._without)
            former = former_neighbours(before)
            if before.joined:
                join.restart(overlay, now_us, former)
            else:
                # It never was a member: it joins as if for the first time.
                contacts = tuple(one.me for one in in_order(self.nodes.values()))
                join.join(overlay, now_us, contacts[:CONTACTS])
        self._trace(f"restart {me}")
        if overlay.lone:
            self._outside.add(node)
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
            self._follow_restarts(overlay)
            self._seen[overlay.me.node] = overlay.successors
        if self._claimed and not self.violations and not self._unifying:
            self.counts[CHECKED] += 1
            self.violations += self._broken()[:VIOLATIONS_MAX]

    def _keeps_promise(self, victim: NodeId | None = None, *, claimed: bool = True) -> bool:
        under_way, successors_max = self._network.under_way(), self.scenario.settings.successors_max
        return keeps_promise(self.nodes, under_way, successors_max, victim=victim, claimed=claimed)

    def _broken(self) -> list[str]:
        """A node that restarted is a ring of its own until it has joined."""
        ring = [one for one in self.nodes.values() if one.successors or one.me.node not in self._outside]
        return broken_invariants(ring, self.scenario.settings.successors_max)

    def _follow_restarts(self, overlay: Overlay) -> None:
        """The invariants are those of one ring with unique keys. They rest while restarted nodes that met each other
        first, or were the contact of a new one, are a ring beside the others', until the two are one."""
        node = overlay.me.node
        if not overlay.joined and self._seen.get(node):
            # It left its place because of its key. Zave's ids are unique.
            self._unifying = True
        if self._unifying:
            self.counts[SUSPENDED] += self._claimed
            if not self._broken() and self._keeps_promise():
                self._unifying = False
                self._outside = {node for node in self._outside if not self.nodes[node].successors}
        elif overlay.successor is not None:
            if overlay.successor.node in self._outside:
                self._unifying = True
            else:
                self._outside.discard(node)

    def _told(self, overlay: Overlay, effect: Effect) -> None:
        if isinstance(effect, LookupDone):
            self._done.append(effect)

    def _trace(self, line: str) -> None:
        self._digest.update(line.encode())
        if self._show is not None:
            self._show(f"{self._network.now_us / 1e6:10.3f} {line}")
