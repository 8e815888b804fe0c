"""Accounts processor time, to detect trials that were disturbed by other programs."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class CpuMark(msgspec.Struct, frozen=True):
    """Processor seconds so far: of the machine (idle included), in use, and of the benchmark."""

    total_s: float
    busy_s: float
    servers_s: float
    harness_s: float


def cpu_mark(server_pids: Sequence[int]) -> CpuMark:
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return CpuMark(
        total_s=sum(fields) / TICKS_PER_S,
        busy_s=(sum(fields) - idle) / TICKS_PER_S,
        servers_s=sum(tree_cpu_s(pid) for pid in server_pids),
        harness_s=time.process_time(),
    )


def foreign_share(before: CpuMark, after: CpuMark, roles_s: float) -> float:
    """The share of the machine that neither the servers, the roles nor this program used."""
    own_s = after.servers_s - before.servers_s + after.harness_s - before.harness_s + roles_s
    busy_s = after.busy_s - before.busy_s
    return max(0.0, busy_s - own_s) / max(after.total_s - before.total_s, 1 / TICKS_PER_S)


@contextmanager
def kept_apart(server_pids: Sequence[int]) -> Iterator[None]:
    """Pins servers to one core, and this program with its child processes to another, so that trials do not differ by
    how the scheduler placed them. On a machine with one core nothing changes.
    """
    cores = sorted(os.sched_getaffinity(0))
    first, last = cores[:1], cores[-1:]
    for pid in server_pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), first)
    os.sched_setaffinity(0, last)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def tree_cpu_s(root: int) -> float:
    """User and system time of a process and all its descendants."""
    seconds: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it ended while we looked
        pid = int(entry.name)
        seconds[pid] = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
        children.setdefault(int(fields[1]), []).append(pid)
    total, waiting = 0.0, [root]
    while waiting:
        pid = waiting.pop()
        total += seconds.get(pid, 0.0)
        waiting.extend(children.get(pid, ()))
    return total


def wait_for_quiet(share_max: float, timeout_s: float) -> bool:
    """Waits for other programs to finish before a trial begins."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        before = cpu_mark(())
        time.sleep(0.3)
        if foreign_share(before, cpu_mark(()), 0.0) <= share_max:
            return True
    return False


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)
