"""The settings of clients, producers and subscriptions, with their validation."""

from __future__ import annotations

from typing import Literal, Protocol, Self, get_args

import msgspec

from rostra.errors import InvalidGroupName, InvalidSetting, InvalidTopicName
from rostra.model.addresses import UNIX, UNIX_PATH_BYTES_MAX
from rostra.model.batch import Codec
from rostra.model.ids import check_topic_name
from rostra.model.patterns import Pattern
from rostra.wire.groups import LEASE_MS_MAX, LEASE_MS_MIN, PATTERNS_MAX
from rostra.wire.messages import (
    PUBLISHER_LEASE_MS,
    PUBLISHER_LEASE_MS_MAX,
    PUBLISHER_LEASE_MS_MIN,
    Acks,
    StartAt,
    TopicSettings,
)

DEFAULT_ADDRESS = "127.0.0.1:7400"
LEASE_MS = 10_000
"""How long a group member may be silent before it counts as dead; record handlers may take any time."""
PORT = 7400
BATCHES_IN_FLIGHT_MAX = 64
STRENGTH_MAX = 2**31 - 1
CLOSE_FLUSH_MS_MAX = 5_000
"""How long closing a client waits for the acknowledgement of what its producers have sent."""
EAGER_BATCHES = 4
"""With fewer batches in flight than this, an open batch is sent without waiting to fill up."""


class Options(msgspec.Struct, frozen=True):
    """The settings of one client."""

    addresses: tuple[str, ...] = (DEFAULT_ADDRESS,)
    name: str = "rostra-python"
    auto_create: bool = True
    connect_timeout_ms: int = 5_000
    call_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000
    backoff_ms: int = 50
    backoff_ms_max: int = 2_000
    busy_poll_ms: int = 0
    """How long a client polls its socket before it sleeps: lower latency, at the cost of a CPU core."""

    def __post_init__(self) -> None:
        if not self.addresses:
            raise InvalidSetting("addresses", "at least one is needed")
        for address in self.addresses:
            check_address(address)
        for setting in ("connect_timeout_ms", "call_timeout_ms", "delivery_timeout_ms", "backoff_ms"):
            if getattr(self, setting) <= 0:
                raise InvalidSetting(setting, "it must be above zero")
        if self.busy_poll_ms < 0:
            raise InvalidSetting("busy_poll_ms", "it must not be negative")
        if self.backoff_ms_max < self.backoff_ms:
            raise InvalidSetting("backoff_ms_max", f"it is below backoff_ms = {self.backoff_ms}")


class ProducerSettings(msgspec.Struct, frozen=True):
    """The settings of one producer."""

    acks: Acks = "all"
    batch_bytes: int = 524_288
    linger_ms: int = 0
    window_bytes: int = 8 << 20
    codec: Codec = Codec.NONE
    partition: int | None = None
    strength: int | None = None
    """None: it registers only where ownership is exclusive, with the lowest strength."""
    lease_ms: int = PUBLISHER_LEASE_MS

    def __post_init__(self) -> None:
        if self.acks not in ("none", "owner", "all"):
            raise InvalidSetting("acks", f"{self.acks!r} is none of 'none', 'owner', 'all'")
        if self.batch_bytes < 1:
            raise InvalidSetting("batch_bytes", "it must be above zero")
        if self.window_bytes < self.batch_bytes:
            raise InvalidSetting("window_bytes", f"it is below batch_bytes = {self.batch_bytes}")
        if self.linger_ms < 0:
            raise InvalidSetting("linger_ms", "it must not be negative")
        if self.partition is not None and self.partition < 0:
            raise InvalidSetting("partition", "it must not be negative")
        if self.strength is not None:
            check_strength(self.strength)
        least, most = PUBLISHER_LEASE_MS_MIN, PUBLISHER_LEASE_MS_MAX
        if not least <= self.lease_ms <= most:
            raise InvalidSetting("lease_ms", f"{self.lease_ms} is not within {least} and {most}")


def check_strength(strength: int) -> None:
    if not 0 <= strength <= STRENGTH_MAX:
        raise InvalidSetting("strength", f"{strength} is not within 0 and {STRENGTH_MAX}")


class MemberSettings(msgspec.Struct, frozen=True):
    """The settings of one member of a consumer group."""

    patterns: tuple[str, ...] = ()
    """Topics and patterns; if empty, those of the last member that joined."""
    start: Start = "latest"
    tries_max: int = 0
    dead_letter: str = ""
    lease_ms: int = LEASE_MS
    credit_bytes: int = 1 << 20
    client: str = ""
    alter: bool = False
    """Replace the settings of a group that has other members, instead of being refused if they differ."""

    def __post_init__(self) -> None:
        wire_start(self.start)
        for pattern in self.patterns:
            Pattern.parse(pattern)
        if len(self.patterns) > PATTERNS_MAX:
            raise InvalidSetting("patterns", f"there are more than {PATTERNS_MAX}")
        if self.tries_max < 0:
            raise InvalidSetting("tries", "it must not be negative; 0 means without end")
        if self.dead_letter:
            check_topic_name(self.dead_letter)
        if not LEASE_MS_MIN <= self.lease_ms <= LEASE_MS_MAX:
            raise InvalidSetting("lease_ms", f"it must be {LEASE_MS_MIN} to {LEASE_MS_MAX}")
        if self.credit_bytes < 1:
            raise InvalidSetting("credit_bytes", "it must be above zero")


