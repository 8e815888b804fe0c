"""The asyncio client and the blocking one: the same names, the same arguments, context managers, types."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import rostra
from rostra import blocking
from rostra.errors import InvalidSetting
from rostra.testing.embedded import EmbeddedNode

PAIRS = [
    (rostra.Client, blocking.Client),
    (rostra.Producer, blocking.Producer),
    (rostra.Subscription, blocking.Subscription),
    (rostra.NamedSubscription, blocking.NamedSubscription),
    (rostra.User, blocking.User),
]
BLOCKING_ONLY: dict[str, set[str]] = {"Subscription": {"poll"}}
"""A blocking program polls with a timeout; an asyncio one cancels its wait instead."""


def public(kind: type[Any]) -> dict[str, Any]:
    return {name: member for name, member in inspect.getmembers(kind) if not name.startswith("_")}


def parameters(call: Callable[..., object]) -> dict[str, object]:
    return {name: parameter.default for name, parameter in inspect.signature(call).parameters.items()}


@pytest.mark.requirement("CM-22:same-names")
@pytest.mark.parametrize(("asyncio_kind", "blocking_kind"), PAIRS, ids=[pair[0].__name__ for pair in PAIRS])
def test_both_clients_have_the_same_names_with_the_same_arguments(
    asyncio_kind: type[Any], blocking_kind: type[Any]
) -> None:
    ours, theirs = public(asyncio_kind), public(blocking_kind)
    assert theirs.keys() - ours.keys() == BLOCKING_ONLY.get(asyncio_kind.__name__, set())
    assert ours.keys() <= theirs.keys()
    for name, member in ours.items():
        if not callable(member):
            assert type(member) is type(theirs[name]), name
            continue
        expected = parameters(member)
        given = parameters(theirs[name])
        # A wait that cannot be cancelled takes a timeout.
        assert {**expected, "timeout": None} == {**given, "timeout": None}, name


@pytest.mark.requirement("CM-22:same-names")
def test_both_are_opened_by_connect_with_the_same_options() -> None:
    assert parameters(rostra.connect) == parameters(blocking.connect)


@pytest.mark.requirement("CM-22:idioms")
@pytest.mark.parametrize(("asyncio_kind", "blocking_kind"), PAIRS, ids=[pair[0].__name__ for pair in PAIRS])
def test_both_are_context_managers_and_subscriptions_are_iterated(
    asyncio_kind: type[Any], blocking_kind: type[Any]
) -> None:
    assert {"__aenter__", "__aexit__"} <= set(dir(asyncio_kind))
    assert {"__enter__", "__exit__"} <= set(dir(blocking_kind))
    if asyncio_kind in (rostra.Subscription, rostra.NamedSubscription):
        assert {"__aiter__", "__anext__"} <= set(dir(asyncio_kind))
        assert {"__iter__", "__next__"} <= set(dir(blocking_kind))


def calls() -> Iterator[Any]:
    yield from (rostra.connect, blocking.connect)
    for pair in PAIRS:
        for kind in pair:
            for member in public(kind).values():
                yield member.fget if isinstance(member, property) else member


@pytest.mark.requirement("CM-22:typed")
def test_everything_public_is_typed_and_the_package_says_so() -> None:
    assert (Path(rostra.__file__).parent / "py.typed").is_file()
    for call in calls():
        if not callable(call):
            continue
        hints = set(_annotations(call))
        wanted = {*inspect.signature(call).parameters, "return"} - {"self"}
        assert wanted <= hints, f"{call.__qualname__} lacks types for {wanted - hints}"


def _annotations(call: Any) -> dict[str, object]:
    return dict(getattr(call, "__annotations__", None) or get_type_hints(call))


def test_every_public_name_is_there_when_asked_for_and_no_other() -> None:
    for name in rostra.__all__:
        assert getattr(rostra, name) is not None
    unknown = "nonsense"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        getattr(rostra, unknown)


def test_a_setting_out_of_bounds_is_refused_before_it_is_sent(rostra_node: EmbeddedNode) -> None:
    with rostra_node.client() as client:
        with pytest.raises(InvalidSetting, match="segment_bytes"):
            client.create_topic("t", segment_bytes=1)
        with pytest.raises(InvalidSetting, match="partitions"):
            client.create_topic("t", partitions=0)
        assert client.list_topics() == ()
        assert list(client.events())[1:] == []


def test_dir_lists_the_public_names_before_any_of_them_is_used() -> None:
    code = "import rostra; print(sorted(set(rostra.__all__) - set(dir(rostra))))"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert listed.stdout == "[]\n"
