"""A Report for people: a table, what went wrong, why paths and scenarios were left out, the verdict."""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from dmabuf_mp.model import Outcome
from dmabuf_mp.reports.text import details, printable, seconds, unique_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.console import Console

    from dmabuf_mp.model import Report, ScenarioReport

HEADINGS = ("Scenario", "Devices", "Path", "Bytes (allocated)", "Time", "Outcome", "Reason")
RIGHT = ("Bytes (allocated)", "Time")
REASON = 20  # columns that a reason gets at the least, before it wraps
NAMES_SHOWN = 5
STYLES = {
    Outcome.PASSED: "green",
    Outcome.SKIPPED: "yellow",
    Outcome.INTERRUPTED: "magenta",
}
BAD = "bold red"


def show(
    report: Report, console: Console, *, quiet: bool = False, repeat_command: str = "", dump: bool = False
) -> None:
    """Print the whole report; `quiet` leaves the table out, and what has to do with passes and skips.

    `dump` adds both sides of each mismatch in hex.
    """
    report = unique_names(report)
    if not quiet and report.scenarios:
        rows = table(report, console.width)
        console.print(rows or narrow(report), "", soft_wrap=rows is not None, sep="\n")
    for part in (troubles(report, dump=dump), Text() if quiet else left_out(report)):
        if part:
            console.print(part, "", soft_wrap=True, sep="\n")
    for note in report.notes:
        console.print(Text(note), soft_wrap=True)
    if repeat_command and report.exit_code == 1:
        console.print(Text(f"to repeat: {repeat_command}"), soft_wrap=True)
    console.print(verdict_line(report), soft_wrap=True)


def table(report: Report, width: int) -> Text | None:
    """Return one row for each scenario, or None where the columns up to the reason do not fit."""
    rows = [[Text(heading) for heading in HEADINGS]]
    for scenario in report.scenarios:
        name, reason = printable(scenario.name), printable(scenario.reason)
        texts = (name, devices(scenario), paths(scenario), size(scenario), seconds(scenario.elapsed_s))
        rows.append([*map(Text, texts), outcome(scenario), Text(reason)])
    widths = [max(row[i].cell_len for row in rows) for i in range(len(HEADINGS) - 1)]
    if sum(widths) + 2 * len(widths) + REASON > width:
        return None
    for row in rows:
        row[-1].truncate(
            width - sum(widths) - 2 * len(widths), overflow="ellipsis"
        )  # it is told in full below
        for cell, heading, cells in zip(row, HEADINGS, widths, strict=False):
            (cell.pad_left if heading in RIGHT else cell.pad_right)(cells - cell.cell_len)
    lines = [Text("  ").join(row) for row in rows]
    for line in lines:
        line.rstrip()
    lines[0].stylize("bold")
    return Text("\n").join(lines)


def narrow(report: Report) -> Text:
    """Return two or three short lines for each scenario, for where the table does not fit."""
    lines = []
    for scenario in report.scenarios:
        lines.append(outcome(scenario).append(f"  {printable(scenario.name)}", "bold"))
        lines[-1].append(f"  {seconds(scenario.elapsed_s)}", "bold")
        lines.append(Text(f"    {devices(scenario)}, {paths(scenario)}, {size(scenario)} bytes"))
        if scenario.reason:
            lines.append(Text(f"    {printable(scenario.reason)}"))
    return Text("\n").join(lines)


def outcome(scenario: ScenarioReport) -> Text:
    """Return the verdict; where it was `expect` that made the observed outcome a pass, both."""
    text = scenario.outcome.value
    if scenario.outcome is Outcome.PASSED and scenario.observed is not Outcome.PASSED:
        text = f"passed ({scenario.observed}, as expected)"
    return Text.assemble((text, STYLES.get(scenario.outcome, BAD)))


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


def troubles(report: Report, *, dump: bool = False) -> Text:
    """Say what went wrong, in full, for every scenario that neither passed nor was skipped."""
    parts = []
    for scenario in report.scenarios:
        if scenario.outcome in (Outcome.PASSED, Outcome.SKIPPED, Outcome.INTERRUPTED):
            continue
        part = Text.assemble((printable(scenario.name), "bold"), ": ", outcome(scenario))
        part.append(f": {printable(scenario.reason)} ({printable(scenario.file)}:{scenario.line})")
        parts.append(indented(part, details(scenario, report.host, dump=dump)))
    return Text("\n\n").join(parts)


def left_out(report: Report) -> Text:
    """Say why scenarios were skipped and paths passed over: each reason once, with those it holds for."""
    skips: dict[tuple[str, ...], list[str]] = defaultdict(list)
    others: dict[str, list[str]] = defaultdict(list)
    for scenario in report.scenarios:
        if scenario.outcome is Outcome.SKIPPED:
            skips[(printable(scenario.reason), *details(scenario))].append(scenario.name)
        elif scenario.outcome in (Outcome.PASSED, Outcome.INTERRUPTED):
            for line in details(scenario):
                others[line].append(scenario.name)
    parts = []
    for (reason, *lines), names in skips.items():
        skipped = ("skipped", STYLES[Outcome.SKIPPED])
        parts.append(indented(Text.assemble((some(names), "bold"), ": ", skipped, f": {reason}"), lines))
    if others:
        parts.append(Text("\n".join(f"{line} [{some(names)}]" for line, names in others.items())))
    return Text("\n\n").join(parts)


def indented(heading: Text, lines: list[str]) -> Text:
    """Return a heading with lines below it."""
    return heading.append("".join(f"\n    {line}" for line in lines))


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
