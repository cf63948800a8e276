"""What this machine has and can do: devices as their drivers see them, and paths as trying them shows.

Everything is asked in workers that are thrown away: a probe that crashes or hangs is a result too.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from dmabuf_mp import backends
from dmabuf_mp.model import Outcome, Path, PatternChoice, Role, RunSettings, Scenario, Silent
from dmabuf_mp.orchestrator import Orchestrator, host_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dmabuf_mp.model import DeviceInfo, Json, ScenarioReport

PROBE_BYTES = 16 * 1024
PROBE_TIMEOUT_S = 10.0


def check_roles(scenarios: Sequence[Scenario]) -> None:
    """Try whether the users' role functions can be imported; raises ScenarioError."""
    with Orchestrator(RunSettings(seed=0)) as orchestrator:
        orchestrator.resolve_functions(scenarios)


def devices() -> dict[str, Json]:
    """Return the devices of every backend, and every path between the first two of each, tried."""
    with Orchestrator(RunSettings(seed=0)) as orchestrator:
        found = {prefix: orchestrator.inventory(prefix) for prefix in backends.paths()}
    infos = [info for inventory in found.values() for info in inventory.devices]
    missing = {prefix: inventory.reason for prefix, inventory in found.items() if not inventory.devices}
    ends = [info.selector for one in found.values() for info in one.devices[:2]]
    every = [one for pair in itertools.product(ends, repeat=2) for one in probes(*pair, dangerous=True)]
    tried = [one for one in every if not _is_by_name_only(one)]
    return {
        "host": {key: value for key, value in host_of(found).items() if key != "devices"},
        "devices": [_device(info) for info in infos],
        "missing": missing,
        "paths": [_path_entry(one, report) for one, report in zip(tried, _run(tried), strict=True)]
        + [_path_entry(one, None) for one in every if _is_by_name_only(one)],
    }


def explain(scenarios: Sequence[Scenario], settings: RunSettings) -> list[dict[str, Json]]:
    """Return which path each scenario would take here, or why it would skip, by trying it.

    A small buffer and the built-in roles stand in for the scenario's own.
    """
    return [
        {
            "name": report.name,
            "devices": [worker.device for worker in report.workers],
            "path": " ".join(dict.fromkeys(str(link.path) for link in report.links if link.path)) or None,
            "outcome": report.outcome.value,
            "reason": report.reason,
            "passed_over": [
                f"{passed.path}: {passed.reason}" for link in report.links for passed in link.passed_over
            ],
        }
        for report in _run([_as_probe(scenario) for scenario in scenarios], settings)
    ]


def _as_probe(scenario: Scenario) -> Scenario:
    def built_in(role: Role) -> Role:
        return replace(role, function=None)

    return replace(
        scenario,
        producer=built_in(scenario.producer),
        relays=tuple(built_in(role) for role in scenario.relays),
        consumers=tuple(built_in(role) for role in scenario.consumers),
        size_bytes=min(scenario.size_bytes, PROBE_BYTES),
        rounds=1,
        pattern=PatternChoice(),
        expect=Outcome.PASSED,
        needs=(),
    )


def _run(scenarios: Sequence[Scenario], settings: RunSettings | None = None) -> tuple[ScenarioReport, ...]:
    chosen = replace(settings or RunSettings(seed=0), timeout_s=PROBE_TIMEOUT_S)
    with Orchestrator(chosen) as orchestrator:
        return orchestrator.run(scenarios, Silent()).scenarios


def probes(producer: str, consumer: str, *, dangerous: bool = False) -> Iterator[Scenario]:
    """Yield one scenario for each path that fits two devices; those that can crash a driver if asked for."""
    exports = backends.of(producer).exports
    for importer, takes in backends.of(consumer).imports.items():
        for memory, handle in takes:
            scenario = Scenario(
                f"{memory}/{handle}/{importer} {producer} → {consumer}",
                PROBE_BYTES,
                Role("producer", device=producer, memory=(memory,), handle=(handle,)),
                (Role("consumer", device=consumer, importer=(importer,)),),
            )
            if handle in exports.get(memory, ()) and (dangerous or not _is_by_name_only(scenario)):
                yield scenario


def _path(scenario: Scenario) -> Path:
    producer, consumer = scenario.producer, scenario.consumers[0]
    return Path(producer.memory[0], producer.handle[0], consumer.importer[0])


def _is_by_name_only(scenario: Scenario) -> bool:
    return _path(scenario) in backends.of(scenario.consumers[0].device).by_name_only


def _device(info: DeviceInfo) -> dict[str, Json]:
    return {"selector": info.selector, "name": info.name, "uuid": info.uuid, **info.details}


def _path_entry(scenario: Scenario, report: ScenarioReport | None) -> dict[str, Json]:
    works = report is not None and report.outcome is Outcome.PASSED
    why = report.reason if report else "can crash or hang a driver: tried only when asked for by name"
    return {
        "path": str(_path(scenario)),
        "producer": scenario.producer.device,
        "consumer": scenario.consumers[0].device,
        "result": "works" if works else report.outcome.value if report is not None else "not tried",
        "reason": "" if works else why,
    }
