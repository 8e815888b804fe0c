"""How many files the logs may keep open, of the descriptors that the system allows."""

from __future__ import annotations

import resource

import pytest

from rostra.runtime.disk.files import FILES_OPEN_MAX, FOR_CONNECTIONS_MIN, claim_descriptors, files_open_max


@pytest.mark.parametrize("allowed", [700, 1024, 20_000, 1 << 20])
def test_connections_find_descriptors_however_many_logs_there_are(
    monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (allowed, allowed))
    assert 0 < files_open_max() <= allowed - FOR_CONNECTIONS_MIN


def test_without_a_limit_of_the_system_there_is_one_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert files_open_max() == FILES_OPEN_MAX


def test_a_node_claims_what_it_may_have() -> None:
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        claim_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
