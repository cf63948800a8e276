"""The framework from Python: a fresh interpreter for every run, and only its own report is believed."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest

import dmabuf_mp
from dmabuf_mp import Outcome, ScenarioError, UsageError
from dmabuf_mp.errors import InternalError
from dmabuf_mp.linux import process
from dmabuf_mp.model import Silent
from tests.orchestrator.making import log_of, pair, same, with_role, worker

if TYPE_CHECKING:
    from pathlib import Path

    from dmabuf_mp import Context, Report, ScenarioReport
    from dmabuf_mp.model import LogLine

MODULE_GLOBAL = "a global of the embedding program"


class Recorder(Silent):
    """An observer that keeps what it is told, in order."""

    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def scenario_started(self, index: int, total: int, name: str) -> None:
        self.events.append(("started", index, total, name))

    def log(self, scenario: str, worker: str, line: LogLine) -> None:
        self.events.append(("log", scenario, worker, line.message))

    def scenario_ended(self, report: ScenarioReport, so_far: Report) -> None:
        self.events.append(("ended", report.name, len(so_far.scenarios), so_far.exit_code))


def greet(context: Context) -> None:
    context.log(f"{MODULE_GLOBAL} in {os.getpid()}")
    context.receive()


def test_a_run_is_told_as_it_goes_on_and_reported_in_the_end() -> None:
    recorder = Recorder()
    scenarios = [with_role(pair("one"), "consumer[0]", greet), same("two"), same("two")]
    report = dmabuf_mp.run(scenarios, observer=recorder, seed=5)
    assert report.exit_code == 0
    assert [one.name for one in report.scenarios] == ["one", "two", "two"]
    assert {one.seed for one in report.scenarios} == {5}
    pid = worker(report.scenarios[0], "consumer[0]").pid
    text = f"{MODULE_GLOBAL} in {pid}"
    assert log_of(report.scenarios[0], "consumer[0]") == [text]
    assert recorder.events == [
        ("started", 0, 3, "one"),
        ("log", "one", "consumer[0]", text),
        ("ended", "one", 1, 0),
        ("started", 1, 3, "two"),
        ("ended", "two", 2, 0),
        ("started", 2, 3, "two"),
        ("ended", "two", 3, 0),
    ]
    assert process.children() == frozenset()


def test_the_report_is_the_same_as_from_a_fork_but_for_times_and_pids() -> None:
    scenarios = [
        pair("passes"),
        with_role(pair("fails"), "producer", "one_bit"),
        with_role(pair("dies"), "consumer[0]", "exit_3"),
    ]
    fresh = dmabuf_mp.run(scenarios, seed=1)
    forked = dmabuf_mp.run(scenarios, seed=1, fork=True)
    assert fresh.exit_code == forked.exit_code == 1
    for one, other in zip(fresh.scenarios, forked.scenarios, strict=True):
        assert (one.outcome, one.reason_code, one.reason, one.links) == (
            other.outcome,
            other.reason_code,
            other.reason,
            other.links,
        )
        assert [(w.outcome, w.exit_code, w.signal) for w in one.workers] == [
            (w.outcome, w.exit_code, w.signal) for w in other.workers
        ]


def test_files_and_scenarios_can_be_mixed(tmp_path: Path) -> None:
    (tmp_path / "own_roles.py").write_text("def role(context):\n    context.receive()\n")
    file = tmp_path / "two.yaml"
    file.write_text(
        "{name: a, producer: cpu, consumer: cpu, size: 4KiB}\n---\n"
        "{name: b, producer: cpu, consumer: {device: cpu, role: 'own_roles:role'}, size: 4KiB}\n"
    )
    assert [one.name for one in dmabuf_mp.load(file)] == ["a", "b"]
    report = dmabuf_mp.run([file, pair("c")])
    assert [(one.name, one.outcome) for one in report.scenarios] == [
        (name, Outcome.PASSED) for name in ("a", "b", "c")
    ]
    assert [one.name for one in dmabuf_mp.run(str(file)).scenarios] == ["a", "b"]


def test_mistakes_come_as_they_would_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("{name: a, producer: cpu, consumer: {device: cpu, role: 'nowhere:role'}, size: 4KiB}\n")
    with pytest.raises(ScenarioError, match=r"bad.yaml:1:\d+: .*No module named 'nowhere'"):
        dmabuf_mp.run(file)
    file.write_text("{name: a, sise: 4}\n")
    with pytest.raises(ScenarioError, match="sise"):
        dmabuf_mp.run(file)


def test_an_observer_that_raises_ends_the_run() -> None:
    class Raising(Silent):
        def scenario_started(self, index: int, total: int, name: str) -> None:
            raise ValueError("enough")

    began = time.monotonic()
    with pytest.raises(ValueError, match="enough"):
        dmabuf_mp.run([with_role(pair(), "consumer[0]", "hang")], observer=Raising())
    assert time.monotonic() - began < 10
    assert process.children() == frozenset()


def test_an_orchestrator_that_ends_without_a_report_is_no_pass() -> None:
    def kill_the_orchestrator(context: Context) -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()

    with pytest.raises(InternalError, match=r"ended without a report \(status -9\)"):
        dmabuf_mp.run([pair(), with_role(pair(), "consumer[0]", kill_the_orchestrator)])


def test_the_callers_sigchld_does_not_matter() -> None:
    old = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        report = dmabuf_mp.run([pair(), with_role(pair(), "consumer[0]", "exit_3")])
    finally:
        signal.signal(signal.SIGCHLD, old)
    assert [one.outcome for one in report.scenarios] == [Outcome.PASSED, Outcome.CRASHED]
    assert worker(report.scenarios[1], "consumer[0]").exit_code == 3


def test_a_fork_is_refused_once_cuda_is_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "cuda_is_initialised", lambda: True)
    with pytest.raises(UsageError, match="needs a process without CUDA"):
        dmabuf_mp.run(pair(), fork=True)


def test_modules_beside_the_caller_do_not_take_the_place_of_pythons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('the wrong json')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert dmabuf_mp.run(pair()).exit_code == 0


def test_the_public_names_are_there_and_no_others() -> None:
    for name in dmabuf_mp.__all__:
        assert getattr(dmabuf_mp, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        dmabuf_mp.nothing  # noqa: B018
