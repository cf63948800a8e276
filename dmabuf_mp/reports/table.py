"""A Report for people: a table, what went wrong, why paths and scenarios were left out, the verdict."""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from dmabuf_mp.model import Outcome
from dmabuf_mp.reports.text import details, printable, seconds, unique_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console, RenderableType

    from dmabuf_mp.model import Report, ScenarioReport

WIDE = 100
NAMES_SHOWN = 5
STYLES = {
    Outcome.PASSED: "green",
    Outcome.SKIPPED: "yellow",
    Outcome.INTERRUPTED: "magenta",
}
BAD = "bold red"


def show(report: Report, console: Console, *, quiet: bool = False) -> None:
    """Print the whole report; `quiet` leaves the table out, and what has to do with passes and skips."""
    report = unique_names(report)
    if not quiet:
        console.print(table(report) if console.width >= WIDE else narrow(report), soft_wrap=False)
    for line in troubles(report):
        console.print(line, soft_wrap=True)
    if not quiet:
        for line in left_out(report):
            console.print(line, soft_wrap=True)
    console.print(verdict_line(report), soft_wrap=True)


def table(report: Report) -> RenderableType:
    """Return one row for each scenario."""
    result = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("Scenario", "Devices", "Path", "Bytes (allocated)", "Outcome", "Time", "Reason"):
        numeric = heading in ("Bytes (allocated)", "Time")
        result.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for scenario in report.scenarios:
        result.add_row(
            Text(printable(scenario.name)),
            Text(devices(scenario)),
            Text(paths(scenario)),
            size(scenario),
            outcome(scenario),
            seconds(scenario.elapsed_s),
            Text(printable(scenario.reason)),
        )
    return result


def narrow(report: Report) -> RenderableType:
    """Return two or three short lines for each scenario, for terminals too narrow for the table."""
    lines = Text()
    for scenario in report.scenarios:
        lines.append_text(outcome(scenario))
        lines.append(f"  {printable(scenario.name)}  {seconds(scenario.elapsed_s)}\n", "bold")
        lines.append(f"    {devices(scenario)}, {paths(scenario)}, {size(scenario)} bytes\n")
        if scenario.reason:
            lines.append(f"    {printable(scenario.reason)}\n")
    lines.rstrip()
    return lines


def outcome(scenario: ScenarioReport) -> Text:
    """Return the verdict; where it was `expect` that made the observed outcome a pass, both."""
    text = scenario.outcome.value
    if scenario.outcome is Outcome.PASSED and scenario.observed is not Outcome.PASSED:
        text = f"passed ({scenario.observed}, as expected)"
    return Text(text, STYLES.get(scenario.outcome, BAD))


def devices(scenario: ScenarioReport) -> str:
    """Return a scenario's devices from the producer on: `cuda:0 → cuda:1`, `cpu → cpu ×64`."""
    stages = []
    for role, workers in groupby(scenario.workers, key=lambda worker: worker.role):
        names = [worker.device for worker in workers]
        if role == "relay":
            stages += names
        else:
            stages.append(", ".join(f"{name} ×{count}" if count > 1 else name for name, count in runs(names)))
    return " → ".join(stages) or "none"


def runs(names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield each run of equal names with its length."""
    for name, group in groupby(names):
        yield name, len(list(group))


def paths(scenario: ScenarioReport) -> str:
    """Return the paths that were taken, each once."""
    taken = dict.fromkeys(str(link.path) for link in scenario.links if link.path)
    return ", ".join(taken) or "no path"


def size(scenario: ScenarioReport) -> str:
    """Return the size asked for, and the allocated one where it differs."""
    if scenario.allocated_bytes in (None, scenario.size_bytes):
        return str(scenario.size_bytes)
    return f"{scenario.size_bytes} ({scenario.allocated_bytes})"


def troubles(report: Report) -> Iterator[Text]:
    """Yield what went wrong, in full, for every scenario that neither passed nor was skipped."""
    for scenario in report.scenarios:
        if scenario.outcome in (Outcome.PASSED, Outcome.SKIPPED, Outcome.INTERRUPTED):
            continue
        yield Text()
        heading = Text.assemble((printable(scenario.name), "bold"), ": ", outcome(scenario))
        yield heading.append(f": {printable(scenario.reason)} ({printable(scenario.file)}:{scenario.line})")
        yield from (Text(f"    {line}") for line in details(scenario))


def left_out(report: Report) -> Iterator[Text]:
    """Yield why scenarios were skipped and paths passed over, each reason once with those it holds for."""
    skips: dict[tuple[str, ...], list[str]] = defaultdict(list)
    others: dict[str, list[str]] = defaultdict(list)
    for scenario in report.scenarios:
        if scenario.outcome is Outcome.SKIPPED:
            skips[(printable(scenario.reason), *details(scenario))].append(scenario.name)
        elif scenario.outcome in (Outcome.PASSED, Outcome.INTERRUPTED):
            for line in details(scenario):
                others[line].append(scenario.name)
    for (reason, *lines), names in skips.items():
        yield Text()
        yield Text.assemble((some(names), "bold"), ": ", ("skipped", STYLES[Outcome.SKIPPED]), f": {reason}")
        yield from (Text(f"    {line}") for line in lines)
    if others:
        yield Text()
    for line, names in others.items():
        yield Text(f"{line} [{some(names)}]")


def some(names: list[str]) -> str:
    """Return a few names, and how many more there are."""
    shown = ", ".join(printable(name) for name in names[:NAMES_SHOWN])
    more = len(names) - NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def verdict_line(report: Report) -> Text:
    """Return the last line: `12 passed, 3 skipped in 2.1 s: exit code 0`."""
    counts = [f"{count} {name.replace('_', ' ')}" for name, count in report.summary.items() if count]
    text = (
        f"{', '.join(counts) or 'nothing ran'} in {seconds(report.elapsed_s)}: exit code {report.exit_code}"
    )
    good = report.exit_code == 0
    return Text(text, "bold green" if good else "bold yellow" if report.exit_code == 77 else BAD)
