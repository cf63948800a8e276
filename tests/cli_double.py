"""The real command line on top of a double of the orchestrator: `python cli_double.py run all x.yaml`.

The double forks nothing; each scenario's name says how it ends. A scenario `wait` blocks until a signal, one
named `fds` logs the numbers that new files get.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from dmabuf_mp import model
from dmabuf_mp.__main__ import main
from dmabuf_mp.cli import Services
from dmabuf_mp.errors import Problem, ScenarioError
from dmabuf_mp.model import LinkReport, LogLine, Outcome, Path, Report, Role, Scenario, ScenarioReport

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dmabuf_mp.model import Json, Observer, RunSettings

SPECIAL = {"wait": Outcome.INTERRUPTED, "fds": Outcome.PASSED}
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def load(paths: Sequence[str]) -> tuple[Scenario, ...]:
    """Return one scenario for each path, named like it; `bad` is one with two mistakes."""
    if "bad" in paths:
        raise ScenarioError((Problem("bad", 3, 7, "unknown key 'siez'"), Problem("bad", 4, 1, "no size")))
    if "slow" in paths:
        print("loading", file=sys.stderr, flush=True)
        signal.pause()
    return tuple(
        Scenario(path, 16384, Role("producer"), (Role("consumer"),), file=f"{path}.yaml") for path in paths
    )


def run(scenarios: tuple[Scenario, ...], settings: RunSettings, observer: Observer) -> Report:
    """Tell the observer what an orchestrator would, and judge by the same rules."""
    reports: list[ScenarioReport] = []
    interrupted_by: list[int] = []

    def so_far() -> Report:
        outcomes = tuple(one.outcome for one in reports)
        by = interrupted_by[0] if interrupted_by else None
        code = model.exit_code(
            outcomes, interrupted_by=by, strict=settings.strict, skips_ok=settings.skips_ok
        )
        return Report("2026-01-02T03:04:05+00:00", 0.25, code, {"double": True}, tuple(reports))

    if any(scenario.name == "wait" for scenario in scenarios):
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for index, scenario in enumerate(scenarios):
        observer.scenario_started(index, len(scenarios), scenario.name)
        line = LogLine(0.001, "info", f"{scenario.name}: filled\x1b")
        observer.log(scenario.name, "producer", line)
        observer.log(scenario.name, "producer", replace(line, level="debug", message="a detail"))
        if scenario.name == "fds":
            opened = " ".join(map(str, os.pipe()))
            observer.log(scenario.name, "producer", replace(line, message=opened))
        if scenario.name == "wait":
            print("waiting", file=sys.stderr, flush=True)
            interrupted_by.append(signal.sigwait(SIGNALS))
        reports.append(report(scenario, line, settings))
        observer.scenario_ended(reports[-1], so_far())
    return so_far()


def report(scenario: Scenario, line: LogLine, settings: RunSettings) -> ScenarioReport:
    """Return how the scenario's name says that it ends."""
    outcome = SPECIAL.get(scenario.name) or Outcome(scenario.name)
    worker = model.WorkerReport("producer", 0, "cpu", None, 7, outcome, reason=f"it {outcome}", log=(line,))
    consumer = model.WorkerReport("consumer", 0, "cpu", None, 8, Outcome.PASSED)
    return ScenarioReport(
        name=scenario.name,
        file=scenario.file,
        line=1,
        outcome=outcome,
        observed=outcome,
        reason="" if outcome is Outcome.PASSED else f"it {outcome}",
        reason_code=outcome.value,
        elapsed_s=0.01,
        size_bytes=scenario.size_bytes,
        allocated_bytes=scenario.size_bytes,
        rounds=1,
        links=(LinkReport("producer", "consumer[0]", Path("memfd", "memfd", "mmap"), mismatches=0),),
        workers=(worker, consumer),
        seed=settings.seed,
    )


def devices() -> dict[str, Json]:
    """Return a made-up machine."""
    return {
        "devices": [{"device": "cpu", "memory": 5}, {"device": "cuda:0", "uuid": None}],
        "host": {"a": True},
    }


def explain(scenarios: tuple[Scenario, ...], settings: RunSettings) -> list[dict[str, Json]]:
    """Return a made-up path for each."""
    mapped: Mapping[str, Json] = dict(settings.mapping)
    return [{"name": one.name, "path": "memfd/memfd/mmap", "mapped": mapped} for one in scenarios]


class Runner:
    """Runs nothing, and says what its scenarios' names say."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings

    def run(self, scenarios: Sequence[Scenario], observer: Observer) -> Report:
        """See the function `run`."""
        return run(tuple(scenarios), self._settings, observer)


SERVICES = Services(
    load=load,
    start=lambda _, settings: nullcontext(Runner(settings)),
    devices=devices,
    explain=explain,
    schema=lambda: {"title": "scenario"},
)

if __name__ == "__main__":
    sys.exit(main(SERVICES))
