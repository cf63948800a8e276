"""What the reports share: names without doubles, and text that is safe to print."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from dmabuf_mp.model import Outcome
from dmabuf_mp.reports import mismatches

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dmabuf_mp.model import Json, LogLine, Report, ScenarioReport, WorkerReport


class Names:
    """Numbers the names that come again: `a`, `a#2`, `a#3`; a name once given stays."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._numbers: Counter[str] = Counter()

    def unique(self, name: str) -> str:
        """Return the name, numbered if it was given before."""
        given = name
        while given in self._taken:
            self._numbers[name] = max(2, self._numbers[name] + 1)
            given = f"{name}#{self._numbers[name]}"
        self._taken.add(given)
        return given


def unique_names(report: Report) -> Report:
    """Number the scenarios that share a name; doing so twice changes nothing."""
    names = Names()
    return replace(report, scenarios=tuple(_named(one, names.unique(one.name)) for one in report.scenarios))


def _named(scenario: ScenarioReport, name: str) -> ScenarioReport:
    return scenario if name == scenario.name else replace(scenario, name=name)


def printable(text: str) -> str:
    r"""Spell out control characters (`\x1b`) other than tabs, so that no log moves a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(c if c == "\t" or c.isprintable() else escaped(c) for c in text)


def escaped(character: str) -> str:
    """Return a character the way Python writes it in a string."""
    return character.encode("unicode_escape").decode("ascii")


def seconds(value: float) -> str:
    """Write a time for people: milliseconds below a tenth of a second, minutes above two."""
    if value < 0.1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.1f} s" if value < 120 else f"{value // 60:.0f} min {value % 60:.0f} s"


def label(worker: WorkerReport) -> str:
    """Return a worker's name in logs: `producer`, `consumer[0]`."""
    return worker.role if worker.role == "producer" else f"{worker.role}[{worker.index}]"


def merged_log(scenario: ScenarioReport) -> list[tuple[str, LogLine]]:
    """Return the lines of all workers in time order, each with its worker's label."""
    lines = [(label(worker), line) for worker in scenario.workers for line in worker.log]
    return sorted(lines, key=lambda item: item[1].t_s)


def log_text(worker: str, line: LogLine) -> str:
    """Write one line of a log: `   0.012 producer      info   filled 16384 bytes`."""
    return f"{line.t_s:9.3f} {worker:13} {line.level:7} {printable(line.message)}"


def details(
    scenario: ScenarioReport, host: Mapping[str, Json] | None = None, *, dump: bool = False
) -> list[str]:
    """Say in full what came of a scenario: each path passed over, each mismatch, each culprit, each note.

    Where it did not pass, a mismatch is told more closely, with what is known of its machine, the `host`.
    """
    overs = dict.fromkeys(over for link in scenario.links for over in link.passed_over)
    lines = [f"passed over {over.path}: {over.reason}" for over in overs]
    if scenario.outcome is Outcome.SKIPPED and len(lines) == 1:
        lines = []  # it is the scenario's own reason
    on = {label(worker): worker.device for worker in scenario.workers}
    for link in scenario.links:
        if link.mismatches:
            count = "1 mismatch" if link.mismatches == 1 else f"{link.mismatches} mismatches"
            what = f"{count} by way of {link.path}{mismatches.first(link)}"
            lines.append(f"{link.producer} -> {link.consumer}: {what}")
            if scenario.outcome is not Outcome.PASSED:
                lines += mismatches.closer(link)
                producer, consumer = on.get(link.producer, "?"), on.get(link.consumer, "?")
                lines.append(mismatches.machine(producer, consumer, host or {}))
                lines += mismatches.dumped(link) if dump else ()
    for worker in scenario.workers:
        if worker.reason and worker.outcome not in (Outcome.PASSED, Outcome.SKIPPED):
            pid = "" if worker.pid is None else f", pid {worker.pid}"
            lines.append(f"{label(worker)} ({worker.device}{pid}): {worker.outcome}: {worker.reason}")
    lines += [f"mapped: {source}={target}" for source, target in scenario.mapped.items()]
    lines += [f"note: {note}" for note in scenario.notes]
    return [printable(line) for line in lines]
