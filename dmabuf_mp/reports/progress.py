"""What a person sees while scenarios run: a progress line on a terminal, plain lines elsewhere.

Everything is drawn when something happens, and never by a thread: the process forks.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dmabuf_mp.model import Outcome
from dmabuf_mp.reports.outlet import text_file
from dmabuf_mp.reports.text import details, log_text, merged_log, printable, seconds

if TYPE_CHECKING:
    from dmabuf_mp.model import LogLine, Report, ScenarioReport
    from dmabuf_mp.reports.outlet import Outlet

REDRAW_S = 0.1
PATIENCE_S = 1.0
REASON = 80  # columns of a reason on a plain line


class Progress:
    """Shows scenarios as they start and end, and the workers' logs; the outlet is borrowed.

    `verbosity` -1 shows nothing, 0 the logs of scenarios that did not end well, 1 all logs but `debug`
    ones as they come, 2 those too.
    """

    def __init__(self, outlet: Outlet, *, terminal: bool, verbosity: int) -> None:
        self._outlet = outlet
        self._verbosity = verbosity
        self._line = _TerminalLine(outlet) if terminal and verbosity >= 0 else None
        self._position = ""

    def close(self) -> None:
        """Take the progress line away, and write what still waits, unless nobody reads it."""
        if self._line:
            self._line.close()
        self._outlet.finish(PATIENCE_S)

    def scenario_started(self, index: int, total: int, name: str) -> None:
        """Say which scenario runs now; `index` counts from 0."""
        self._position = f"[{index + 1}/{total}]"
        if self._line:
            self._line.draw(index, total, printable(name))
        elif self._verbosity >= 1:
            self._print(f"{self._position} {printable(name)}")

    def log(self, scenario: str, worker: str, line: LogLine) -> None:
        """Show a line of a worker's log where the verbosity asks for it."""
        if self._verbosity >= (2 if line.level == "debug" else 1):
            self._print(log_text(worker, line))

    def scenario_ended(self, report: ScenarioReport, so_far: Report) -> None:
        """Say how a scenario ended, and show its log if that was badly."""
        good = report.outcome in (Outcome.PASSED, Outcome.SKIPPED)
        if self._verbosity < 0 or (good and self._line and self._verbosity == 0):
            return
        text = f"{self._position} {printable(report.name)}: {report.outcome} in {seconds(report.elapsed_s)}"
        reason = printable(report.reason)
        if len(reason) > REASON:
            reason = reason[: REASON - 1] + "…"  # the report tells all of it
        lines = [text if report.outcome is Outcome.PASSED else f"{text}: {reason}"]
        if not good:
            lines += [f"    {line}" for line in details(report)]
            if self._verbosity == 0:
                lines += [log_text(worker, line) for worker, line in merged_log(report)]
        self._print("\n".join(lines))

    def _print(self, text: str) -> None:
        if self._line:
            self._line.print_above(text)
        else:
            self._outlet.write(text + "\n")


class _TerminalLine:
    """A progress bar at the bottom of a terminal, redrawn at most once in `REDRAW_S`."""

    def __init__(self, outlet: Outlet) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = Console(file=text_file(outlet, terminal=True), highlight=False, markup=False)
        self._bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=self._console,
            auto_refresh=False,  # the refresh would be a thread's
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._bar.add_task("")
        self._drawn_s = -REDRAW_S

    def draw(self, done: int, total: int, text: str) -> None:
        self._bar.update(self._task, completed=done, total=total, description=text)
        self._bar.start()
        if time.monotonic() >= self._drawn_s + REDRAW_S:
            self._bar.refresh()
            self._drawn_s = time.monotonic()

    def print_above(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def close(self) -> None:
        self._bar.stop()
