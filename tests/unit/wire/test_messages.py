"""The closed set of messages: every one survives the wire, and versions N and N+1 understand each other."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import inspect

from rostra.wire.features import FEATURES, in_common
from rostra.wire.fields import Message
from rostra.wire.frames import FROM_CLIENT, FROM_NODE, FrameReader, encode
from tests.unit.wire.streams import ALL_KINDS, CLIENT_KINDS, NODE_KINDS, framed, sent

FRAME_BYTES_MAX = 1 << 20


def received(message: Message, payload: bytes) -> list[Any]:
    dialect: Any = FROM_CLIENT if type(message) in CLIENT_KINDS else FROM_NODE
    reader: FrameReader[Any] = FrameReader(dialect, FRAME_BYTES_MAX)
    return reader.feed(encode(message, len(payload)) + payload)


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=25)
@given(drawn=st.data())
def test_every_kind_of_message_arrives_as_it_was_sent(kind: type[Message], drawn: st.DataObject) -> None:
    message, payload = drawn.draw(sent(kind))
    assert received(message, payload) == [(message, bytearray(payload) if payload else None)]


def test_no_two_kinds_share_a_number_and_none_is_zero() -> None:
    numbers = [kind.kind for kind in ALL_KINDS]
    assert len(set(numbers)) == len(numbers)
    assert min(numbers) > 0


def test_only_pings_pongs_and_goodbyes_go_both_ways() -> None:
    both = {kind.__name__ for kind in CLIENT_KINDS} & {kind.__name__ for kind in NODE_KINDS}
    assert both == {"Ping", "Pong", "Goodbye"}


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=25)
@given(drawn=st.data())
def test_an_older_side_ignores_fields_that_a_newer_one_appended(kind: type[Message], drawn: st.DataObject) -> None:
    message, payload = drawn.draw(sent(kind))
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    appended = drawn.draw(st.lists(st.integers(0, 9) | st.text(max_size=5) | st.lists(st.booleans(), max_size=3)))
    newer = framed(kind.kind, msgspec.msgpack.encode([*fields, *appended]), payload)
    dialect: Any = FROM_CLIENT if kind in CLIENT_KINDS else FROM_NODE
    assert FrameReader(dialect, FRAME_BYTES_MAX).feed(newer) == received(message, payload)


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.__name__)
def test_a_newer_side_fills_in_what_an_older_one_did_not_know(kind: type[Message]) -> None:
    """A class with one field more, as the next version would have it, reads what this version writes."""
    newer = msgspec.defstruct(
        f"Newer{kind.__name__}",
        [("appended", int, 7)],
        bases=(kind,),
        frozen=True,
        array_like=True,
    )
    required = [field for field in _fields(kind) if field.required]
    written = msgspec.msgpack.encode([_least(field.type) for field in required])
    assert msgspec.msgpack.decode(written, type=newer).appended == 7  # type: ignore[attr-defined]


def test_two_sides_agree_on_the_features_that_both_know() -> None:
    assert in_common(("groups", "unheard-of", "patterns"), known=("patterns", "groups", "own")) == (
        "patterns",
        "groups",
    )
    assert in_common(("unheard-of",)) == ()
    assert in_common(FEATURES) == FEATURES


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.__name__)
def test_every_text_list_and_table_in_a_message_has_a_bound(kind: type[Message]) -> None:
    for field in _fields(kind):
        _bounded(field.type, f"{kind.__name__}.{field.name}")


def _fields(kind: type[Message]) -> tuple[inspect.Field, ...]:
    found = inspect.type_info(kind)
    assert isinstance(found, inspect.StructType)
    return found.fields


def _bounded(found: inspect.Type, place: str) -> None:
    match found:
        case inspect.StrType() | inspect.VarTupleType() | inspect.DictType():
            assert found.max_length is not None, f"{place} has no bound"
        case inspect.StructType():
            for field in found.fields:
                _bounded(field.type, f"{place}.{field.name}")
        case inspect.UnionType():
            for one in found.types:
                _bounded(one, place)
        case _:
            pass


def _least(found: inspect.Type) -> Any:
    """The smallest value of a type."""
    match found:
        case inspect.IntType():
            return found.ge or 0
        case inspect.StrType():
            return ""
        case inspect.BoolType():
            return False
        case inspect.LiteralType():
            return found.values[0]
        case inspect.VarTupleType():
            return []
        case inspect.DictType():
            return {}
        case inspect.StructType():
            return [_least(field.type) for field in found.fields]
        case _:
            raise NotImplementedError(f"no least {found}")
