"""Safeguards that tests can switch off, one by one, where they act.

A checker that stays silent while a safeguard is off sees nothing. Nothing but tests and `rostra sim --without` passes a
non-empty set.
"""

from __future__ import annotations

from enum import StrEnum


class Safeguard(StrEnum):
    DEDUP = "dedup"
    """A repeated batch is stored once."""
    SYNC_BEFORE_ACK = "sync-before-ack"
    """Nothing is acknowledged or shown before it is on stable storage."""
    CHECKSUM = "checksum"
    """Batches read from disk are checked before they are served, and a damaged end is not kept."""
    SEQUENCE = "sequence"
    """A batch is refused while one before it is missing."""
    PARKED_DUPLICATES = "parked-duplicates"
    """A repeated batch is acknowledged when the first is safe, not before."""
    PERSIST_VOTE = "persist-vote"
    """A vote is remembered across a restart."""
    PERSIST_BEFORE_REPLY = "persist-before-reply"
    """What a peer is told is on stable storage before it is told."""
    LOG_MATCH = "log-match"
    """A follower appends only behind an entry that it shares with the leader."""
    UP_TO_DATE_VOTE = "up-to-date-vote"
    """A vote goes only to a log that holds all that the voter's does."""
    OWN_TERM_COMMIT = "own-term-commit"
    """A leader counts copies only of entries of its own term."""
    COMMIT_VISIBILITY = "commit-visibility"
    """Nothing is shown before a majority has it on stable storage."""
    SYNC_GENERATION = "sync-generation"
    """A sync that began before a truncation vouches for nothing written after it."""
    PRE_VOTE = "pre-vote"
    """A node raises the term only when a majority would vote for it."""
    CHECK_QUORUM = "check-quorum"
    """A leader that does not hear a majority steps down, and a node that hears its leader elects no other."""
    LEARNER_NOT_COUNTED = "learner-not-counted"
    """A copy counts in no majority before it has caught up and was made a voter."""
    CHECKPOINT_BATCH = "checkpoint-batch"
    """A segment begins with what all before it came to, so that retention takes records and nothing else."""
    GENERATION_FENCING = "generation-fencing"
    """A member that was taken for dead moves no position any more."""
    UNACKED_REDELIVERY = "unacked-redelivery"
    """Whoever gets a part of a named subscription begins at the first record that is not acknowledged."""
    ONE_CHANGE_AT_A_TIME = "one-change-at-a-time"
    """Membership changes only when the last change, and an entry of the leader's own term, are committed."""
    CONFIRMED_WATCH = "confirmed-watch"
    """Who asks which topics there are is told when the others have confirmed that none is missing."""

    OWNERSHIP_LOGGED = "ownership-logged"
    """Who is the strongest publisher stands in the log before the first batch that it decides about."""
    DEDUP_BY_VECTOR = "dedup-by-vector"
    """What lies below a broker's vector has been there, and is not taken again."""
    RESEND_BY_HOLDER = "resend-by-holder"
    """Whoever passed a record on last sends it again to the next broker, if that lacks it."""
    SYNC_BEFORE_MARK = "sync-before-mark"
    """A broker's mark joins the circle when its own disk has the records."""
    HOP_BOUND = "hop-bound"
    """What goes round ends after as many hops as there are brokers, even if nobody is left to end it."""
    BARRIER_AND_FENCE = "barrier-and-fence"
    """A producer that comes from another broker waits until all is known that it has stored anywhere; what surfaces
    later of it is stored, and shown to nobody."""
    NEW_INCARNATION = "new-incarnation"
    """A broker that has lost what it published, or cannot know, gives no offset twice."""


OF_ONE_NODE = (
    Safeguard.DEDUP,
    Safeguard.SYNC_BEFORE_ACK,
    Safeguard.CHECKSUM,
    Safeguard.SEQUENCE,
    Safeguard.OWNERSHIP_LOGGED,
)
"""Those that a node which stands alone cannot be without; the others need peers to show."""

OF_DERIVED_STATE = (Safeguard.CHECKPOINT_BATCH,)
"""Those of what a broker keeps of a partition beside its records, whatever the fabric."""

OF_GROUPS = (Safeguard.GENERATION_FENCING, Safeguard.UNACKED_REDELIVERY)
"""Those of named subscriptions, whatever the fabric."""

OF_TOPIC_METADATA = (Safeguard.CONFIRMED_WATCH,)
"""Those of what a broker tells of topics, whatever the fabric; they need peers to show."""

OF_FLOOD = (
    Safeguard.DEDUP_BY_VECTOR,
    Safeguard.RESEND_BY_HOLDER,
    Safeguard.SYNC_BEFORE_MARK,
    Safeguard.HOP_BOUND,
    Safeguard.BARRIER_AND_FENCE,
    Safeguard.NEW_INCARNATION,
)
"""Those of brokers that pass every record round."""

Without = frozenset[Safeguard]
ALL_ON: Without = frozenset()