class Offset(msgspec.Struct, frozen=True):
    """Start at this offset.

    >>> client.subscribe("orders", start=rostra.Offset(1000))  # doctest: +SKIP
    """

    offset: int

    def __post_init__(self) -> None:
        if self.offset < 0:
            raise InvalidSetting("start", f"offset {self.offset} is negative")


class Last(msgspec.Struct, frozen=True):
    """Start this many records before the end.

    >>> client.subscribe("orders", start=rostra.Last(10))  # doctest: +SKIP
    """

    count: int

    def __post_init__(self) -> None:
        if self.count < 0:
            raise InvalidSetting("start", f"the last {self.count} records do not exist")


class Moment(Protocol):
    """What `datetime.datetime` offers."""

    def timestamp(self) -> float: ...


class Time(msgspec.Struct, frozen=True):
    """Start at the first record whose timestamp is not earlier than these microseconds since 1970, UTC.

    >>> client.subscribe("orders", start=rostra.Time(1_763_287_200_000_000))  # doctest: +SKIP
    >>> client.subscribe("orders", start=rostra.Time.of(datetime.now() - timedelta(minutes=10)))  # doctest: +SKIP
    """

    timestamp_us: int

    def __post_init__(self) -> None:
        if not 0 <= self.timestamp_us < 1 << 63:
            raise InvalidSetting("start", f"{self.timestamp_us} are no microseconds since 1970")

    @classmethod
    def of(cls, moment: Moment) -> Self:
        """Convert a `datetime`; without a time zone it is local time."""
        return cls(round(moment.timestamp() * 1_000_000))


Start = str | Offset | Last | Time

BelowStart = Literal["raise", "earliest"]
"""What a subscription does when retention has removed what it would read next: end with `OffsetOutOfRange`, or continue
with the earliest record that is left and emit a `Skipped` event."""


def checked_below_start(below_start: BelowStart) -> BelowStart:
    if below_start not in get_args(BelowStart):
        raise InvalidSetting("below_start", f"{below_start!r} is neither 'raise' nor 'earliest'")
    return below_start


def wire_start(start: Start) -> tuple[StartAt, int]:
    match start:
        case Offset(offset):
            return "offset", offset
        case Last(count):
            return "last", count
        case Time(timestamp_us):
            return "time", timestamp_us
        case "earliest":
            return "earliest", 0
        case "latest":
            return "latest", 0
        case _:
            raise InvalidSetting("start", f"{start!r} is none of 'earliest', 'latest', Offset(n), Last(n), Time(us)")


def check_group_name(name: str) -> None:
    """Check that the name is spelled like a topic name."""
    try:
        check_topic_name(name)
    except InvalidTopicName as error:
        raise InvalidGroupName(name, error.reason) from None


def check_unnamed(tries: int, dead_letter: str, lease_ms: int) -> None:
    """Refuse what only a subscription with a name can have."""
    given = {"tries": tries != 0, "dead_letter": dead_letter != "", "lease_ms": lease_ms != LEASE_MS}
    for setting in (setting for setting, is_given in given.items() if is_given):
        raise InvalidSetting(setting, "it needs a subscription with a name: subscribe(..., name=...)")


def parse_codec(codec: str | None) -> Codec:
    match codec:
        case None | "none":
            return Codec.NONE
        case "lz4":
            return Codec.LZ4
        case "zstd":
            return Codec.ZSTD
        case _:
            raise InvalidSetting("codec", f"{codec!r} is none of 'none', 'lz4', 'zstd'")


def check_topic_settings(settings: TopicSettings) -> None:
    """Check the bounds of the wire format; a node closes the connection when they are broken."""
    for field in msgspec.structs.fields(TopicSettings):
        try:
            msgspec.convert(getattr(settings, field.name), field.type)
        except msgspec.ValidationError as error:
            raise InvalidSetting(field.name, str(error)) from None


def changed_settings(**settings: int | str | None) -> dict[str, int | str]:
    """Return the settings that are not None, checked against their bounds."""
    changes = {name: value for name, value in settings.items() if value is not None}
    if not changes:
        raise InvalidSetting("settings", "none is given that should change")
    for field in msgspec.structs.fields(TopicSettings):
        if field.name in changes:
            try:
                msgspec.convert(changes[field.name], field.type)
            except msgspec.ValidationError as error:
                raise InvalidSetting(field.name, str(error)) from None
    return {name: int(value) if isinstance(value, bool) else value for name, value in changes.items()}


def check_address(address: str) -> None:
    if unix_path(address) is None:
        host_and_port(address)


def unix_path(address: str) -> str | None:
    """The path of `unix:PATH`, a socket in this machine's file system; None for any other address."""
    path = address.removeprefix(UNIX)
    if path == address:
        return None
    if not 0 < len(path.encode()) <= UNIX_PATH_BYTES_MAX:
        raise InvalidSetting("addresses", f"{address!r} is not unix:PATH, with at most {UNIX_PATH_BYTES_MAX} bytes")
    return path


def host_and_port(address: str) -> tuple[str, int]:
    """Split `host`, `host:port` or `[v6]:port`; the default port is 7400."""
    host, colon, port = address.rpartition(":")
    if not colon or address.endswith("]"):
        host, port = address, str(PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise InvalidSetting("addresses", f"{address!r} is not host:port, nor unix:PATH")
    return host, int(port)
