"""What a user of the command line does about an error, where that differs from what a Python program does."""

from __future__ import annotations

from rostra.errors import (
    NotSubscribed,
    RostraError,
    StoreInUse,
    TopicExists,
    UnknownGroup,
    UnknownPartition,
    UnknownTopic,
    Unreachable,
)

REMEDIES: dict[type[RostraError], str] = {
    UnknownTopic: "create it with `rostra topic create {topic}`",
    TopicExists: "choose another name, or pass --if-not-exists",
    UnknownPartition: "`rostra topic describe {topic}` shows its partitions",
    UnknownGroup: "`rostra subscription list` lists them; `rostra sub --name` creates one",
    NotSubscribed: "`rostra subscription lag {group}` shows what it is subscribed to",
    StoreInUse: "stop that process or choose another --data directory",
    Unreachable: "start one with `rostra serve`, or give the right address with --node",
}


def cli_remedy(error: RostraError) -> str:
    """The next step for a user of the command line."""
    return REMEDIES.get(type(error), error.remedy).format(**error.carried())
