"""What every scenario works with: servers, findings, a voice, and how long it may take."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console

from benchmarks.contender import Contender, Endpoint, Unavailable
from benchmarks.estimates import Estimate, median_estimate
from benchmarks.findings import Comparison, Figure, Findings, Target, Verdict
from benchmarks.harness import Trial, TrialFailed, undisturbed
from benchmarks.servers import STOP_TIMEOUT_S, ServerFailed, Servers

Measurement = Callable[[], Trial]


class Workbench:
    def __init__(self, servers: Servers, console: Console, *, is_quick: bool) -> None:
        self.servers = servers
        self.findings = Findings()
        self.is_quick = is_quick
        self._console = console

    @property
    def rounds(self) -> int:
        return 3 if self.is_quick else 5

    def scaled(self, count: int) -> int:
        """Fewer records when time is short; still a multiple of the hand-made batch."""
        return count // 4 if self.is_quick else count

    def say(self, line: str) -> None:
        self._console.print(line, highlight=False)

    @contextmanager
    def running(self, contender: Contender) -> Iterator[Endpoint | None]:
        """The contender's servers for the time of the block; None, and a line, if it cannot run."""
        endpoint = None
        try:
            endpoint = contender.start(self.servers)
        except (Unavailable, ServerFailed) as error:
            self.findings.note_absence(contender.name, str(error))
            self.say(f"  {contender.name}: not measured: {error}")
        else:
            self.findings.note_settings(contender)
        try:
            yield endpoint
        finally:
            if endpoint is not None:
                # The files go with the servers. Nodes of a cluster would wait for each other to take over: not here.
                self.servers.stop(endpoint.pids, 0.0 if endpoint.ports else STOP_TIMEOUT_S)
                if endpoint.folder is not None:
                    shutil.rmtree(endpoint.folder, ignore_errors=True)

    def interleaved(self, measurements: dict[str, Measurement], rounds: int) -> dict[str, list[Trial]]:
        """Each in turn, round after round, so that a slow minute of the machine hits all alike.

        The first run of each only warms up. One that fails is reported and left out.
        """
        trials: dict[str, list[Trial]] = {name: [] for name in measurements}
        failed: set[str] = set()
        for turn in range(1 + rounds):
            for name, measurement in measurements.items():
                if name in failed:
                    continue
                try:
                    trial = undisturbed(measurement) if turn else measurement()
                except TrialFailed as error:
                    failed.add(name)
                    self.findings.note_absence(name, str(error).splitlines()[-1])
                    self.say(f"  {name}: failed: {error}")
                    continue
                if turn:
                    trials[name].append(trial)
        return {name: done for name, done in trials.items() if done and name not in failed}

    def record(
        self,
        scenario: str,
        contender: Contender,
        quantity: str,
        values: Sequence[float],
        trials: Sequence[Trial],
        name: str,
    ) -> None:
        """Keep one figure; the name may say more than the contender's own (hand-batched)."""
        estimate = median_estimate(values)
        disturbed = sum(trial.is_disturbed for trial in trials)
        self.findings.figures.append(
            Figure(
                scenario=scenario,
                contender=name,
                durability=contender.durability.value,
                quantity=quantity,
                estimate=estimate,
                disturbed_trials=disturbed,
            )
        )
        remark = f" ({disturbed} of {len(trials)} trials disturbed)" if disturbed else ""
        self.say(f"  {name}: {estimate.median:,.0f} {quantity}{remark}")

    def compare(self, scenario: str, ours: Contender, peer: Contender, ratio: Estimate, remark: str) -> None:
        self.findings.comparisons.append(
            Comparison(
                scenario=scenario,
                ours=f"{ours.name} ({ours.durability.value})",
                peer=f"{peer.name} ({peer.durability.value})",
                ratio=ratio,
                remark=remark,
            )
        )

    def judge(self, target: Target, measured: Estimate | None, remark: str = "") -> None:
        self.findings.verdicts.append(Verdict(target=target, measured=measured, remark=remark))
