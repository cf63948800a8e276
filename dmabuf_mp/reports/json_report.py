"""A Report as JSON, schema_version 1, and back without loss."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dmabuf_mp import __version__
from dmabuf_mp.findings import evidence_from
from dmabuf_mp.model import (
    LinkReport,
    LogLine,
    Mismatch,
    Outcome,
    PassedOver,
    Path,
    Report,
    ScenarioReport,
    WorkerReport,
)
from dmabuf_mp.reports.text import unique_names

if TYPE_CHECKING:
    from dmabuf_mp.model import Json

SCHEMA_VERSION = 1


def render(report: Report) -> bytes:
    """Return the JSON text in UTF-8; what UTF-8 cannot carry (undecodable file names) becomes `?`."""
    text = json.dumps(to_json(report), indent=2, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8", "replace")


def to_json(report: Report) -> dict[str, Json]:
    """Return the report as JSON's types, with every scenario's name made unique."""
    report = unique_names(report)
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "dmabuf-mp", "version": __version__},
        "host": dict(report.host),
        "started_at": report.started_at,
        "elapsed_s": report.elapsed_s,
        "exit_code": report.exit_code,
        "summary": dict(report.summary),
        "notes": list(report.notes),
        "scenarios": [_scenario(scenario) for scenario in report.scenarios],
    }


def _scenario(scenario: ScenarioReport) -> dict[str, Json]:
    links: list[Json] = [_link(link) for link in scenario.links]
    first = _link(scenario.links[0] if scenario.links else LinkReport("", ""))
    return {
        "name": scenario.name,
        "file": scenario.file,
        "line": scenario.line,
        "outcome": scenario.outcome.value,
        "observed": scenario.observed.value,
        "reason": scenario.reason,
        "reason_code": scenario.reason_code,
        "elapsed_s": scenario.elapsed_s,
        "size_bytes": scenario.size_bytes,
        "allocated_bytes": scenario.allocated_bytes,
        "rounds": scenario.rounds,
        "path": first["path"],
        "passed_over": first["passed_over"],
        "mismatches": first["mismatches"],
        "first_mismatch": first["first_mismatch"],
        "timings_s": dict(scenario.timings_s),
        "matrix": dict(scenario.matrix),
        "repeat": scenario.repeat,
        "seed": scenario.seed,
        "mapped": dict(scenario.mapped),
        "notes": list(scenario.notes),
        "kernel_log": _log(scenario.kernel_log),
        "links": links,
        "workers": [_worker(worker) for worker in scenario.workers],
    }


def _link(link: LinkReport) -> dict[str, Json]:
    return {
        "producer": link.producer,
        "consumer": link.consumer,
        "path": None if link.path is None else _path(link.path),
        "passed_over": [{"path": _path(over.path), "reason": over.reason} for over in link.passed_over],
        "mismatches": link.mismatches,
        "first_mismatch": None if link.first_mismatch is None else _mismatch(link.first_mismatch),
        "rounds_checked": link.rounds_checked,
        "bytes_checked": link.bytes_checked,
    }


def _path(path: Path) -> dict[str, Json]:
    return {"memory": path.memory, "handle": path.handle, "importer": path.importer}


def _mismatch(mismatch: Mismatch) -> dict[str, Json]:
    return {
        "offset_bytes": mismatch.offset_bytes,
        "page": mismatch.page,
        "expected": mismatch.expected,
        "got": mismatch.got,
        "class": mismatch.kind,
        "round": mismatch.round,
        **(asdict(mismatch.evidence) if mismatch.evidence else {}),
    }


def _worker(worker: WorkerReport) -> dict[str, Json]:
    return {
        "role": worker.role,
        "index": worker.index,
        "device": worker.device,
        "device_uuid": worker.device_uuid,
        "pid": worker.pid,
        "outcome": worker.outcome.value,
        "exit_code": worker.exit_code,
        "signal": worker.signal,
        "reason_code": worker.reason_code,
        "reason": worker.reason,
        "culprit": worker.culprit,
        "noted": dict(worker.noted),
        "log": _log(worker.log),
    }


def _log(lines: tuple[LogLine, ...]) -> list[Json]:
    return [{"t_s": line.t_s, "level": line.level, "message": line.message} for line in lines]


def from_json(data: dict[str, Any]) -> Report:
    """Rebuild the Report that `to_json` took; unknown keys are ignored.

    Raises ValueError for another schema_version, KeyError where a field is missing.
    """
    if data["schema_version"] != SCHEMA_VERSION:
        raise ValueError(f"expected schema_version {SCHEMA_VERSION}, got {data['schema_version']!r}")
    return Report(
        started_at=data["started_at"],
        elapsed_s=data["elapsed_s"],
        exit_code=data["exit_code"],
        host=data["host"],
        notes=tuple(data["notes"]),
        scenarios=tuple(_scenario_from(scenario) for scenario in data["scenarios"]),
    )


def _scenario_from(data: dict[str, Any]) -> ScenarioReport:
    return ScenarioReport(
        **_fields(
            data,
            "name file line reason reason_code elapsed_s size_bytes allocated_bytes rounds"
            " timings_s matrix repeat seed mapped",
        ),
        outcome=Outcome(data["outcome"]),
        observed=Outcome(data["observed"]),
        notes=tuple(data["notes"]),
        kernel_log=tuple(LogLine(**line) for line in data.get("kernel_log", ())),
        links=tuple(_link_from(link) for link in data["links"]),
        workers=tuple(_worker_from(worker) for worker in data["workers"]),
    )


def _link_from(data: dict[str, Any]) -> LinkReport:
    mismatch = data["first_mismatch"]
    return LinkReport(
        **_fields(data, "producer consumer mismatches rounds_checked bytes_checked"),
        path=None if data["path"] is None else Path(**data["path"]),
        passed_over=tuple(PassedOver(Path(**over["path"]), over["reason"]) for over in data["passed_over"]),
        first_mismatch=None if mismatch is None else _mismatch_from(mismatch),
    )


def _mismatch_from(data: dict[str, Any]) -> Mismatch:
    return Mismatch(
        **_fields(data, "offset_bytes page expected got round"),
        kind=data["class"],
        evidence=evidence_from(data) if "dump" in data else None,
    )


def _worker_from(data: dict[str, Any]) -> WorkerReport:
    return WorkerReport(
        **_fields(data, "role index device device_uuid pid exit_code signal reason reason_code culprit"),
        outcome=Outcome(data["outcome"]),
        noted=data.get("noted", {}),
        log=tuple(LogLine(**_fields(line, "t_s level message")) for line in data["log"]),
    )


def _fields(data: dict[str, Any], names: str) -> dict[str, Any]:
    return {name: data[name] for name in names.split()}
