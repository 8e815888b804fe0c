"""What a user of the command line does about an error, where that differs from what a Python program does."""

from __future__ import annotations

from rostra.errors import (
    AddressInUse,
    AddressNotLocal,
    NotSubscribed,
    PortNotPermitted,
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
    AddressInUse: "try {option} {suggestion}",
    AddressNotLocal: "try {option} 127.0.0.1:7400, or 0.0.0.0:7400 for all of its addresses",
    PortNotPermitted: "choose a port from 1024 on with {option}",
    StoreInUse: "stop that process or choose another --data directory",
    Unreachable: "start one with `rostra serve`, or give the right address with --node",
}


def cli_remedy(error: RostraError) -> str:
    """The next step for a user of the command line."""
    carried = error.carried()
    option = "--" + str(carried.get("argument", "")).replace("_", "-")
    return REMEDIES.get(type(error), error.remedy).format(**carried, option=option)
