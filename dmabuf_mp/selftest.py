"""The self-test: inject each known fault on this machine, and see that it is caught.

A fault is caught where the outcome is the right one, the right worker carries it, and it came in time.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dmabuf_mp import backends, plan
from dmabuf_mp.faults import CATALOGUE, FaultKind
from dmabuf_mp.inventory import probes
from dmabuf_mp.model import (
    Fault,
    Outcome,
    Path,
    Report,
    Role,
    RunSettings,
    Scenario,
    Silent,
    exit_code,
)
from dmabuf_mp.orchestrator import Orchestrator
from dmabuf_mp.orchestrator.clock import time_scale

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dmabuf_mp.model import RoleName, ScenarioReport

SIZE_BYTES = 5 * 4096 + 6  # several pages and a tail
ROUNDS = 2
HANG_S = 0.6
START_S = plan.START_DEADLINE_S + plan.INITIALISE_DEADLINE_S
LATE_S = 10.0  # what is caught later than this after its deadline is not caught


@dataclass(frozen=True, slots=True)
class Case:
    """One fault in one place: the scenario that injects it, and the parts that may carry its outcome."""

    kind: FaultKind
    phase: str
    where: str
    scenario: Scenario
    blamed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a case; `wrong` says why it is not caught, empty where it is."""

    case: Case
    report: ScenarioReport
    wrong: str
    interrupted_by: int | None = None


@dataclass(frozen=True, slots=True)
class Ground:
    """Where to inject: devices and a path that works between them."""

    producer: str
    consumer: str
    path: Path

    def __str__(self) -> str:
        return f"{self.producer} → {self.consumer} by {self.path}"


def grounds() -> tuple[Ground, ...]:
    """Return this machine's grounds: the CPU's memory, and the first working path of its GPUs, if any."""
    with Orchestrator(RunSettings(seed=0)) as orchestrator:
        inventories = {prefix: orchestrator.inventory(prefix) for prefix in backends.paths()}
        found = []
        for inventory in inventories.values():
            if inventory.devices:
                producer, consumer = inventory.devices[0].selector, inventory.devices[-1].selector
                tried = tuple(probes(producer, consumer))
                reports = orchestrator.run(tried, Silent()).scenarios
                paths = [r.links[0].path for r in reports if r.outcome is Outcome.PASSED]
                found += [Ground(producer, consumer, path) for path in paths[:1] if path is not None]
    return tuple(found)


def cases(ground: Ground, *, every_phase: bool = False) -> tuple[Case, ...]:
    """Return every fault of the catalogue in each place that it can strike, on one ground.

    Faults of the process strike in one phase only, and killing in all; with `every_phase` all do.
    """
    return tuple(
        _case(kind, phase, where, ground)
        for kind in CATALOGUE.values()
        for where in _places(kind)
        for phase in _phases(kind, where, every_phase=every_phase)
        if _fits(kind, ground)
    )


def _fits(kind: FaultKind, ground: Ground) -> bool:
    """Whether a fault can be one here: only memfds have seals, only the CPU maps for reading alone."""
    if kind.name == "unsealed":
        return ground.path.handle == "memfd"
    return kind.name != "wrong_side" or ground.consumer == "cpu"


def _places(kind: FaultKind) -> Iterator[str]:
    if kind.roles == ("producer",):
        yield "producer"
        return
    yield from (role for role in kind.roles if role != "relay")
    yield "one of several"
    if "relay" in kind.roles:
        yield "relay"
        yield "both"


def _phases(kind: FaultKind, where: str, *, every_phase: bool) -> tuple[str, ...]:
    name: RoleName = "producer" if where == "producer" else "relay" if where == "relay" else "consumer"
    fitting = kind.phases_in(Role(name, access="readwrite" if kind.readwrite else "read"))
    return fitting if every_phase or kind.name == "kill" else fitting[:1]


