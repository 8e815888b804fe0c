"""The scenarios in the order they run."""

from collections.abc import Callable, Sequence

from rich.console import Console

from benchmarks import (
    catchup,
    cluster,
    fanout,
    latency,
    many,
    memory,
    pipeline,
    relay,
    ring,
    stall,
    throughput,
    tracing,
)
from benchmarks.findings import Findings
from benchmarks.servers import Servers
from benchmarks.workbench import Workbench

SCENARIOS: dict[str, Callable[[Workbench], None]] = {
    "relay": relay.run,
    "throughput": throughput.run,
    "fanout": fanout.run,
    "latency": latency.run,
    "memory": memory.run,
    "stall": stall.run,
    "catchup": catchup.run,
    "many": many.run,
    "cluster": cluster.run,
    "ring": ring.run,
    "trace": tracing.run,
    "pipeline": pipeline.run,
}


def run_suite(console: Console, names: Sequence[str], *, is_quick: bool) -> Findings:
    with Servers() as servers:
        bench = Workbench(servers, console, is_quick=is_quick)
        for name in names:
            SCENARIOS[name](bench)
        return bench.findings
