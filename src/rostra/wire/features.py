"""Names of the abilities of a client or node beyond the first version of the protocol.

A new kind of message, or a new meaning of an old one, is a feature: an older node closes the connection on a kind it
does not know. `Hello` carries what the client has, `Welcome` what both have, and neither uses what the other lacks.
"""

from __future__ import annotations

ADMINISTRATION = "administration"
"""Describing the cluster, removing members, transferring partitions."""

PUBLISHERS = "publishers"
"""Registering publishers with a strength and a lease, and unregistering them."""

PATTERNS = "patterns"
"""Watching for topics that match patterns."""

START_AT_A_TIME = "start at a time"
"""Subscribing from the first record on that is not earlier than a given time."""

ALTERATION = "alteration"
"""Changing the settings of a topic."""

GROUPS = "groups"
"""Named subscriptions: positions kept in the cluster, members that share partitions."""

SINKS = "sinks"
"""Staging batches and committing them exactly once."""

FEATURES: tuple[str, ...] = (ADMINISTRATION, PUBLISHERS, PATTERNS, START_AT_A_TIME, ALTERATION, GROUPS, SINKS)


def in_common(offered: tuple[str, ...], known: tuple[str, ...] = FEATURES) -> tuple[str, ...]:
    """Of the features offered, those that are known."""
    return tuple(feature for feature in known if feature in offered)
