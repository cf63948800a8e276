"""Scenario files → frozen `Scenario`s: all validation and all expansion, before any process or device.

Every mistake of every file comes in one `ScenarioError`, each as `file:line:column: message`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from dmabuf_mp.errors import Problem, ScenarioError
from dmabuf_mp.scenario import checks, matrix, sources
from dmabuf_mp.scenario.read import place_of, read
from dmabuf_mp.scenario.schema import schema
from dmabuf_mp.scenario.shape import suggestion
from dmabuf_mp.scenario.tree import MAX_VALUES, Position, documents

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dmabuf_mp.model import Scenario
    from dmabuf_mp.scenario.tree import Place

__all__ = ["MAX_SCENARIOS", "load", "loads", "schema", "validate"]

MAX_SCENARIOS = 10_000
_MAX_PROBLEMS = 1_000


def load(paths: Sequence[str | os.PathLike[str]]) -> tuple[Scenario, ...]:
    """Load files, folders (with all folders in them) and `-` (standard input), in order.

    Raises ScenarioError with every mistake in all of them.
    """
    scenarios: list[Scenario] = []
    problems: list[Problem] = []
    for number, given in enumerate(paths):
        path = os.fspath(given)
        if not path:
            problems.append(Problem("''", 1, 1, "no name: expected a file or a folder"))
            continue
        if path == sources.STDIN and given in paths[:number]:
            problems.append(Problem(path, 1, 1, "standard input is there once: name it once"))
            continue
        try:
            files = sources.files(path)
        except sources.Unreadable as error:
            problems.append(Problem(path, 1, 1, str(error)))
            continue
        for file in files:
            loader = _File(file)
            try:
                loader.load(sources.text_of(file))
            except sources.Unreadable as error:
                lines = error.before.split("\n")
                loader.report(Position(len(lines), len(lines[-1]) + 1), str(error))
            scenarios += loader.scenarios
            problems += loader.sorted_problems()
    if problems:
        raise ScenarioError(tuple(problems))
    return tuple(scenarios)


def loads(text: str, file: str = "<string>") -> tuple[Scenario, ...]:
    """Load the scenarios of a file's text; raises ScenarioError with every mistake in it."""
    loader = _File(file)
    loader.load(text)
    if loader.problems:
        raise ScenarioError(loader.sorted_problems())
    return tuple(loader.scenarios)


def validate(scenario: Scenario) -> None:
    """Judge a scenario built in Python as one from a file is judged; raises ScenarioError."""
    problems = tuple(
        Problem(scenario.file, scenario.line, 1, f"{'.'.join(map(str, where))}: {message}")
        for where, message in checks.problems(scenario)
    )
    if problems:
        raise ScenarioError(problems)


class _TooMany(Exception):
    """Enough problems to be getting on with."""


class _File:
    """One file on its way: what was read from it, and what is wrong with it."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.scenarios: list[Scenario] = []
        # Each once: every scenario of a matrix repeats the mistakes that they share.
        self.problems: dict[Problem, None] = {}
        # For each scenario: its name before the matrix, and where it says what it needs.
        self.names: list[tuple[str, tuple[Place, ...]]] = []

    def report(self, place: Place, message: str) -> None:
        self.problems[Problem(self.file, place.line, place.column, message)] = None
        if len(self.problems) >= _MAX_PROBLEMS:
            raise _TooMany

    def sorted_problems(self) -> tuple[Problem, ...]:
        return tuple(sorted(self.problems, key=lambda problem: (problem.line, problem.column)))

    def load(self, text: str) -> None:
        """Read every document, and settle which scenarios each one needs."""
        try:
            self._documents(text)
            if not self.scenarios and not self.problems:
                self.report(Position(), "no scenario in this file: it is empty")
            self._settle_needs()
        except _TooMany:
            last = self.sorted_problems()[-1]
            self.problems[replace(last, message="too many mistakes: no more are told")] = None

    def _documents(self, text: str) -> None:
        values = count = 0
        for root in documents(text, self.report):
            axes = matrix.axes(root, self.report)
            count += matrix.count(axes)
            values += matrix.values(root, axes)
            if count > MAX_SCENARIOS:
                self.report(
                    root, f"more than {MAX_SCENARIOS:,} scenarios in one file: {count:,} up to this one"
                )
                return
            if values > MAX_VALUES:
                self.report(root, f"more than {MAX_VALUES:,} values once aliases and matrices are expanded")
                return
            for chosen, document in matrix.expand(root, axes, self.report):
                scenario = read(document, sources.stem(self.file), self.file, chosen, self.report)
                self.scenarios.append(scenario)
                places = tuple(place_of(document, ("needs", i)) for i in range(len(scenario.needs)))
                self.names.append((scenario.name.removesuffix(matrix.label(chosen)), places))

    def _settle_needs(self) -> None:
        """Put full names in the place of a matrix's name, and refuse what is not there or comes later."""
        everything = {name for name, _ in self.names}.union(scenario.name for scenario in self.scenarios)
        earlier: dict[str, dict[str, None]] = {}
        waiting: list[tuple[str, str]] = []
        for i, (scenario, (base, places)) in enumerate(zip(self.scenarios, self.names, strict=True)):
            if i and scenario.line != self.scenarios[i - 1].line:
                for name, full in waiting:
                    earlier.setdefault(name, {})[full] = None
                waiting.clear()
            waiting += ((base, scenario.name), (scenario.name, scenario.name))
            needed: dict[str, None] = {}
            for name, place in zip(scenario.needs, places, strict=True):
                needed.update(earlier.get(name, {}))
                if name in earlier:
                    continue
                near = suggestion(name, everything - {base, scenario.name})
                hint = f"; did you mean {near!r}?" if near else ""
                why = "it has to come before this one" if name in everything else f"none has this name{hint}"
                self.report(place, f"needs {name!r}: {why}")
            self.scenarios[i] = replace(scenario, needs=tuple(needed))
