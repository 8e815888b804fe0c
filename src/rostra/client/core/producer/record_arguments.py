"""Checks of the arguments of `send` and `publish`, before a record enters a batch that it shares with others."""

from __future__ import annotations

from collections.abc import Sequence

from rostra.errors import InvalidArgument, InvalidSetting
from rostra.model.encode import Headers

_TIMESTAMP_MAX = 1 << 63
_VALUE_TYPES = {bytes, type(None)}
_ENCODE = "use text.encode()"
_HINTS: dict[type, str] = {
    str: _ENCODE,
    bytearray: "use bytes(...)",
    memoryview: "use bytes(...)",
    dict: "use json.dumps(...).encode()",
    list: "use json.dumps(...).encode()",
}


def checked_record(
    value: object, key: object, headers: object, timestamp: object, partition: object
) -> tuple[tuple[str, bytes], ...] | None:
    """Raise if an argument has the wrong type; return the headers, copied so that the caller may change its list."""
    if value is not None and type(value) is not bytes:
        _check_bytes("value", value)
    if key is not None and type(key) is not bytes:
        _check_bytes("key", key)
    if timestamp is not None:
        _check_timestamp(timestamp)
    if partition is not None:
        _check_partition(partition)
    return None if headers is None else _checked_headers(headers)


def check_values(values: Sequence[object], first: int = 0) -> None:
    """Raise if one of the values is neither bytes nor None; `first` is the index of the first one in the call."""
    if not set(map(type, values)) <= _VALUE_TYPES:
        for at, value in enumerate(values, first):
            if value is not None:
                _check_bytes(f"values[{at}]", value)


def _check_bytes(argument: str, given: object) -> None:
    if not isinstance(given, bytes):
        raise InvalidArgument(argument, "bytes", type(given).__name__, _HINTS.get(type(given), ""))


def _check_timestamp(timestamp: object) -> None:
    if not isinstance(timestamp, int) or isinstance(timestamp, bool):
        hint = "use int(time.time() * 1_000_000)" if isinstance(timestamp, float) else ""
        raise InvalidArgument("timestamp", "int microseconds since 1970", type(timestamp).__name__, hint)
    if not -_TIMESTAMP_MAX <= timestamp < _TIMESTAMP_MAX:
        raise InvalidSetting("timestamp", f"{timestamp} does not fit into 64 bits of microseconds since 1970")


def _check_partition(partition: object) -> None:
    if not isinstance(partition, int) or isinstance(partition, bool):
        raise InvalidArgument("partition", "int", type(partition).__name__, "")
    if partition < 0:
        raise InvalidSetting("partition", "it must not be negative")


def _checked_headers(headers: object) -> tuple[tuple[str, bytes], ...]:
    if isinstance(headers, str | bytes | dict) or not isinstance(headers, Sequence):
        hint = "use list(headers.items())" if isinstance(headers, dict) else 'such as [("name", b"value")]'
        raise InvalidArgument("headers", "a list of (name, value) pairs", type(headers).__name__, hint)
    return tuple(map(_checked_header, headers))


def _checked_header(pair: object) -> tuple[str, bytes]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InvalidArgument("a header", "a pair of name and value", type(pair).__name__, "")
    name, value = pair
    if not isinstance(name, str):
        raise InvalidArgument("a header name", "str", type(name).__name__, "")
    if not isinstance(value, bytes):
        hint = _ENCODE if isinstance(value, str) else ""
        raise InvalidArgument(f"the value of header {name!r}", "bytes", type(value).__name__, hint)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidSetting("headers", f"the name {name!r} is not valid Unicode") from None
    return name, value


def headers_bytes(headers: Headers) -> int:
    """About the size of the headers in a batch."""
    return sum(len(name) + len(content) + 8 for name, content in headers)
