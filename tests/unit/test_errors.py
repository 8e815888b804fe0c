"""Every error has a type, a fact and a remedy, and crosses the wire."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import msgspec
import pytest

from rostra import errors
from rostra.cli.remedies import cli_remedy
from rostra.errors import ClientClosed, RemoteError, RostraError, TopicExists, UnknownTopic, from_wire
from rostra.wire.frames import FROM_NODE, FrameReader, encode
from rostra.wire.messages import Failed

RAISED = [kind for kind in RostraError.kinds.values() if "__dataclass_fields__" in kind.__dict__]


def example(kind: type[RostraError]) -> RostraError:
    values: list[Any] = [7 if field.type == "int" else "some-text" for field in fields(kind)]  # type: ignore[arg-type]
    return kind(*values)


@pytest.mark.requirement("CM-11")
@pytest.mark.parametrize("kind", RAISED, ids=lambda kind: kind.__name__)
def test_an_error_has_a_fact_and_a_remedy_and_crosses_the_wire(kind: type[RostraError]) -> None:
    error = example(kind)
    assert kind.fact != RostraError.fact
    assert kind.remedy != RostraError.remedy
    assert "{" not in str(error)
    assert isinstance(error.retryable, bool)
    sent = Failed(3, kind.__name__, error.carried())
    ((received, _),) = FrameReader(FROM_NODE).feed(encode(sent))
    assert isinstance(received, Failed)
    rebuilt = from_wire(received.code, received.carried)
    assert type(rebuilt) is kind
    assert str(rebuilt) == str(error)
    assert rebuilt.retryable == error.retryable


@pytest.mark.parametrize("kind", RAISED, ids=lambda kind: kind.__name__)
def test_an_error_is_in_the_tree_of_the_module_docstring(kind: type[RostraError]) -> None:
    assert kind.__name__ in str(errors.__doc__)


@pytest.mark.parametrize(
    ("code", "carried"),
    [
        ("FromTheFuture", {"fact": 1}),
        ("RostraError", {}),
        ("TopicError", {}),
        ("UnknownProducer", {}),
        ("UnknownProducer", {"producer": "text"}),
        ("UnknownTopic", {"topic": 5}),
        ("__init__", {}),
    ],
)
def test_an_unknown_error_becomes_a_remote_error(code: str, carried: dict[str, Any]) -> None:
    error = from_wire(code, carried)
    assert type(error) is RemoteError
    assert code in str(error)


def test_unknown_fields_of_an_error_are_ignored() -> None:
    error = from_wire("UnknownTopic", {"topic": "t", "since": 5})
    assert str(error) == str(errors.UnknownTopic("t"))


def test_errors_keep_their_fields_when_pickled() -> None:
    for kind in RAISED:
        error = example(kind)
        made, facts = error.__reduce__()
        assert callable(made)
        assert isinstance(facts, tuple)
        assert str(made(*facts)) == str(error)
    assert msgspec.msgpack.encode(example(errors.Moved).carried())


def test_remedies_of_errors_name_no_option_of_the_command_line() -> None:
    assert [name for name, kind in RostraError.kinds.items() if "--" in kind.remedy] == []


def test_the_command_line_has_remedies_of_its_own() -> None:
    assert str(TopicExists("t")).endswith("pass if_not_exists=True")
    assert cli_remedy(TopicExists("t")).endswith("pass --if-not-exists")
    assert cli_remedy(UnknownTopic("t")) == "create it with `rostra topic create t`"
    assert cli_remedy(ClientClosed()) == ClientClosed().remedy
