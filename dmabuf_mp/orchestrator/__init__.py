"""The orchestrator: forks the workers before anything has touched a driver, hands out, watches, reaps.

It is the only place that owns processes. It has one thread, and never touches a driver itself.
"""

from __future__ import annotations

import datetime
import itertools
import os
import platform
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, cast

from dmabuf_mp import plan
from dmabuf_mp.backends.base import Inventory
from dmabuf_mp.errors import Problem, ResourceRefused, ScenarioError
from dmabuf_mp.linux import iommu
from dmabuf_mp.model import BAD, DeviceInfo, Outcome, Report, exit_code
from dmabuf_mp.orchestrator.loop import Interrupted, Loop
from dmabuf_mp.orchestrator.pool import Pool, prepare_to_fork
from dmabuf_mp.orchestrator.question import Question
from dmabuf_mp.orchestrator.scenario_run import ScenarioRun
from dmabuf_mp.orchestrator.soak import Growth, shuffled
from dmabuf_mp.orchestrator.watch import Watch
from dmabuf_mp.wire import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dmabuf_mp.model import Json, LogLine, Observer, RunSettings, Scenario, ScenarioReport
    from dmabuf_mp.plan import Planned

__all__ = ["Orchestrator", "host_of", "run_scenarios"]

_MAX_SIDE_BY_SIDE = 8


