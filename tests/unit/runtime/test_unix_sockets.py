"""A socket in the file system, for clients on the same machine."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

import rostra
import rostra.testing
from rostra import blocking
from rostra.client.core.options import Options
from rostra.errors import InvalidSetting, Unreachable
from rostra.runtime.network.addresses import bind_unix, close_unix


def test_a_blocking_client_publishes_and_subscribes_through_it_as_through_any_address(tmp_path: Path) -> None:
    path = tmp_path / "r.sock"
    with rostra.testing.node(listen_unix=path) as node, blocking.connect(f"unix:{path}") as client:
        client.publish("t", b"1")
        with blocking.connect(node.address) as by_port, by_port.subscribe("t", start="earliest") as theirs:
            assert next(iter(theirs)).value == b"1"
        with client.subscribe("t", start="earliest") as ours:
            assert next(iter(ours)).value == b"1"
    assert not path.exists(), "nothing is left behind"


def test_an_asyncio_client_does_too(tmp_path: Path) -> None:
    path = tmp_path / "r.sock"

    async def talk() -> bytes | None:
        async with await rostra.connect(f"unix:{path}") as client:
            await client.publish("t", b"1")
            async with client.subscribe("t", start="earliest") as records:
                return (await anext(aiter(records))).value

    with rostra.testing.node(listen_unix=path):
        assert asyncio.run(talk()) == b"1"


def test_a_client_comes_back_by_it_after_the_node_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "r.sock"
    with rostra.testing.node(listen_unix=path) as node, blocking.connect(f"unix:{path}") as client:
        client.publish("t", b"1")
        node.kill()
        with bind_unix(str(path)):
            pass
        assert path.exists(), "as a killed process leaves it"
        node.restart()
        client.publish("t", b"2")
        with client.subscribe("t", start="earliest") as records:
            assert [next(iter(records)).value for _ in range(2)] == [b"1", b"2"]


def test_where_a_node_listens_no_other_one_does(tmp_path: Path) -> None:
    path = str(tmp_path / "r.sock")
    with bind_unix(path) as bound:
        bound.listen()
        with pytest.raises(OSError, match="in use"):
            bind_unix(path)
        close_unix(bound, path)
    assert not Path(path).exists()


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("kept")
    with pytest.raises(OSError, match="in use"):
        bind_unix(str(path))
    assert path.read_text() == "kept"


def test_a_path_that_the_system_would_not_take_is_refused_on_both_sides(tmp_path: Path) -> None:
    path = f"/{'x' * 107}"
    with pytest.raises(InvalidSetting, match="107"):
        bind_unix(path)
    for address in (f"unix:{path}", "unix:"):
        with pytest.raises(InvalidSetting, match="107"):
            Options(addresses=(address,))


def test_a_path_without_a_listener_is_reported_as_unreachable(tmp_path: Path) -> None:
    with pytest.raises(Unreachable), blocking.connect(f"unix:{tmp_path / 'nobody'}", connect_timeout_ms=50):
        pass


def test_the_socket_file_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    path = str(tmp_path / "r.sock")
    before = os.umask(0o077)
    try:
        bound = bind_unix(path)
    finally:
        os.umask(before)
    assert bound.family == socket.AF_UNIX
    assert Path(path).stat().st_mode & 0o777 == 0o700
    close_unix(bound, path)
