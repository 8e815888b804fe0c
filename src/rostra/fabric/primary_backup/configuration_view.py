"""What a node knows of its partition's configurations: the newest one, and its own proposals whose outcome is open.

From this follows who counts. For a commit a member counts from the moment the proposal to add it is sent until its
removal is confirmed. For the minimum it is the reverse: from its confirmed addition until its removal is sent. So a
commit is right whichever of the open proposals was decided.
"""

from __future__ import annotations

from collections.abc import Iterable

from rostra.fabric.primary_backup.authority import Proposal
from rostra.fabric.primary_backup.configuration import (
    AddMember,
    Configuration,
    Copy,
    CopyPolicy,
    RemoveMember,
    minimum_members,
)
from rostra.model.ids import NodeId
from rostra.safeguards import Safeguard, Without


class ConfigurationView:
    __slots__ = (
        "_closes_on_old",
        "_counts_sent_additions",
        "_counts_until_removed",
        "_minimum_is_confirmed",
        "_needs_minimum",
        "_unknown",
        "assigned",
        "configuration",
        "missing",
        "open",
        "policy",
    )

    def __init__(self, configuration: Configuration | None, policy: CopyPolicy, without: Without) -> None:
        self.configuration = configuration
        self.policy = policy
        self.assigned: tuple[NodeId, ...] = ()
        """The nodes that should have a copy."""
        self.missing: frozenset[NodeId] = frozenset()
        self.open: list[Proposal] = []
        """Own proposals that may have been decided, or may still be; all expect the version of `configuration`."""
        self._unknown: set[int] = set()
        """Tokens of open proposals whose proposer was told that the outcome is unknown."""
        self._counts_sent_additions = Safeguard.ADDITION_COUNTED not in without
        self._counts_until_removed = Safeguard.REMOVAL_CONFIRMED not in without
        self._closes_on_old = Safeguard.UNKNOWN_OUTCOME in without
        self._needs_minimum = Safeguard.MINIMUM_COPIES not in without
        self._minimum_is_confirmed = Safeguard.MINIMUM_CONFIRMED not in without

    # --- the sequence ---

    def learn(self, configuration: Configuration) -> bool:
        """Takes a configuration, from whomever it comes; returns whether it is newer than the one known.

        A higher version settles every open proposal: each was decided on the way to it or never will be. Seeing the
        same version proves nothing, since a proposal may still be under way.
        """
        if self.configuration is not None and configuration.version <= self.configuration.version:
            if self._closes_on_old and configuration.version == self.configuration.version:
                self.open = [proposal for proposal in self.open if proposal.token not in self._unknown]
            return False
        self.configuration = configuration
        self.open.clear()
        self._unknown.clear()
        return True

    def proposed(self, proposal: Proposal) -> None:
        self.open.append(proposal)

    def outcome_unknown(self, token: int) -> None:
        if any(proposal.token == token for proposal in self.open):
            self._unknown.add(token)

    @property
    def has_unknown(self) -> bool:
        return bool(self._unknown)

    # --- who counts ---

    def counted(self) -> tuple[Copy, ...]:
        """Copies that must have a record before it is committed."""
        if self.configuration is None:
            return ()
        members = self.configuration.members
        if not self._counts_until_removed:
            members = tuple(copy for copy in members if copy.node not in self._removals())
        if self._counts_sent_additions:
            members += tuple(sorted(set(self._additions()) - set(members), key=lambda copy: (copy.node, copy.number)))
        return members

    def has_minimum(self) -> bool:
        """Whether records may be taken and committed: enough members are confirmed and not missing."""
        if self.configuration is None:
            return False
        if not self._needs_minimum:
            return True
        nodes = set(self.configuration.nodes)
        if self._minimum_is_confirmed:
            nodes -= self._removals()
        else:
            nodes |= {copy.node for copy in self._additions()}
        return len(nodes - self.missing) >= minimum_members(self.configuration.width, self.policy)

    def is_outside(self, node: NodeId) -> bool:
        """Whether a node is outside the set for certain, so that its copy may be begun anew."""
        return node not in {copy.node for copy in self.counted()}

    def _additions(self) -> Iterable[Copy]:
        return (proposal.change.copy for proposal in self.open if isinstance(proposal.change, AddMember))

    def _removals(self) -> set[NodeId]:
        return {proposal.change.node for proposal in self.open if isinstance(proposal.change, RemoveMember)}
