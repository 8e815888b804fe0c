"""Every setting of the command line: its name, section, parser and default.

One name is used everywhere: `listen` is the flag `--listen`, the variable `ROSTRA_LISTEN`, and the key `listen` under
`[serve]` in a TOML file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, TypeGuard

import msgspec

from rostra.broker.settings import BrokerSettings
from rostra.cli.quantities import parse_bytes, parse_duration_ms
from rostra.model.addresses import UNIX

Section = Literal["client", "serve", "limits"]
Value = str | int | bool | tuple[str, ...]

DEFAULT_PORT = 7400
DEFAULT_PEER_PORT = 7401
DEFAULT_NODE = f"127.0.0.1:{DEFAULT_PORT}"
PREFIX = "ROSTRA_"
NODE_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Setting(msgspec.Struct, frozen=True):
    """`parse` takes the value from a flag, variable or file; it raises ValueError with what was expected."""

    section: Section
    name: str
    default: Value
    parse: Callable[[object], Value]
    meaning: str

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    def parse_flag(self, given: object) -> Value:
        """As `parse`, but a duration needs a unit: `--stop-deadline 5` does not say five of what."""
        if self.option.endswith(self.name.replace("_", "-")) or self.section == "limits":
            return self.parse(given)
        return parse_duration_ms(str(given))

    @property
    def option(self) -> str:
        """The flag, whose value may have a unit."""
        if self.section == "limits":
            return f"--limit {self.name}"
        return "--" + self.name.removesuffix("_ms").replace("_", "-")


def text(given: object) -> Value:
    if not isinstance(given, str) or not given:
        raise ValueError(f"{given!r} is not a text")
    return given


def node_name(given: object) -> Value:
    if not isinstance(given, str) or not NODE_NAME.fullmatch(given):
        raise ValueError(f"{given!r} is not a name of 1 to 64 letters, digits, '.', '_' and '-'")
    return given


def addresses(given: object) -> Value:
    """One address, several separated by commas, or a list; the port defaults to 7400. Or `unix:PATH`."""
    found = _listed(given, DEFAULT_PORT, unix=True)
    if not found:
        raise ValueError("no address is given")
    return found


def peer_addresses(given: object) -> Value:
    """Addresses for other nodes, possibly none; the port defaults to 7401."""
    return _listed(given, DEFAULT_PEER_PORT)


def _listed(given: object, port: int, *, unix: bool = False) -> tuple[str, ...]:
    listed = given.split(",") if isinstance(given, str) else given
    if not isinstance(listed, list | tuple) or not all(isinstance(address, str) for address in listed):
        raise ValueError(f"{given!r} is not an address or a list of addresses")
    found = tuple(address.strip() for entry in listed for address in entry.split(",") if address.strip())
    complete = tuple(f"{address}:{port}" if ":" not in address else address for address in found)
    for address in complete:
        if not (unix and address.startswith(UNIX)):
            listen_address(address, port_min=1)
    return complete


def listen_address(given: object, *, port_min: int = 0) -> Value:
    host, colon, port = given.rpartition(":") if isinstance(given, str) else ("", "", "")
    if not (host and colon and port.isdecimal() and port_min <= int(port) < 65_536):
        raise ValueError(f"{given!r} is not HOST:PORT, for example 127.0.0.1:7400")
    return f"{host}:{port}"


def listen_address_or_none(given: object) -> Value:
    return "" if given == "" else listen_address(given)


def listen_address_or_off(given: object) -> Value:
    return "off" if given in ("off", "", False) else listen_address(given)


def choice(*choices: str) -> Callable[[object], Value]:
    def parse(given: object) -> Value:
        if given not in choices:
            raise ValueError(f"{given!r} is none of {', '.join(choices)}")
        return str(given)

    return parse


def count(given: object) -> Value:
    if isinstance(given, str) and given.isdecimal():
        return int(given)
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise ValueError(f"{given!r} is not a number of zero or more")
    return given


def byte_count(given: object) -> Value:
    """A size; without a unit in bytes, which the name of the setting says."""
    return parse_bytes(given) if _has_unit(given) else count(given)


def duration_ms(given: object) -> Value:
    """A duration; without a unit in milliseconds, which the name of the setting says."""
    return parse_duration_ms(given) if _has_unit(given) else count(given)


def assignments(given: object) -> Value:
    """NAME=VALUE, several separated by commas, or a list."""
    listed = given.split(",") if isinstance(given, str) else given
    if not isinstance(listed, list | tuple) or not all(isinstance(one, str) and "=" in one for one in listed):
        raise ValueError(f"{given!r} is not NAME=VALUE or a list of these")
    return tuple(one.strip() for one in listed)


def _has_unit(given: object) -> TypeGuard[str]:
    return isinstance(given, str) and not given.strip().isdecimal()


def flag(given: object) -> Value:
    match given:
        case bool():
            return given
        case str() if given.lower() in ("1", "true", "yes", "on"):
            return True
        case str() if given.lower() in ("0", "false", "no", "off"):
            return False
        case _:
            raise ValueError(f"{given!r} is neither true nor false")


def _limits() -> tuple[Setting, ...]:
    """The limits of the broker, by their names in `BrokerSettings`."""
    meaning = "a limit of the node, explained in docs/cli.md"
    fields = msgspec.structs.fields(BrokerSettings)
    return tuple(Setting("limits", field.name, field.default, parser_of(field), meaning) for field in fields)


def parser_of(field: msgspec.structs.FieldInfo) -> Callable[[object], Value]:
    """The parser of a field of a settings type: its name says the unit."""
    if field.type is bool:
        return flag
    if "bytes" in field.name:
        return byte_count
    return duration_ms if "_ms" in field.name else count


CLIENT = (
    Setting("client", "node", (DEFAULT_NODE,), addresses, "addresses of nodes to connect to, tried in turn"),
    Setting("client", "output", "auto", choice("auto", "table", "json"), "auto: table on a terminal, json on a pipe"),
    Setting("client", "acks", "all", choice("none", "owner", "all"), "what a publish waits for"),
    Setting("client", "connect_timeout_ms", 3_000, duration_ms, "how long to try to reach a node"),
)
SERVE = (
    Setting("serve", "data", "./rostra-data", text, "data directory; created if missing"),
    Setting("serve", "name", "", node_name, "name of the node in tables and logs; empty: its address"),
    Setting("serve", "listen", DEFAULT_NODE, listen_address, "address for clients; port 0 chooses a free one"),
    Setting("serve", "listen_unix", "", text, "path of a Unix socket for clients on the same machine; empty: none"),
    Setting(
        "serve",
        "join",
        (),
        peer_addresses,
        "peer addresses of members to join; none: found a cluster",
    ),
    Setting("serve", "peer_listen", "", listen_address_or_none, "address for other nodes; empty: next port"),
    Setting("serve", "advertise", "", listen_address_or_none, "address announced to clients; empty: listen address"),
    Setting(
        "serve",
        "advertise_peers",
        "",
        listen_address_or_none,
        "address announced to nodes; empty: peer_listen",
    ),
    Setting("serve", "fsync", "commit", choice("commit", "never"), "commit: fsync before acknowledging"),
    Setting("serve", "metrics", "off", listen_address_or_off, "address of the Prometheus metrics, or off"),
    Setting("serve", "trace", "", text, "directory for the node's trace, which `rostra pipeline audit` reads"),
    Setting("serve", "log_level", "info", choice("debug", "info", "warning", "error"), "least severe log line shown"),
    Setting("serve", "stop_deadline_ms", 10_000, duration_ms, "how long a graceful stop may take"),
    Setting("serve", "fabric", "raft", text, "replication: raft, or flood for a ring of brokers"),
    Setting("serve", "set", (), assignments, "settings of the fabric, each NAME=VALUE"),
    Setting("serve", "busy_poll_ms", 0, duration_ms, "how long to poll sockets before sleeping"),
)
SETTINGS: tuple[Setting, ...] = (*CLIENT, *SERVE, *_limits())
BY_NAME = {setting.name: setting for setting in SETTINGS}
