"""The data that the parts of the program speak: frozen, and without behaviour of its own.

A `Scenario` is what an author wrote, validated and expanded; a `Report` is what came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
RoleName = Literal["producer", "relay", "consumer"]
RoleFunction = Callable[..., object]


class Outcome(StrEnum):
    """What happened to a worker or a scenario, or what its verdict is."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    ERROR = "error"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Path:
    """One way for a buffer from the producer's memory to the consumer's reads."""

    memory: str
    handle: str
    importer: str

    def __str__(self) -> str:
        return f"{self.memory}/{self.handle}/{self.importer}"


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A path that was tried or considered before the one taken, and why it was not taken."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class PatternChoice:
    """A pattern as an author gives it; `base` or `seed` None means the default."""

    kind: str = "ramp"
    base: int | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to inject: one of the catalogue's kinds, in a phase of a round."""

    kind: str
    phase: str
    round: int = 0


@dataclass(frozen=True, slots=True)
class Role:
    """What one end does, as the author says it.

    `memory`, `handle` and `importer` are ordered wishes, empty where the author named none.
    `options` are the backend's (`heap`, …); `function` is `package.module:function`, a callable of
    the embedding program, or that callable serialised; `params` are handed to that function. `line` and
    `column` are where the author named that function, or else the role.
    """

    name: RoleName
    index: int = 0
    device: str = "cpu"
    memory: tuple[str, ...] = ()
    handle: tuple[str, ...] = ()
    importer: tuple[str, ...] = ()
    access: Literal["read", "readwrite"] = "read"
    forward: Literal["fd", "copy"] = "fd"
    function: str | bytes | RoleFunction | None = None
    params: Mapping[str, Json] = field(default_factory=dict)
    options: Mapping[str, Json] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    line: int = 1
    column: int = 1

    @property
    def label(self) -> str:
        """The role's name in logs and reports: `producer`, `relay[0]`, `consumer[1]`."""
        return self.name if self.name == "producer" else f"{self.name}[{self.index}]"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario after validation and expansion; `size_bytes` is from 1 to 2**63 - 1.

    `fan_out` says that the author gave a list of consumers: there, `*` means one for each device.
    """

    name: str
    size_bytes: int
    producer: Role
    consumers: tuple[Role, ...]
    relays: tuple[Role, ...] = ()
    description: str = ""
    pattern: PatternChoice = PatternChoice()
    rounds: int = 1
    timeout_s: float | None = None
    process: Literal["separate", "same"] = "separate"
    expect: Outcome = Outcome.PASSED
    needs: tuple[str, ...] = ()
    fan_out: bool = False
    matrix: Mapping[str, Json] = field(default_factory=dict)
    file: str = "<python>"
    line: int = 1

    @property
    def roles(self) -> tuple[Role, ...]:
        """Every role, producer first, then relays in order, then consumers."""
        return (self.producer, *self.relays, *self.consumers)


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device of this machine: `selector` is what a scenario names it by (`cpu`, `cuda:0`)."""

    selector: str
    name: str = ""
    uuid: str | None = None
    details: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a worker's log; `t_s` counts from the scenario's start."""

    t_s: float
    level: str
    message: str


@dataclass(frozen=True, slots=True)
class Wrong:
    """One position that differs: what was due, and what two looks at it found, in hex."""

    offset_bytes: int
    page: int
    expected: str
    got: str
    again: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """Positions next to each other that all differ."""

    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Dump:
    """Both sides from an offset on, in hex, byte by byte as they lie in memory."""

    offset_bytes: int
    expected: str
    got: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """What two more looks at the first `looked_at_bytes` from the first mismatch on have shown.

    `second_read` is `same`, `changed`, or `right` where nothing was wrong any more; `runs` counts the
    stretches of wrong data there, and `positions` are the first that differ.
    """

    second_read: str
    looked_at_bytes: int
    runs: int
    longest_run: Stretch | None
    first_runs: tuple[Stretch, ...]
    positions: tuple[Wrong, ...]
    dump: Dump


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Where data first differed; `expected` and `got` are hex, `kind` is the class of the mismatch."""

    offset_bytes: int
    page: int
    expected: str
    got: str
    kind: str
    round: int
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True)
class LinkReport:
    """What came of one producer → consumer link; `mismatches` is None where nothing was checked."""

    producer: str
    consumer: str
    path: Path | None = None
    passed_over: tuple[PassedOver, ...] = ()
    mismatches: int | None = None
    first_mismatch: Mismatch | None = None
    rounds_checked: int = 0
    bytes_checked: int = 0


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What came of one role; `exit_code` and `signal` are None while the process lives on or is unknown.

    A role that only suffered says `peer_gone`, and who the `culprit` is. `noted` are changes that are not
    judged, in bytes: see `ledger.moved`.
    """

    role: str
    index: int
    device: str
    device_uuid: str | None
    pid: int | None
    outcome: Outcome
    exit_code: int | None = None
    signal: str | None = None
    reason: str = ""
    reason_code: str = "ok"
    culprit: str | None = None
    noted: Mapping[str, int] = field(default_factory=dict)
    log: tuple[LogLine, ...] = ()


@dataclass(frozen=True, slots=True)
class ScenarioReport:
    """What came of one scenario: `outcome` is the verdict, `observed` is what happened.

    `kernel_log` is what the kernel logged meanwhile, whoever made it do so; empty where it may not be read.
    """

    name: str
    file: str
    line: int
    outcome: Outcome
    observed: Outcome
    reason: str
    reason_code: str
    elapsed_s: float
    size_bytes: int
    allocated_bytes: int | None
    rounds: int
    links: tuple[LinkReport, ...]
    workers: tuple[WorkerReport, ...]
    timings_s: Mapping[str, float] = field(default_factory=dict)
    matrix: Mapping[str, Json] = field(default_factory=dict)
    repeat: int = 0
    seed: int = 0
    mapped: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    kernel_log: tuple[LogLine, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a run; `started_at` is ISO 8601 with a zone."""

    started_at: str
    elapsed_s: float
    exit_code: int
    host: Mapping[str, Json]
    scenarios: tuple[ScenarioReport, ...]
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> dict[str, int]:
        """How many scenarios ended in each outcome."""
        counts = {outcome.value: 0 for outcome in Outcome}
        for scenario in self.scenarios:
            counts[scenario.outcome.value] += 1
        return counts


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How a run is to be made; `mapping` is pairs of (selector pattern, selector), `seed` is 32 bits.

    With `duration_s` or `until_fail` the scenarios are repeated until then, whatever `repeat` says.
    """

    seed: int
    repeat: int = 1
    mapping: tuple[tuple[str, str], ...] = ()
    fresh: bool = False
    strict: bool = False
    skips_ok: bool = False
    fail_fast: bool = False
    timeout_s: float | None = None
    duration_s: float | None = None
    until_fail: bool = False
    shuffle: bool = False


class Observer(Protocol):
    """What is told of a run while it goes on; called in the orchestrator, and must not block or fork."""

    def scenario_started(self, index: int, total: int, name: str) -> None:
        """Scenario number `index` of `total`, from 0, starts."""

    def log(self, scenario: str, worker: str, line: LogLine) -> None:
        """A worker logged a line."""

    def scenario_ended(self, report: ScenarioReport, so_far: Report) -> None:
        """A scenario ended; `so_far` is the whole report up to now."""


class Silent:
    """An observer that keeps what it is told to itself."""

    def scenario_started(self, index: int, total: int, name: str) -> None:
        """Do nothing."""

    def log(self, scenario: str, worker: str, line: LogLine) -> None:
        """Do nothing."""

    def scenario_ended(self, report: ScenarioReport, so_far: Report) -> None:
        """Do nothing."""


# From the worst on; what a scenario with several culprits is called.
SEVERITY = (
    Outcome.INTERRUPTED,
    Outcome.CRASHED,
    Outcome.TIMED_OUT,
    Outcome.ERROR,
    Outcome.FAILED,
    Outcome.SKIPPED,
    Outcome.PASSED,
)


BAD = frozenset({Outcome.FAILED, Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.ERROR, Outcome.INTERRUPTED})


def worst(outcomes: tuple[Outcome, ...]) -> Outcome:
    """Fold outcomes into one; of none at all, `error`, since nothing was checked."""
    return min(outcomes, key=SEVERITY.index, default=Outcome.ERROR)


def verdict(observed: Outcome, expect: Outcome) -> Outcome:
    """Judge what happened against what `expect` names; a skip or an interrupt stays what it is."""
    if observed in (Outcome.SKIPPED, Outcome.INTERRUPTED):
        return observed
    if observed is expect:
        return Outcome.PASSED
    return Outcome.FAILED if observed is Outcome.PASSED else observed


def exit_code(
    outcomes: tuple[Outcome, ...],
    *,
    interrupted_by: int | None = None,
    strict: bool = False,
    skips_ok: bool = False,
    report_lost: bool = False,
) -> int:
    """Return the exit code of a run: 0, 1, 77, or 128 + the signal that interrupted it."""
    if interrupted_by is not None:
        return 128 + interrupted_by
    bad = BAD | {Outcome.SKIPPED} if strict else BAD
    if report_lost or bad.intersection(outcomes):
        return 1
    if Outcome.PASSED in outcomes:
        return 0
    return 0 if outcomes and skips_ok else 77