class Orchestrator:
    """A run, from its scenarios to its report. Use as a context manager: leaving it ends every worker."""

    def __init__(self, settings: RunSettings, *, tied_to: int | None = None) -> None:
        self._settings = settings
        self._loop = Loop(tied_to)
        self._pool = Pool(self._loop, fresh=settings.fresh)
        self._warming: dict[str, list[Question]] = {}
        self._unprepared = ""  # why nothing at all can be run

    def __enter__(self) -> Orchestrator:
        os.environ["OPENBLAS_NUM_THREADS"] = "1"  # else numpy starts threads, and none may be here at a fork
        self._loop.__enter__()
        self._watch = Watch(self._loop)
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.close()
        self._loop.__exit__()

    # What a worker finds out for us, since nothing here may touch a driver or a user's code.

    def warm(self, prefix: str, count: int) -> None:
        """Have workers initialise a backend, side by side, before anybody waits for it."""
        warming = self._warming.setdefault(prefix, [])
        while len(warming) < min(count, _MAX_SIDE_BY_SIDE):
            warming.append(Question(self._loop.spawn(), Kind.INVENTORY, {"prefix": prefix}))

    def inventory(self, prefix: str) -> Inventory:
        """Return what a backend sees here, from the first worker that was to initialise it."""
        self.warm(prefix, 1)
        questions = self._warming.pop(prefix)
        answer = questions[0].wait(self._loop, plan.START_DEADLINE_S + plan.INITIALISE_DEADLINE_S)
        workers = [question.worker for question in questions]
        if isinstance(answer, str):
            self._loop.end(workers, at_once=True)
            return Inventory(reason=answer)
        inventory = _read_inventory(answer)
        unwanted = [w for w in workers if not inventory.devices or not self._pool.keep(w, (prefix,))]
        self._loop.end(unwanted)
        return inventory

    def resolve_functions(self, scenarios: Sequence[Scenario]) -> None:
        """Try in a throw-away worker whether the users' role functions can be found; raises ScenarioError."""
        problems: list[Problem] = []
        by_folder: dict[str, list[Scenario]] = {}
        for scenario in scenarios:
            if any(isinstance(role.function, str) for role in scenario.roles):
                by_folder.setdefault(plan.folder_of(scenario), []).append(scenario)
        for folder, of_folder in by_folder.items():
            roles = [(s, r) for s in of_folder for r in s.roles if isinstance(r.function, str)]
            worker = self._loop.spawn()
            question: Json = {
                "functions": sorted({str(role.function) for _, role in roles}),
                "search_path": [folder] if folder else [],
            }
            answer = Question(worker, Kind.RESOLVE, question).wait(self._loop, plan.START_DEADLINE_S)
            self._loop.end([worker], at_once=isinstance(answer, str))
            self._loop.sweep()
            for scenario, role in roles:
                wrong = answer if isinstance(answer, str) else answer.get(str(role.function))
                if wrong is not None:
                    problem = Problem(scenario.file, role.line, role.column, str(wrong))
                    if problem not in problems:
                        problems.append(problem)
        if problems:
            raise ScenarioError(tuple(problems))

    # The run.

    def run(self, scenarios: Sequence[Scenario], observer: Observer) -> Report:
        """Run the scenarios in order; an interrupt ends in a report too."""
        self._loop.ends_in_report = True
        began = time.monotonic()
        started_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        reports: list[ScenarioReport] = []
        host = host_of({})

        growth = Growth()
        outcomes: set[Outcome] = set()

        def so_far() -> Report:
            code = exit_code(
                tuple(outcomes),
                interrupted_by=self._loop.interrupted_by,
                strict=self._settings.strict,
                skips_ok=self._settings.skips_ok,
            )
            elapsed_s = round(time.monotonic() - began, 6)
            return Report(started_at, elapsed_s, code, host, tuple(reports), growth.notes())

        inventories: dict[str, Inventory] = {}
        try:
            self.resolve_functions(scenarios)
            inventories = self._inventories(scenarios)
            host = host_of(inventories)
        except Interrupted:
            pass  # which every scenario is told of
        except ResourceRefused as error:
            self._unprepared = str(error)
        for repeat in itertools.count():
            planned = self._repetition(scenarios, inventories, repeat)
            for index, one in enumerate(planned):
                observer.scenario_started(index, len(planned), one.scenario.name)
                reports.append(self._run_one(one, reports, observer))
                outcomes.add(reports[-1].outcome)
                observer.scenario_ended(reports[-1], so_far())
                if self._settings.until_fail and reports[-1].outcome in BAD:
                    return so_far()
            growth.sample(self._loop.workers)
            if self._is_enough(repeat + 1, time.monotonic() - began):
                break
        return so_far()

    def _repetition(
        self, scenarios: Sequence[Scenario], inventories: Mapping[str, Inventory], repeat: int
    ) -> Sequence[Planned]:
        planned = plan.plan(scenarios, inventories, self._settings, self._loop.scale, repeats=[repeat])
        return shuffled(planned, self._settings.seed, repeat) if self._settings.shuffle else planned

    def _is_enough(self, repetitions: int, elapsed_s: float) -> bool:
        settings = self._settings
        if self._loop.interrupted_by is not None:
            return repetitions >= settings.repeat or settings.duration_s is not None or settings.until_fail
        if settings.duration_s is not None:
            return elapsed_s >= settings.duration_s
        return repetitions >= settings.repeat and not settings.until_fail

    def _inventories(self, scenarios: Sequence[Scenario]) -> dict[str, Inventory]:
        most = plan.most_at_once(scenarios, self._settings)
        on_cpu = most.pop("cpu", 0)
        for prefix, count in most.items():
            self.warm(prefix, count)
        if on_cpu:
            prepare_to_fork()  # while drivers initialise
        return {prefix: self.inventory(prefix) for prefix in most}

    def _run_one(
        self, planned: Planned, before: Sequence[ScenarioReport], observer: Observer
    ) -> ScenarioReport:
        name = planned.scenario.name
        refused = self._refusal(planned, before)

        def log(worker: str, line: LogLine) -> None:
            observer.log(name, worker, line)

        return ScenarioRun(refused or planned, self._loop, self._pool, self._watch, log).run()

    def _refusal(self, planned: Planned, before: Sequence[ScenarioReport]) -> Planned | None:
        """Return the plan refused, where something that happened before forbids to run it."""
        bad = {Outcome.PASSED, Outcome.SKIPPED}
        if self._loop.interrupted_by is not None:
            return replace(
                planned,
                refusal="interrupted before it started",
                refusal_code="interrupted",
                refused_as=Outcome.INTERRUPTED,
            )
        if self._unprepared:
            return replace(
                planned,
                refusal=self._unprepared,
                refusal_code="resource",
                refused_as=Outcome.ERROR,
            )
        if self._settings.fail_fast:
            failed = next((report for report in before if report.outcome not in bad), None)
            if failed is not None:
                return replace(
                    planned,
                    refusal=f"not run, since {failed.name} {failed.outcome}",
                    refusal_code="fail_fast",
                )
        for need in planned.scenario.needs:
            in_file = [r for r in before if (r.file, r.repeat) == (planned.scenario.file, planned.repeat)]
            of_that_name = [report for report in in_file if _is_named(report.name, need)]
            if not of_that_name:
                return replace(planned, refusal=f"needs {need}, which was not run", refusal_code="needs")
            lacking = next((r for r in of_that_name if r.outcome is not Outcome.PASSED), None)
            if lacking is not None:
                text = f"needs {need}, which is {lacking.outcome}"
                return replace(planned, refusal=text, refusal_code="needs")
        return None


def _is_named(name: str, need: str) -> bool:
    return name == need or name.startswith(f"{need}[")


def _read_inventory(answer: Mapping[str, Json]) -> Inventory:
    devices = cast("list[dict[str, Json]]", answer["devices"])
    host = cast("Mapping[str, Json]", answer["host"])
    return Inventory(tuple(DeviceInfo(**d) for d in devices), str(answer["reason"]), host)  # type: ignore[arg-type]


def host_of(inventories: Mapping[str, Inventory]) -> dict[str, Json]:
    """Return what a report says of this machine."""
    host: dict[str, Json] = {
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "iommu": iommu.describe(),
        "driver": None,
        "software_driver": None,
        "devices": [asdict(info) for inventory in inventories.values() for info in inventory.devices],
    }
    for inventory in inventories.values():
        host.update(inventory.host)
    return host


def run_scenarios(
    scenarios: Sequence[Scenario], settings: RunSettings, observer: Observer, *, tied_to: int | None = None
) -> Report:
    """Run scenarios in this process, which must have one thread and no driver initialised."""
    with Orchestrator(settings, tied_to=tied_to) as orchestrator:
        return orchestrator.run(scenarios, observer)
