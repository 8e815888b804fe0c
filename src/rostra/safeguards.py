"""Safeguards that tests can disable one by one, in the code that enforces them.

A checker that does not fail while its safeguard is disabled proves nothing. Only tests and `rostra sim --without` pass
a non-empty set.
"""

from __future__ import annotations

from enum import StrEnum


class Safeguard(StrEnum):
    DEDUP = "dedup"
    """A repeated batch is stored once."""
    SYNC_BEFORE_ACK = "sync-before-ack"
    """Nothing is acknowledged or delivered before it is on stable storage."""
    CHECKSUM = "checksum"
    """Batches read from disk are checked before they are served, and a damaged end is not kept."""
    SEQUENCE = "sequence"
    """A batch is refused while one before it is missing."""
    PARKED_DUPLICATES = "parked-duplicates"
    """A repeated batch is acknowledged when the first is durable, not before."""
    PERSIST_VOTE = "persist-vote"
    """A vote is remembered across a restart."""
    PERSIST_BEFORE_REPLY = "persist-before-reply"
    """State is on stable storage before a message that depends on it is sent."""
    LOG_MATCH = "log-match"
    """A follower appends only after an entry that it shares with the leader."""
    UP_TO_DATE_VOTE = "up-to-date-vote"
    """A voter votes only for a candidate whose log is at least as up to date as its own."""
    OWN_TERM_COMMIT = "own-term-commit"
    """A leader commits by counting replicas only entries of its own term."""
    COMMIT_VISIBILITY = "commit-visibility"
    """Nothing is delivered before a majority has it on stable storage."""
    SYNC_GENERATION = "sync-generation"
    """A sync that began before a truncation does not count for what was written after it."""
    PRE_VOTE = "pre-vote"
    """A node starts a term only when a majority would vote for it."""
    CHECK_QUORUM = "check-quorum"
    """A leader that hears no majority steps down, and a node that hears its leader grants no vote."""
    LEARNER_NOT_COUNTED = "learner-not-counted"
    """A replica counts in no majority before it has caught up and was made a voter."""
    CHECKPOINT_BATCH = "checkpoint-batch"
    """A segment starts with a checkpoint of the derived state, so that retention deletes records only."""
    GENERATION_FENCING = "generation-fencing"
    """A consumer group member that was removed as dead cannot commit positions."""
    UNACKED_REDELIVERY = "unacked-redelivery"
    """A member that is assigned a partition starts at its first unacknowledged record."""
    ONE_CHANGE_AT_A_TIME = "one-change-at-a-time"
    """Membership changes only once the last change and an entry of the leader's term are committed."""
    CONFIRMED_WATCH = "confirmed-watch"
    """A list of topics is answered once the cluster has confirmed that none is missing."""

    SINK_COMPARE_AND_SET = "sink-compare-and-set"
    """A batch of a sink's query is decided only if it follows the last one decided."""
    FIRST_DECISION = "first-decision"
    """A batch of a sink's query that was decided is not decided again, whatever comes with the repeated commit."""
    PINNED_STAGING = "pinned-staging"
    """What a commit publishes is pinned before the decision, and expires no more."""
    IDEMPOTENT_APPLY = "idempotent-apply"
    """An owner that continues a publication begins behind what is published already."""

    OWNERSHIP_LOGGED = "ownership-logged"
    """A change of the strongest publisher is in the log before the first batch that it affects."""
    DEDUP_BY_VECTOR = "dedup-by-vector"
    """Records below a broker's vector are not accepted again."""
    RESEND_BY_HOLDER = "resend-by-holder"
    """The last holder of a record sends it again to its new neighbour, if that lacks it."""
    SYNC_BEFORE_MARK = "sync-before-mark"
    """A broker adds itself to an acknowledgement mark once its own disk has the records."""
    HOP_BOUND = "hop-bound"
    """A record or barrier ends after as many hops as there are brokers, even if its origin is gone."""
    BARRIER_AND_FENCE = "barrier-and-fence"
    """A producer that migrates here waits until all it has stored anywhere is known; batches of it that appear later
    are stored, but not delivered."""
    NEW_INCARNATION = "new-incarnation"
    """A broker that lost records it published, or may have, starts a new incarnation and reuses no offset."""

    RECTIFY = "rectify"
    """An overlay node checks whether its predecessor lives, and takes one further back when it does not."""
    LIST_ORDER = "list-order"
    """A successor list goes clockwise and ends where the node itself would come."""
    CHECK_BEFORE_ADOPT = "check-before-adopt"
    """A nearer successor is taken only when it has answered, and with its list."""
    MISS_LIMIT = "miss-limit"
    """A neighbour is dead only when it has missed several heartbeats in a row."""
    PASSIVE_LIST = "passive-list"
    """Members that were lost are remembered and tried again."""
    UNIFICATION = "unification"
    """Two rings whose members meet become one."""
    RESTART_ALONE = "restart-alone"
    """A node that restarts is a ring of one, whatever it was a member of."""
    BOOT_FENCE = "boot-fence"
    """What was sent to an earlier life of a node is not answered by a later one."""
    ID_COLLISION = "id-collision"
    """A node whose id is taken draws another and joins again."""


OF_ONE_NODE = (
    Safeguard.DEDUP,
    Safeguard.SYNC_BEFORE_ACK,
    Safeguard.CHECKSUM,
    Safeguard.SEQUENCE,
    Safeguard.OWNERSHIP_LOGGED,
)
"""Safeguards that show on a single node; the others need peers."""

OF_DERIVED_STATE = (Safeguard.CHECKPOINT_BATCH,)
"""Safeguards of the state that a broker derives from a log, whatever the fabric."""

OF_GROUPS = (Safeguard.GENERATION_FENCING, Safeguard.UNACKED_REDELIVERY)
"""Safeguards of consumer groups, whatever the fabric."""

OF_SINKS = (
    Safeguard.SINK_COMPARE_AND_SET,
    Safeguard.FIRST_DECISION,
    Safeguard.PINNED_STAGING,
    Safeguard.IDEMPOTENT_APPLY,
)
"""Safeguards of exactly-once sinks, on fabrics that have them."""

OF_TOPIC_METADATA = (Safeguard.CONFIRMED_WATCH,)
"""Safeguards of topic metadata, whatever the fabric; they need peers to show."""

OF_FLOOD = (
    Safeguard.DEDUP_BY_VECTOR,
    Safeguard.RESEND_BY_HOLDER,
    Safeguard.SYNC_BEFORE_MARK,
    Safeguard.HOP_BOUND,
    Safeguard.BARRIER_AND_FENCE,
    Safeguard.NEW_INCARNATION,
)
"""Safeguards of the flood fabric."""

OF_AN_OVERLAY = (
    Safeguard.RECTIFY,
    Safeguard.LIST_ORDER,
    Safeguard.CHECK_BEFORE_ADOPT,
    Safeguard.MISS_LIMIT,
    Safeguard.PASSIVE_LIST,
    Safeguard.UNIFICATION,
    Safeguard.RESTART_ALONE,
    Safeguard.BOOT_FENCE,
    Safeguard.ID_COLLISION,
)
"""Those of a Chord ring, whatever is built on it."""

Without = frozenset[Safeguard]
ALL_ON: Without = frozenset()
