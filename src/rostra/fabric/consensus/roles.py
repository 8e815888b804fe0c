"""The roles of a group member, and the table of all transitions between them."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    LEARNER = "learner"
    """Has no vote: not a voter (yet), or its replica is incomplete."""
    FOLLOWER = "follower"
    PRECANDIDATE = "precandidate"
    """Asks whether a majority would vote for it, before it starts a term (PreVote)."""
    CANDIDATE = "candidate"
    LEADER = "leader"


TRANSITIONS: dict[tuple[Role, Role], str] = {
    (Role.LEARNER, Role.FOLLOWER): "is a voter with a complete replica",
    (Role.FOLLOWER, Role.LEARNER): "lost its vote, or its replica is incomplete",
    (Role.FOLLOWER, Role.PRECANDIDATE): "heard no leader for an election timeout",
    (Role.FOLLOWER, Role.CANDIDATE): "the leader transfers leadership to it",
    (Role.PRECANDIDATE, Role.FOLLOWER): "heard a leader or a higher term",
    (Role.PRECANDIDATE, Role.LEARNER): "lost its vote, or its replica is incomplete",
    (Role.PRECANDIDATE, Role.CANDIDATE): "a majority would vote for it",
    (Role.CANDIDATE, Role.FOLLOWER): "heard the term's leader or a higher term",
    (Role.CANDIDATE, Role.LEARNER): "lost its vote, or its replica is incomplete",
    (Role.CANDIDATE, Role.PRECANDIDATE): "no candidate won within an election timeout",
    (Role.CANDIDATE, Role.LEADER): "a majority voted for it",
    (Role.LEADER, Role.FOLLOWER): "a higher term, no majority heard, or a failing disk",
    (Role.LEADER, Role.LEARNER): "its removal is committed, or its replica is incomplete",
}
"""Any other transition is a bug."""


def diagram() -> str:
    """The table as a state diagram, for the documentation."""
    lines = ["stateDiagram-v2", "    [*] --> learner"]
    lines += [f"    {old} --> {new}: {why}" for (old, new), why in TRANSITIONS.items()]
    return "\n".join(lines) + "\n"
