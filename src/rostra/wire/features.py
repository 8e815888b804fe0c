"""What a side can do beyond the first version of the protocol, by name.

A new kind of message, or a new meaning of an old one, is a feature: an older node closes the connection on a kind it
does not know. `Hello` carries what the client has, `Welcome` what both have, and neither uses what the other lacks.
"""

from __future__ import annotations

ADMINISTRATION = "administration"
"""Describing the cluster, removing members, transferring partitions."""

ALTERATION = "alteration"
"""Changing the settings of a topic."""

FEATURES: tuple[str, ...] = (ADMINISTRATION, ALTERATION)


def in_common(offered: tuple[str, ...], known: tuple[str, ...] = FEATURES) -> tuple[str, ...]:
    """Of the features offered, those that are known."""
    return tuple(feature for feature in known if feature in offered)