def _case(kind: FaultKind, phase: str, where: str, ground: Ground) -> Case:
    fault = Fault(kind.name, phase, kind.first_round)
    access = "readwrite" if kind.readwrite else "read"
    producer = Role(
        "producer", device=ground.producer, memory=(ground.path.memory,), handle=(ground.path.handle,)
    )
    consumers = [
        Role("consumer", index, ground.consumer, importer=(ground.path.importer,))
        for index in range(3 if where == "one of several" else 1)
    ]
    relays: tuple[Role, ...] = ()
    at_fault: tuple[str, ...]
    if where in ("producer", "both"):
        phases = kind.phases_in(producer)
        own = fault if phase in phases else replace(fault, phase=phases[0])
        producer = replace(producer, faults=(own,))
        at_fault = ("producer",)
    if where in ("consumer", "both"):
        consumers[0] = replace(consumers[0], faults=(fault,))
        at_fault = ("producer", "consumer[0]") if where == "both" else ("consumer[0]",)
    if where == "one of several":
        consumers[1] = replace(consumers[1], faults=(fault,))
        at_fault = ("consumer[1]",)
    if where == "relay":
        relays = (Role("relay", 0, ground.consumer, importer=(ground.path.importer,), faults=(fault,)),)
        at_fault = ("relay[0]",)
    if access == "readwrite":
        number = 1 if where == "one of several" else 0
        consumers[number] = replace(consumers[number], access="readwrite")
    blamed = at_fault
    if kind.blames == "checker":
        blamed = ("producer",) if kind.readwrite else ("consumer[0]",)
    scenario = Scenario(
        name=f"{kind.name} in {phase} of {where}",
        size_bytes=SIZE_BYTES,
        producer=producer,
        relays=relays,
        consumers=tuple(consumers),
        rounds=ROUNDS,
        timeout_s=HANG_S if kind.outcome is Outcome.TIMED_OUT else None,
        expect=kind.outcome,
        file="<selftest>",
    )
    return Case(kind, phase, where, scenario, blamed)


def run(chosen: Sequence[Case], *, seed: int = 0) -> Iterator[Result]:
    """Run cases one after the other, and yield what came of each; an interrupt ends them."""
    with Orchestrator(RunSettings(seed=seed)) as orchestrator:
        for case in chosen:
            whole = orchestrator.run((case.scenario,), Silent())
            (report,) = whole.scenarios
            if report.observed is Outcome.INTERRUPTED:
                yield Result(case, report, "", whole.exit_code - 128)
                return
            yield Result(case, report, judge(case, report))


def report_on(results: Sequence[Result], elapsed_s: float) -> Report:
    """Return a report in which a fault that was caught has passed, and one that was not has failed."""
    now = datetime.datetime.now(datetime.UTC)
    started_at = (now - datetime.timedelta(seconds=elapsed_s)).isoformat(timespec="milliseconds")
    scenarios = tuple(_verdict(result) for result in results)
    interrupted_by = next((result.interrupted_by for result in results if result.interrupted_by), None)
    code = exit_code(tuple(one.outcome for one in scenarios), interrupted_by=interrupted_by)
    return Report(started_at, elapsed_s, code, {}, scenarios)


def _verdict(result: Result) -> ScenarioReport:
    if result.report.observed is Outcome.INTERRUPTED:
        return result.report
    if result.wrong:
        return replace(
            result.report, outcome=Outcome.FAILED, reason=result.wrong, reason_code="fault_not_caught"
        )
    return replace(result.report, outcome=Outcome.PASSED)


def line(result: Result) -> str:
    """Say in one line what was injected, what was reported, whether that is right, and the time."""
    report = result.report
    said = f"{report.observed}: {report.reason}" if report.reason else str(report.observed)
    right = f"WRONG ({result.wrong})" if result.wrong else "cut" if result.interrupted_by else "right"
    return f"{right:5}  {report.elapsed_s:6.2f} s  {report.name}  →  {said}"


def judge(case: Case, report: ScenarioReport) -> str:
    """Say why a fault was not caught, or an empty text."""
    if report.reason_code == "fault_not_struck":
        return report.reason
    if report.observed is not case.kind.outcome:
        return f"expected {case.kind.outcome}, observed {report.observed}: {report.reason}"
    ends = {
        _label(worker.role, worker.index): worker.outcome
        for worker in report.workers
        if worker.outcome is not Outcome.PASSED and worker.reason_code != "peer_gone"
    }
    carriers = [label for label, outcome in ends.items() if outcome is case.kind.outcome]
    if not set(carriers) & set(case.blamed):
        return f"expected {' or '.join(case.blamed)} to carry it, it was {', '.join(carriers) or 'nobody'}"
    if innocent := ends.keys() - set(case.blamed):
        return f"{', '.join(sorted(innocent))} did nothing, and is blamed too"
    starting = START_S if case.phase in ("start", "initialise") else 0.0
    limit_s = (starting + LATE_S + (case.scenario.timeout_s or 0.0)) * time_scale()
    if report.elapsed_s > limit_s:
        return f"caught after {report.elapsed_s:.1f} s, later than {limit_s:g} s"
    return ""


def _label(role: str, index: int) -> str:
    return role if role == "producer" else f"{role}[{index}]"
