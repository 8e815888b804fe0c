"""The authority of a partition: decides the sequence of its configurations, by compare-and-set on the version.

hashring: the replicated state of the cluster; zookeeper: a versioned znode. A partition knows this port only. Proposals
leave through `Authority.propose`; answers come back as inputs, late, in any order, or never:

- `Decided`: the proposal was decided and has led to this configuration.
- `Superseded`: another version than the expected one was in force; the newest configuration is this one.
- `UnknownOutcome`: the proposal may have been decided, or may still be.

"The newest configuration is ..." comes from the authority unasked or from any other node, and may skip some.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from rostra.fabric.primary_backup.configuration import (
    Change,
    Configuration,
    CopyPolicy,
    next_configuration,
)
from rostra.model.ids import NodeId, Partition
from rostra.safeguards import ALL_ON, Without


class Proposal(msgspec.Struct, frozen=True):
    """The token is the proposer's own; the answer carries it back."""

    token: int
    partition: Partition
    expected_version: int
    change: Change


class Decided(msgspec.Struct, frozen=True):
    configuration: Configuration


class Superseded(msgspec.Struct, frozen=True):
    configuration: Configuration


class UnknownOutcome(msgspec.Struct, frozen=True):
    """The proposal was sent, and nobody can say what became of it."""


Answer = Decided | Superseded | UnknownOutcome


class Authority(Protocol):
    def propose(self, proposal: Proposal) -> None:
        """Sends a proposal; its answer, if one comes, is an input of the partition."""


def decide(
    current: Configuration,
    expected_version: int,
    change: Change,
    policy: CopyPolicy,
    missing: Collection[NodeId] = (),
    without: Without = ALL_ON,
) -> Decided | Superseded:
    """What an authority answers, and by `Decided` what is in force from now on."""
    if current.version != expected_version:
        return Superseded(current)
    return Decided(next_configuration(current, change, policy, missing, without))
