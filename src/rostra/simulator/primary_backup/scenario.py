"""What a seed draws for its partition: nodes, copies, and which faults happen how often."""

from __future__ import annotations

from random import Random

import msgspec

from rostra.fabric.primary_backup.configuration import CopyPolicy
from rostra.simulator.clock import MS_US, SECOND_US


class PartitionScenario(msgspec.Struct, frozen=True):
    """Rates are per virtual second; shares are probabilities per message, proposal or answer."""

    nodes: int
    policy: CopyPolicy
    founders: int
    """How many copies the first configuration has."""
    faulty_us: int
    publish_us: int
    """Mean time between two publishes."""

    # the network
    loss: float
    duplication: float
    delay_max_us: int
    splits: float

    # nodes and disks
    crashes: float
    damages: float
    refusals: float
    sync_max_us: int

    # the authority
    authority_delay_max_us: int
    proposal_loss: float
    answer_loss: float
    false_unknown: float
    """Share of the proposals whose proposer is told at once that the outcome is unknown, while they are under way."""
    notice_loss: float
    patience_us: int
    """How long a node is down before it is believed missing."""
    false_missing: float
    """Rate at which a node that runs is believed missing."""

    # operators and maintenance
    handovers: float
    reassignments: float
    removals: float
    compactions: float
    trims: float


def draw_partition(random: Random) -> PartitionScenario:
    """A third of the faults is off in each seed, so that the others show their own effect."""

    def rate(highest: float) -> float:
        return random.uniform(0, highest) if random.random() < 2 / 3 else 0.0

    replicas = random.choice((2, 3, 3, 3))
    nodes = random.randint(max(replicas, 3), 5)
    return PartitionScenario(
        nodes=nodes,
        policy=CopyPolicy(replicas, random.choice((1, 2, 2, 2, min(3, replicas)))),
        founders=random.choice((1, 2, replicas, replicas)),
        faulty_us=random.randint(4, 8) * SECOND_US,
        publish_us=random.choice((10, 20, 40)) * MS_US,
        loss=rate(0.2),
        duplication=rate(0.1),
        delay_max_us=random.choice((5, 40, 150)) * MS_US,
        splits=rate(0.5),
        crashes=rate(1.2),
        damages=rate(0.4),
        refusals=rate(0.4),
        sync_max_us=random.choice((4, 30)) * MS_US,
        authority_delay_max_us=random.choice((10, 100, 600)) * MS_US,
        proposal_loss=rate(0.3),
        answer_loss=rate(0.3),
        false_unknown=rate(0.3),
        notice_loss=rate(0.5),
        patience_us=random.randint(150, 600) * MS_US,
        false_missing=rate(0.3),
        handovers=rate(0.4),
        reassignments=rate(0.4),
        removals=rate(0.1) if random.random() < 0.3 else 0.0,
        compactions=rate(0.8),
        trims=rate(0.3),
    )
