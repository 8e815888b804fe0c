"""Addresses as they are written, bound and told."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rostra.errors import AddressInUse, InvalidSetting
from rostra.runtime.network.addresses import (
    advertised_address,
    bind,
    bound_address,
    default_peer_address,
    join_address,
    split_address,
)
from rostra.testing.embedded import EmbeddedNode


@pytest.mark.parametrize(
    ("written", "host", "port"),
    [
        ("localhost:1", "localhost", 1),
        ("[::1]:7400", "::1", 7400),
        (":0", "127.0.0.1", 0),
        ("1.2.3.4:65535", "1.2.3.4", 65535),
    ],
)
def test_an_address_is_a_host_and_a_port(written: str, host: str, port: int) -> None:
    assert split_address(written) == (host, port)
    assert split_address(join_address(host, port)) == (host, port)


@pytest.mark.parametrize("written", ["localhost", "localhost:", "localhost:x", "localhost:65536", ""])
def test_anything_else_is_refused(written: str) -> None:
    with pytest.raises(InvalidSetting):
        split_address(written)


def test_the_peer_port_follows_the_client_port_by_default() -> None:
    assert default_peer_address("127.0.0.1:7400") == "127.0.0.1:7401"
    assert default_peer_address("127.0.0.1:0") == "127.0.0.1:0"
    assert default_peer_address("[::1]:7400") == "[::1]:7401"


def test_the_bound_address_is_advertised_unless_another_is_set() -> None:
    with bind("127.0.0.1:0") as bound:
        assert advertised_address(bound, "") == bound_address(bound)
        assert advertised_address(bound, "mars:7400") == "mars:7400"


def test_a_wildcard_address_is_advertised_as_the_host_name() -> None:
    with bind("0.0.0.0:0") as bound:
        port = bound.getsockname()[1]
        assert advertised_address(bound, "") == f"{socket.gethostname()}:{port}"


def test_an_address_that_is_only_bound_refuses_connections() -> None:
    with bind("127.0.0.1:0") as bound, pytest.raises(ConnectionRefusedError):
        socket.create_connection(bound.getsockname(), timeout=60)


def test_a_node_does_not_start_on_an_address_in_use(tmp_path: Path) -> None:
    """Two sockets may be bound to one port as long as none of them listens: here the node's own two are."""
    with bind("127.0.0.1:0") as bound:
        address = bound_address(bound)
    node = EmbeddedNode(tmp_path, listen=address, peer_listen=address)
    with pytest.raises(AddressInUse) as caught:
        node.start()
    assert caught.value.address == address
