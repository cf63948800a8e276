"""Everything that a run writes: what is seen while it goes on, the reports it was asked for, the verdict."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dmabuf_mp.errors import UsageError
from dmabuf_mp.reports import files, json_report, junit
from dmabuf_mp.reports.files import ReportFile
from dmabuf_mp.reports.log import LogFile
from dmabuf_mp.reports.outlet import Outlet
from dmabuf_mp.reports.progress import Progress
from dmabuf_mp.reports.text import Names

if TYPE_CHECKING:
    from types import TracebackType

    from rich.console import Console

    from dmabuf_mp.model import LogLine, Report, ScenarioReport

PIPE_WIDTH = 160  # columns, where there is no terminal and COLUMNS does not tell


@dataclass(frozen=True, slots=True)
class Targets:
    """Where the reports go: file names, `-` for standard output, None for nowhere."""

    json: str | None = None
    junit: str | None = None
    log: str | None = None

    @property
    def take_stdout(self) -> bool:
        """Whether a report has standard output for itself, so that tables must go elsewhere."""
        return any(files.is_stdout(target) for _, target in self.given())

    def validate(self) -> None:
        """Raise UsageError where a report has no place to go, or two would overwrite each other."""
        seen: set[str] = set()
        for flag, target in self.given():
            if (problem := files.impossible(target)) is not None:
                raise UsageError(f"{flag} {target}: {problem}; expected a file in a folder that is there")
            place = files.STDOUT if files.is_stdout(target) else _real(target)
            if place in seen and place != os.devnull:
                raise UsageError(f"{target}: two reports cannot go to one place")
            seen.add(place)

    def given(self) -> list[tuple[str, str]]:
        """Return the flags that were given, with their targets."""
        flags = (("--json", self.json), ("--junit", self.junit), ("--log", self.log))
        return [(flag, target) for flag, target in flags if target is not None]


def _real(target: str) -> str:
    try:
        return os.path.realpath(target)
    except OSError:  # the working folder is gone
        return target


class Output:
    """Observes a run and writes what comes of it; a context, whose end gives the terminal back.

    `verbosity` is -1 for the verdict alone; see Progress. `repeat_command` is shown where something failed,
    and with `dump` both sides of each mismatch.
    """

    def __init__(
        self, targets: Targets, *, verbosity: int = 0, repeat_command: str = "", dump: bool = False
    ) -> None:
        self._verbosity = verbosity
        self._dump = dump
        self._repeat_command = repeat_command
        self._tables_to_stderr = targets.take_stdout
        self._reports = [
            ReportFile(flag, target, render)
            for flag, target, render in (
                ("--junit", targets.junit, junit.render),
                ("--json", targets.json, json_report.render),
            )
            if target
        ]
        self._problems: list[str] = []
        self._names = Names()
        self._name = ""
        self._stderr = Outlet(2, encoding=sys.stderr.encoding if sys.stderr else "utf-8")
        self._progress = Progress(self._stderr, terminal=os.isatty(2), verbosity=verbosity)
        self._log: LogFile | None = None
        if targets.log:
            try:
                self._log = LogFile(targets.log)
            except OSError as error:
                self._problems.append(f"--log {targets.log}: the log could not be written: {error.strerror}")

    def __enter__(self) -> Output:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.close()
        if self._log:
            self._log.close()

    def say(self, text: str) -> None:
        """Tell the person who is watching, unless that was not wanted."""
        if self._verbosity >= 0:
            self._stderr.write(text + "\n")

    def scenario_started(self, index: int, total: int, name: str) -> None:
        """Pass on that a scenario starts."""
        self._name = self._names.unique(name)
        self._progress.scenario_started(index, total, self._name)

    def log(self, scenario: str, worker: str, line: LogLine) -> None:
        """Pass a worker's line on."""
        self._progress.log(self._name, worker, line)
        if self._log:
            self._log.add(self._name, worker, line)

    def scenario_ended(self, report: ScenarioReport, so_far: Report) -> None:
        """Pass on that a scenario ended, and bring the reports up to date."""
        self._progress.scenario_ended(replace(report, name=self._name), so_far)
        for file in self._reports:
            file.update(so_far)

    def finish(self, report: Report) -> int:
        """Write every report and the verdict; return the exit code, which a lost report makes 1."""
        self._progress.close()
        if self._log and (problem := self._log.close()):
            self._problems.append(problem)
        for file in self._reports:
            report = self._judged(report)
            if problem := file.finish(report):
                self._problems.append(problem)
        report = self._judged(report)
        if problem := self._print(report):
            self._problems.append(problem)
            report = self._judged(report)
            for file in self._reports:
                if file.replaceable:
                    file.finish(report)
        for problem in self._problems:
            self._stderr.write(f"dmabuf-mp: {problem}\n")
        self._stderr.finish()
        return report.exit_code

    def _judged(self, report: Report) -> Report:
        """Return the report with the exit code that the problems so far call for."""
        return replace(report, exit_code=1) if self._problems and report.exit_code < 128 else report

    def _print(self, report: Report) -> str | None:
        from dmabuf_mp.reports import table

        if self._tables_to_stderr and sys.stderr is None:
            return None
        try:
            fd, stream = (2, sys.stderr) if self._tables_to_stderr else (files.stdout_fd(), sys.stdout)
            text = io.StringIO()
            console = make_console(text, terminal=os.isatty(fd))
            table.show(
                report,
                console,
                quiet=self._verbosity < 0,
                repeat_command=self._repeat_command,
                dump=self._dump,
            )
            files.write_all(fd, text.getvalue().encode(stream.encoding, "backslashreplace"))
        except OSError as error:
            if not self._tables_to_stderr:
                return f"standard output could not be written: {error.strerror}"
        return None


def make_console(file: io.StringIO, *, terminal: bool) -> Console:
    """Return a console that draws for standard output as it is: its width, its colours, or neither."""
    from rich.console import Console

    width = None if terminal or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(file=file, force_terminal=terminal, width=width, highlight=False, markup=False)
