"""The interleavings that the rules of primary and backups were written for, each with and without its safeguard."""

from __future__ import annotations

import pytest

from rostra.errors import NotEnoughCopies
from rostra.fabric.primary_backup.authority import UnknownOutcome
from rostra.fabric.primary_backup.configuration import (
    AddMember,
    ChangePrimary,
    Copy,
    RemovalReason,
    RemoveMember,
)
from rostra.safeguards import ALL_ON, Safeguard, Without
from tests.unit.primary_backup.partition_nodes import A, B, C, Nodes


def without(*safeguards: Safeguard) -> Without:
    return frozenset(safeguards)


# --- restart within a primary epoch ---


def restart_within_a_primary_epoch(nodes: Nodes) -> tuple[list[int], list[int]]:
    """A sends a record to B and C before its own fsync and loses it in a crash; then it orders another one."""
    nodes.settle(A, B, C)
    nodes.publish(A)
    nodes.deliver(to=(B, C))
    nodes.sync(B, C)
    nodes.messages.clear()
    nodes.all[A].restart()
    nodes.settle(A, B, C)
    nodes.publish(A)
    nodes.settle(A, B, C)
    return nodes.committed(A), nodes.committed(B)


def test_a_primary_that_restarts_gives_no_offset_to_two_records() -> None:
    nodes = Nodes()
    on_primary, on_backup = restart_within_a_primary_epoch(nodes)
    assert on_primary == on_backup == [2]
    assert nodes[A].epoch == nodes.configuration.primary_epoch > 1


def test_without_a_new_primary_epoch_at_start_two_copies_commit_different_records() -> None:
    on_primary, on_backup = restart_within_a_primary_epoch(Nodes(without=without(Safeguard.NEW_PRIMARY_EPOCH)))
    assert on_primary == [2] and on_backup[0] == 1, "one offset, two records"


# --- skipped configuration ---


def skipped_configuration(nodes: Nodes) -> tuple[list[int], list[int]]:
    """A's acknowledgement from C is under way while B becomes primary and A again; A hears of the last change only."""
    nodes.settle(A, B, C)
    nodes.publish(A)
    nodes.deliver(to=(C,))
    nodes.sync(C)
    late = [row for row in nodes.messages if row[0] == C]
    nodes.messages.clear()
    nodes.enter(ChangePrimary(B))
    nodes.tell(B, C)
    nodes.exchange(B, C)
    assert nodes.numbers(C) == [], "C has followed B, which never had the record"
    nodes.enter(ChangePrimary(A))
    nodes.tell(A, B)
    nodes.messages = late
    nodes.deliver(to=(A,))
    nodes.exchange(A, B)
    return nodes.committed(A), nodes.numbers(C)


def test_an_acknowledgement_of_an_earlier_primary_epoch_does_not_count() -> None:
    committed, held = skipped_configuration(Nodes())
    assert committed == [] and held == []


def test_without_that_a_record_is_committed_that_a_member_lacks() -> None:
    committed, held = skipped_configuration(Nodes(without=without(Safeguard.ACKS_IN_PRIMARY_EPOCH)))
    assert committed == [1] and held == []


# --- addition with an unknown outcome ---


def addition_with_an_unknown_outcome(nodes: Nodes) -> list[int]:
    """A proposes to add C and is told that the outcome is unknown. Then it sees the old configuration again."""
    nodes.exchange(A, B, C)
    (_, proposal), *_ = nodes.proposals
    assert proposal.change == AddMember(Copy(C, 1))
    nodes.answer(A, proposal.token, UnknownOutcome())
    nodes.tell(A)
    nodes.publish(A)
    nodes.exchange(A, B)
    committed = nodes.committed(A)
    nodes.decide()
    assert nodes.configuration.copy_of(C) is not None, "the proposal was under way"
    assert nodes.numbers(C) == []
    return committed


def test_a_member_whose_addition_has_an_unknown_outcome_counts() -> None:
    nodes = Nodes(members=2)
    assert addition_with_an_unknown_outcome(nodes) == []
    nodes.settle(A, B, C)
    assert nodes.committed(C) == nodes.committed(A) == [1]


@pytest.mark.parametrize("safeguard", [Safeguard.ADDITION_COUNTED, Safeguard.UNKNOWN_OUTCOME])
def test_without_that_a_record_is_committed_that_the_new_member_lacks(safeguard: Safeguard) -> None:
    assert addition_with_an_unknown_outcome(Nodes(members=2, without=without(safeguard))) == [1]


def test_an_unknown_outcome_is_settled_by_an_unchanged_configuration() -> None:
    """The addition is lost. A proposes its configuration unchanged, and then knows that it was never decided."""
    nodes = Nodes(members=2)
    nodes.exchange(A, B, C)
    (_, proposal), *_ = nodes.proposals
    nodes.proposals.clear()
    nodes.answer(A, proposal.token, UnknownOutcome())
    nodes.publish(A)
    nodes.exchange(A, B)
    assert nodes.committed(A) == []
    nodes.decide()
    nodes.answer_all()
    assert nodes.configuration.version == 2 and nodes.configuration.nodes == (A, B)
    nodes.exchange(A, B)
    assert nodes.committed(A) == [1]


# --- a member without its copy ---


