"""Scenarios for the tests of the orchestrator: small ones on the CPU, with a fault in one role."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import dmabuf_mp
from dmabuf_mp import Role, Scenario

if TYPE_CHECKING:
    from dmabuf_mp import Report, ScenarioReport, WorkerReport
    from dmabuf_mp.model import Json, RoleFunction

SIZE_BYTES = 16 * 1024 + 3
LONG_S = 60.0  # the deadline where none is meant to be reached


def pair(name: str = "pair", **changes: object) -> Scenario:
    """Return a producer and a consumer in two processes."""
    plain = Scenario(name, SIZE_BYTES, Role("producer"), (Role("consumer"),), timeout_s=LONG_S)
    return replace(plain, **changes)  # type: ignore[arg-type]


def same(name: str = "same", **changes: object) -> Scenario:
    """Return a producer and a consumer in one process."""
    return pair(name, process="same", **changes)


def fan_out(name: str = "fan-out", count: int = 3, **changes: object) -> Scenario:
    """Return a producer and several consumers."""
    consumers = tuple(Role("consumer", index) for index in range(count))
    return pair(name, consumers=consumers, fan_out=True, **changes)


def chain(name: str = "chain", *forwards: str, **changes: object) -> Scenario:
    """Return a producer, relays (each forwards its `fd` or a `copy`), and a consumer."""
    relays = tuple(
        Role("relay", index, forward=forward)  # type: ignore[arg-type]
        for index, forward in enumerate(forwards or ("fd",))
    )
    return pair(name, relays=relays, **changes)


def with_role(
    scenario: Scenario, label: str, function: str | RoleFunction, params: dict[str, Json] | None = None
) -> Scenario:
    """Return the scenario with one role played by a function: of `tests.role_faults`, or a callable."""
    named = f"tests.role_faults:{function}" if isinstance(function, str) else function

    def put(role: Role) -> Role:
        return replace(role, function=named, params=params or {}) if role.label == label else role

    return replace(
        scenario,
        producer=put(scenario.producer),
        relays=tuple(put(role) for role in scenario.relays),
        consumers=tuple(put(role) for role in scenario.consumers),
    )


def run(*scenarios: Scenario, **settings: object) -> Report:
    """Run scenarios with this process as the orchestrator."""
    return dmabuf_mp.run(scenarios, seed=1, fork=True, **settings)  # type: ignore[arg-type]


def worker(report: ScenarioReport, label: str) -> WorkerReport:
    """Return the report of one role."""
    return next(w for w in report.workers if label in (w.role, f"{w.role}[{w.index}]"))


def log_of(report: ScenarioReport, label: str) -> list[str]:
    """Return the messages that one role logged."""
    return [line.message for line in worker(report, label).log]
