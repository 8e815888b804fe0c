"""Three servers of one contender: begun together, awaited together, and stopped together if one fails."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.servers import Servers

NODES = 3
START_TIMEOUT_S = 90.0
POLL_S = 0.02


class Launch(msgspec.Struct, frozen=True):
    """One server: its command, its folder, the port that says when it is up."""

    command: Sequence[str | Path]
    folder: Path
    port: int
    environment: Mapping[str, str] | None = None


def start_together(servers: Servers, launches: Sequence[Launch]) -> tuple[int, ...]:
    """Their process ids, once every port answers."""
    deadline = time.monotonic() + START_TIMEOUT_S
    pids: list[int] = []
    try:
        for each in launches:
            pids.append(servers.launch(each.command, each.folder, environment=each.environment))
        for pid, each in zip(pids, launches, strict=True):
            servers.await_port(pid, each.folder, each.port, deadline)
    except Exception:
        # Two thirds of a cluster are no use, and would hold memory until the end of the run.
        servers.stop(pids, 0.0)
        raise
    return tuple(pids)


def node_folder(folder: Path, number: int) -> Path:
    return folder / f"node-{number}"


def node_folders(folder: Path, count: int = NODES) -> list[Path]:
    folders = [node_folder(folder, number) for number in range(count)]
    for each in folders:
        each.mkdir()
    return folders


def wait_until(is_true: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(POLL_S)