def member_without_its_copy(nodes: Nodes) -> None:
    """C drops its copy, which is no longer wanted, while the proposal to add it is under way. Then A and B are lost."""
    nodes.exchange(A, B, C)
    nodes.publish(A)
    nodes.exchange(A, B, C)
    nodes.assigned = (A, B)
    nodes.tell(C)
    assert not nodes.all[C].disk.exists
    nodes.assigned = (A, B, C)
    nodes.decide()
    nodes.answer_all()
    assert nodes.configuration.copy_of(C) == Copy(C, 1)
    nodes.tell(A, B, C)
    # C's log may be filled, but slowly: nothing is synced there.
    for _ in range(4):
        nodes.period(A)
        nodes.deliver(to=(C,), sender=A)
        nodes.deliver(to=(A,), sender=C)
    nodes.missing |= {A, B}
    nodes.enter(RemoveMember(A, RemovalReason.MISSING))
    nodes.enter(RemoveMember(B, RemovalReason.MISSING))
    assert nodes.configuration.primary == C
    nodes.all[C].restart()
    nodes.tell(C)


def test_a_member_without_its_copy_leads_nothing_and_asks_to_be_removed() -> None:
    nodes = Nodes(members=2)
    member_without_its_copy(nodes)
    assert not nodes[C].is_owner
    node, proposal = nodes.proposals[-1]
    assert (node, proposal.change) == (C, RemoveMember(C, RemovalReason.UNFIT))
    nodes.proposals = nodes.proposals[-1:]
    nodes.decide()
    assert C not in nodes.configuration.nodes


def test_without_copy_numbers_an_empty_copy_leads_and_the_records_are_lost() -> None:
    nodes = Nodes(members=2, without=without(Safeguard.COPY_NUMBERS))
    member_without_its_copy(nodes)
    while nodes.proposals:
        nodes.decide()
    nodes.answer_all()
    assert nodes[C].is_owner and nodes.numbers(C) == []


# --- commit below the minimum ---


def commit_below_the_minimum(nodes: Nodes) -> list[int]:
    """A has taken a record, then B and C turn out to be unfit: A is alone in a set that had three members."""
    nodes.settle(A, B, C)
    nodes.publish(A)
    for node in (B, C):
        nodes.enter(RemoveMember(node, RemovalReason.UNFIT))
    nodes.tell(A)
    nodes.exchange(A)
    return nodes.committed(A)


def test_what_was_taken_does_not_commit_below_the_minimum_and_nothing_more_is_taken() -> None:
    nodes = Nodes()
    assert commit_below_the_minimum(nodes) == []
    nodes.publish(A)
    assert isinstance(nodes.all[A].refusals[-1], NotEnoughCopies)
    assert nodes.all[A].refusals[-1].retryable


@pytest.mark.parametrize("safeguard", [Safeguard.MINIMUM_COPIES, Safeguard.WIDTH])
def test_without_the_minimum_a_record_is_committed_with_one_copy(safeguard: Safeguard) -> None:
    assert commit_below_the_minimum(Nodes(without=without(safeguard))) == [1]


def test_a_founder_alone_works_and_a_dead_member_stays_where_the_minimum_needs_it() -> None:
    nodes = Nodes(members=1)
    nodes.exchange(A)
    nodes.publish(A)
    nodes.exchange(A)
    assert nodes.committed(A) == [1]
    nodes.settle(A, B, C)
    assert nodes.configuration.nodes == (A, B, C)
    nodes.missing.add(B)
    assert nodes.enter(RemoveMember(B, RemovalReason.MISSING)).nodes == (A, C)
    nodes.missing.add(C)
    assert nodes.enter(RemoveMember(C, RemovalReason.MISSING)).nodes == (A, C), "silence and death keep the minimum"
    nodes.missing.discard(B)
    assert nodes.enter(AddMember(Copy(B, 1))).nodes == (A, B), "an addition makes room"


# --- compaction and a returning copy ---


def compaction_and_a_returning_copy(nodes: Nodes) -> dict[str, int]:
    """While C is outside, a key is deleted and the log compacted: the tombstone is gone too. Then C returns."""
    nodes.settle(A, B, C)
    nodes.publish(A, "key")
    nodes.settle(A, B, C)
    nodes.enter(RemoveMember(C, RemovalReason.SILENT))
    nodes.tell(A, B)
    nodes.publish(A, "key", tombstone=True)
    nodes.exchange(A, B)
    below = nodes[A].commit
    nodes.publish(A, compact_below=below)
    nodes.exchange(A, B)
    for node in (A, B):
        nodes.all[node].disk.compact(below)
        assert nodes.all[node].disk.visible(below) == {}
    nodes.settle(A, B, C)
    assert nodes.configuration.copy_of(C) is not None
    disk = nodes.all[C].disk
    return disk.visible(disk.end)


def test_a_copy_that_ends_below_the_last_compaction_is_begun_anew() -> None:
    nodes = Nodes()
    assert compaction_and_a_returning_copy(nodes) == {}
    assert nodes.configuration.copy_of(C) == Copy(C, 2)


def test_without_that_a_returning_copy_shows_a_deleted_key() -> None:
    assert compaction_and_a_returning_copy(Nodes(without=without(Safeguard.COMPACTION_FILL))) == {"key": 1}


def test_all_safeguards_are_on_unless_a_test_says_otherwise() -> None:
    assert Nodes().without == ALL_ON
