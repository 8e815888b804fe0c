"""One seed: a partition suffers, heals, and is judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from rostra.errors import RostraError
from rostra.fabric.api import Serving
from rostra.fabric.primary_backup.authority import Answer
from rostra.fabric.primary_backup.configuration import RemovalReason, RemoveMember, first_configuration
from rostra.model.ids import NodeId, Partition, PartitionIndex, TopicId
from rostra.safeguards import Without
from rostra.simulator.clock import MS_US, SECOND_US, Clock
from rostra.simulator.primary_backup.authority import SimulatedAuthority
from rostra.simulator.primary_backup.checkers import CommittedHistory, HeldByMembers, KeptCopies, OneOrderPerEpoch
from rostra.simulator.primary_backup.copy_disk import StoredBatch
from rostra.simulator.primary_backup.copy_node import CopyNode
from rostra.simulator.primary_backup.network import PartitionNetwork
from rostra.simulator.primary_backup.records import SimulatedRecord, encode_record
from rostra.simulator.primary_backup.scenario import PartitionScenario
from rostra.simulator.trace import Trace

PARTITION = Partition(TopicId(7), PartitionIndex(0))
KEYS = tuple(f"k{number}" for number in range(40))
"""Enough that most keep their last record for a while: only then does it show when compaction loses it."""
TOLD_US = 200 * MS_US
"""How often the authority repeats the newest configuration to each node."""
HEALED_US = 20 * SECOND_US
"""Within this time after the last fault the partition takes records again, and every copy has them."""
VIOLATIONS_MAX = 5


class PartitionWorld:
    """Runs one scenario. `violations` says what was wrong; it ends at the first."""

    def __init__(
        self, scenario: PartitionScenario, random: Random, without: Without, show: Callable[[str], None] | None = None
    ) -> None:
        self.scenario = scenario
        self.clock = Clock()
        self.trace = Trace(self.clock, show)
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        self.healed_us = 0
        self._random = random
        self._removed: set[NodeId] = set()
        """Nodes that an operator has removed from the cluster; they never return."""
        self._down_since: dict[NodeId, int] = {}
        self._number = 0
        self._quiet = False
        """The faults are over."""
        ids = tuple(NodeId(number) for number in range(1, scenario.nodes + 1))
        assigned = ids[: scenario.policy.replicas]
        founders = assigned[: scenario.founders]
        self.network = PartitionNetwork(self.clock, self._fork(), scenario)
        first = first_configuration(founders, scenario.policy.replicas)
        self.authority = SimulatedAuthority(self.clock, self.trace, self._fork(), scenario, without, first, assigned)
        self.nodes = {
            node: CopyNode(
                node,
                PARTITION,
                clock=self.clock,
                trace=self.trace,
                random=self._fork(),
                scenario=scenario,
                network=self.network,
                authority=self.authority,
                observer=self,
                without=without,
            )
            for node in ids
        }
        self.network.deliver = lambda to, sender, message, payload: self.nodes[to].receive(sender, message, payload)
        self.authority.nodes = ids
        self.authority.answer = self._answer
        self.authority.notify = lambda node, newest: self.nodes[node].notified(newest)
        self.history = CommittedHistory()
        self._order = OneOrderPerEpoch()
        self._held = HeldByMembers(scenario.policy)
        self._kept = KeptCopies()
        for node in ids:
            self.nodes[node].start(founder=node in founders)

    def _fork(self) -> Random:
        return Random(self._random.getrandbits(64))

    def _answer(self, node: NodeId, boot: int, token: int, answer: Answer) -> None:
        self.nodes[node].answered(boot, token, answer)

    # --- the course of a seed ---

    def run(self) -> None:
        scenario = self.scenario
        for node in self.nodes:
            self.authority.tell(node)
            self.clock.after(self._random.randint(1, TOLD_US), self._tell, node)
        self._often(SECOND_US / scenario.publish_us, self._publish)
        for rate, fault in (
            (scenario.crashes, self._crash),
            (scenario.damages, self._damage),
            (scenario.refusals, self._refuse_writes),
            (scenario.splits, self._split),
            (scenario.false_missing, self._suspect),
            (scenario.handovers, self._hand_over),
            (scenario.reassignments, self._reassign),
            (scenario.removals, self._remove),
            (scenario.compactions, self._compact),
            (scenario.trims, self._trim),
        ):
            self._often(rate, fault)
        self._run_until(scenario.faulty_us)
        self._heal()
        self._await_health()

    def _often(self, rate: float, act: Callable[[], None]) -> None:
        """Acts at random times, so often per second, until the faults are over."""
        if rate > 0:
            self.clock.after(int(self._random.expovariate(rate) * SECOND_US), self._act, rate, act)

    def _act(self, rate: float, act: Callable[[], None]) -> None:
        if not self._quiet:
            act()
            self._often(rate, act)

    def _run_until(self, time_us: int) -> None:
        step_us = 20 * MS_US
        while not self.violations and self.clock.now_us < time_us:
            try:
                self.clock.run_until(min(time_us, self.clock.now_us + step_us))
            except (RostraError, AssertionError) as error:
                self._violated(f"{type(error).__name__}: {error}")

    def _heal(self) -> None:
        self._quiet = True
        self.network.reliable = self.authority.reliable = True
        self.network.cut.clear()
        for node in self.nodes.values():
            node.disk.refuses = False
            if not node.runs and node.node not in self._removed:
                self._start(node)
        for missing in sorted(self.authority.missing - self._removed):
            self.authority.heard_again(missing, started=False)
        self.trace.note("world", "healed")

    def _await_health(self) -> None:
        if not self._intact(NodeId(0)):
            # Damage to the last member that had everything, unnoticed so far: only an operator can help.
            self.counts["seeds without an intact member"] += 1
            return
        begin_us = self.clock.now_us
        reason = ""
        number = 0
        while not self.violations and self.clock.now_us < begin_us + HEALED_US:
            self._run_until(self.clock.now_us + 100 * MS_US)
            for owner in [node for node in self.nodes.values() if node.owner_epoch]:
                number = self._publish_at(owner)
            reason = self._unhealthy(number)
            if not reason:
                self.healed_us = self.clock.now_us - begin_us
                self._judge_end()
                return
        if not self.violations:
            self._violated(f"{HEALED_US // SECOND_US} s after the last fault: {reason}")

    def _unhealthy(self, number: int) -> str:
        """What is not yet as it should be, when all nodes but the removed ones run."""
        newest = self.authority.newest
        configuration = newest.configuration
        wanted = tuple(node for node in newest.assigned if node not in self._removed)
        if set(configuration.nodes) != set(wanted):
            return f"members are {configuration}, and {wanted} should be"
        primary = self.nodes[configuration.primary]
        if primary.owner_epoch != configuration.primary_epoch:
            return f"node {configuration.primary} does not order in epoch {configuration.primary_epoch}"
        committed = {batch.record.number for batch in list(self.history.batches.values())[-20:]}
        if not committed & set(range(max(number - 10, 1), number + 1)):
            return "no record was committed"
        for node in configuration.nodes:
            if self.nodes[node].disk.synced < self.history.end - 20:
                return f"node {node} has {self.nodes[node].disk.synced} of {self.history.end}"
        return ""

    def _judge_end(self) -> None:
        configuration = self.authority.configuration
        for copy in configuration.members:
            node = self.nodes[copy.node]
            wrong = self.history.contradicted_by(node.disk.batches)
            if wrong is not None:
                self._violated(f"at the end node {copy.node} has {wrong}")
            replica = node.replica
            if replica is not None and replica.snapshots != copy.number:
                self._violated(f"at the end node {copy.node} has copy {replica.snapshots}; {configuration}")
            wrong = self.history.resurrected_by(node, min(node.disk.end, self.history.end))
            if wrong is not None:
                self._violated(f"at the end {wrong}")

    def _violated(self, text: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.violations.append(text)
            self.trace.note("checker", "violation", b"", text)

    def _check(self, wrong: str | None) -> None:
        if wrong is not None:
            self._violated(wrong)

    # --- what nodes do ---

    def appended(self, node: CopyNode, batch: StoredBatch) -> None:
        self._check(self._order.appended(node, batch))
        record = batch.record
        if record.compact_below:
            assert node.replica is not None
            node.replica.compacted(record.compact_below)

    def committed(self, node: CopyNode, offset: int) -> None:
        self._check(self.history.committed(node, node.checked, offset))
        node.checked = max(node.checked, min(offset, node.disk.end))
        if node.owner_epoch:
            self._judge_commit(node, offset)
        self._carry_out_compactions(node, offset)

    def _judge_commit(self, node: CopyNode, offset: int) -> None:
        assert node.replica is not None
        acted_on = node.replica.configuration
        assert acted_on is not None
        held = {one.node: one.held_record(offset) for one in self.nodes.values()}
        wrong = self._held.committed(acted_on, self.authority.history, held, node.node)
        if wrong is not None:
            self._violated(f"{offset} {wrong}")
        self.counts["commits judged"] += 1

    def _carry_out_compactions(self, node: CopyNode, commit: int) -> None:
        """A copy compacts once the decision to do so is committed."""
        below = node.disk.compact_below(commit)
        if below > node.disk.compacted:
            node.disk.compact(below)
            self.counts["compacted logs"] += 1

    def serving(self, node: CopyNode, serving: Serving) -> None:
        if serving.owner:
            self.counts["primary epochs"] += 1
            self._check(self.history.lost_by(node))
            self._check(self.history.resurrected_by(node, min(node.disk.end, self.history.end)))

    def dropped(self, node: CopyNode) -> None:
        node.checked = 0
        replica = node.replica
        assert replica is not None
        if replica.has_copy:
            self.counts["copies begun anew"] += 1
            return
        self.counts["copies dropped"] += 1
        assert replica.configuration is not None
        self._check(self._kept.dropped(node, replica.configuration, self.authority.history))

    def refused(self, node: CopyNode, error: RostraError) -> None:
        self.counts[f"refused: {type(error).__name__}"] += 1

    # --- clients ---

    def _publish(self) -> None:
        owners = [node for node in self.nodes.values() if node.owner_epoch]
        if owners:
            self._publish_at(self._random.choice(owners))

    def _publish_at(self, node: CopyNode) -> int:
        self._number += 1
        number = self._number
        key = self._random.choice(KEYS)
        record = SimulatedRecord(number, key, tombstone=self._random.random() < 0.25)
        batch = encode_record(record, wide=self._random.choice((1, 1, 3)))
        self.counts["records published"] += 1
        node.publish(number, batch)
        return number

    def _compact(self) -> None:
        for node in self.nodes.values():
            replica = node.replica
            if replica is None or not node.owner_epoch:
                continue
            below = min(replica.held_by_members(), replica.commit)
            bases = [one.base for one in node.disk.batches if one.base <= below]
            if not bases:
                continue
            self._number += 1
            number, chosen = self._number, bases[-1]
            batch = encode_record(SimulatedRecord(number, compact_below=chosen))
            self.counts["compactions decided"] += 1
            node.publish(number, batch)

    def _trim(self) -> None:
        for node in self.nodes.values():
            replica = node.replica
            if replica is not None and node.owner_epoch:
                below = [one.base for one in node.disk.batches if one.base <= replica.commit]
                if below:
                    first = below[len(below) // 3]
                    self.counts["log starts advanced"] += 1
                    node.advance_log_start(first)

    # --- faults ---

    def _tell(self, node: NodeId) -> None:
        self.authority.tell(node)
        self.clock.after(TOLD_US, self._tell, node)

    def _start(self, node: CopyNode) -> None:
        self._down_since.pop(node.node, None)
        self.authority.heard_again(node.node, started=True)
        node.start()

    def _crash(self) -> None:
        """Some nodes crash; sometimes all of them, as in a power cut."""
        running = [node for node in self.nodes.values() if node.runs]
        if not running:
            return
        power_cut = self._random.random() < 0.1
        chosen = (
            running if power_cut else self._random.sample(running, min(len(running), self._random.choice((1, 1, 2))))
        )
        self.counts["power cuts"] += power_cut
        for node in chosen:
            self.counts["crashes"] += 1
            node.crash()
            down_us = self._random.choice((20, 100, 800, 2_000)) * MS_US
            self._down_since[node.node] = self.clock.now_us
            self.clock.after(self.scenario.patience_us, self._believe_missing, node, node.boot)
            self.clock.after(self._random.randint(1, down_us), self._restart, node, node.boot)

    def _restart(self, node: CopyNode, boot: int) -> None:
        if not node.runs and node.boot == boot and node.node not in self._removed:
            self.counts["restarts"] += 1
            self._start(node)

    def _believe_missing(self, node: CopyNode, boot: int) -> None:
        if not node.runs and node.boot == boot and node.node not in self.authority.missing:
            self.counts["nodes found missing"] += 1
            self.authority.believe_missing(node.node)

    def _suspect(self) -> None:
        """A node that runs is believed missing, and heard again later."""
        node = self._random.choice(list(self.nodes))
        if node not in self.authority.missing and node not in self._removed:
            self.counts["nodes wrongly missing"] += 1
            self.authority.believe_missing(node)
            self.clock.after(self._random.randint(1, 600 * MS_US), self._heard_again, node)

    def _heard_again(self, node: NodeId) -> None:
        if self.nodes[node].runs and node not in self._removed:
            self.authority.heard_again(node, started=False)

    def _intact(self, without: NodeId) -> bool:
        """Whether another member has everything that was committed, so that one copy may be damaged."""
        for copy in self.authority.configuration.members:
            node = self.nodes[copy.node]
            holds = node.disk.damaged_at is None and node.copy_number == copy.number and node.disk.exists
            if (
                copy.node != without
                and holds
                and copy.node not in self._removed
                and node.disk.synced >= self.history.end
            ):
                return True
        return False

    def _damage(self) -> None:
        node = self._random.choice(list(self.nodes.values()))
        disk = node.disk
        others_damaged = any(one.disk.damaged_at is not None for one in self.nodes.values())
        if others_damaged or not disk.batches or not self._intact(node.node):
            return
        self.counts["copies damaged"] += 1
        disk.damaged_at = self._random.choice(disk.batches).base
        self.trace.note("world", "damage", b"", f"node {node.node} at {disk.damaged_at}")
        if node.runs and self._random.random() < 0.7:
            # A reader finds it; otherwise the next start does, or a read for another copy.
            self.clock.after(self._random.randint(1, 200 * MS_US), self._find_damage, node)

    def _find_damage(self, node: CopyNode) -> None:
        if node.disk.damaged_at is not None:
            node.find_damage()

    def _refuse_writes(self) -> None:
        node = self._random.choice(list(self.nodes.values()))
        if not node.disk.refuses:
            self.counts["disks that refused writes"] += 1
            node.disk.refuses = True
            self.clock.after(self._random.randint(1, 400 * MS_US), self._accept_writes, node)

    def _accept_writes(self, node: CopyNode) -> None:
        node.disk.refuses = False

    def _split(self) -> None:
        """A node is cut off from some others, in one direction or both."""
        ids = list(self.nodes)
        victim = self._random.choice(ids)
        both = self._random.random() < 0.5
        for other in ids:
            if other != victim and self._random.random() < 0.7:
                self.network.cut.add((victim, other))
                if both:
                    self.network.cut.add((other, victim))
        self.counts["splits"] += 1
        self.clock.after(self._random.randint(50, 1_500) * MS_US, self.network.cut.clear)

    # --- operators ---

    def _hand_over(self) -> None:
        for node in self.nodes.values():
            if node.owner_epoch:
                members = self.authority.configuration.nodes
                heir = self._random.choice(members)
                self.counts["handovers asked for"] += 1
                node.hand_over(heir)

    def _reassign(self) -> None:
        """Other nodes should have a copy from now on."""
        left = [node for node in self.nodes if node not in self._removed]
        count = min(len(left), self.scenario.policy.replicas)
        self.counts["reassignments"] += 1
        self.authority.assign(tuple(self._random.sample(left, count)))

    def _remove(self) -> None:
        """An operator declares a node lost, which must be down; never the last intact copy, never below two nodes."""
        down = [node for node in self.nodes.values() if not node.runs and node.node not in self._removed]
        left = len(self.nodes) - len(self._removed) - 1
        for node in down[:1]:
            if left >= 2 and self._intact(node.node):
                self.counts["nodes removed"] += 1
                self._removed.add(node.node)
                self.authority.missing.add(node.node)
                self.authority.enter(RemoveMember(node.node, RemovalReason.OPERATOR, left))
                self._reassign()
