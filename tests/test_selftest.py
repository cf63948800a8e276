"""The self-test: it catches every fault, and fails loudly where one is not caught.

Each kind of fault is injected in the first place that it can strike; `dmabuf-mp selftest` tries all places.
"""

from __future__ import annotations

import json
import signal
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dmabuf_mp import selftest
from dmabuf_mp.cli import run_command
from dmabuf_mp.faults import CATALOGUE, channel, device, strike
from dmabuf_mp.model import Outcome, Path, Role, WorkerReport
from dmabuf_mp.selftest import Case, Ground, Result, cases, judge

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path as FilePath

    from dmabuf_mp.model import ScenarioReport

GROUND = Ground("cpu", "cpu", Path("memfd", "memfd", "mmap"))


def case(name: str, where: str | None = None) -> Case:
    """Return the first case of a kind of fault."""
    return next(one for one in cases(GROUND) if one.kind.name == name and where in (None, one.where))


def results(*names: str) -> list[Result]:
    return list(selftest.run([case(name) for name in names]))


# The whole.


def test_every_kind_of_fault_is_caught() -> None:
    caught = results(*CATALOGUE)
    assert [selftest.line(result) for result in caught if result.wrong] == []
    assert [result.case.kind.name for result in caught] == list(CATALOGUE)
    report = selftest.report_on(caught, 1.0)
    assert report.exit_code == 0
    assert {one.outcome for one in report.scenarios} == {Outcome.PASSED}
    assert {one.observed for one in report.scenarios} == {kind.outcome for kind in CATALOGUE.values()}


def test_this_machine_has_a_ground() -> None:
    assert next(ground.consumer for ground in selftest.grounds()) == "cpu"


def test_every_kind_is_injected_in_every_place_that_it_can_strike() -> None:
    places: dict[str, list[str]] = {}
    for one in cases(GROUND):
        if one.where not in places.setdefault(one.kind.name, []):
            places[one.kind.name].append(one.where)
    assert list(places) == list(CATALOGUE)
    for kind in CATALOGUE.values():
        expected = ["producer"] if "producer" in kind.roles else []
        expected += ["consumer", "one of several"] if "consumer" in kind.roles else []
        expected += ["relay", "both"] if "relay" in kind.roles else []
        assert sorted(places[kind.name]) == sorted(expected)
    kills = {(one.where, one.phase) for one in cases(GROUND) if one.kind.name == "kill"}
    assert {phase for where, phase in kills if where == "relay"} == {
        "start",
        "initialise",
        "import",
        "check",
        "send",
        "ack",
        "release",
    }
    everywhere = {
        (one.where, one.phase) for one in cases(GROUND, every_phase=True) if one.kind.name == "segv"
    }
    assert everywhere == kills


def test_what_cannot_be_a_fault_is_not_injected() -> None:
    on_gpu = Ground("cuda:0", "cuda:1", Path("device", "posix_fd", "vmm"))
    left_out = {one.kind.name for one in cases(GROUND)} - {one.kind.name for one in cases(on_gpu)}
    assert left_out == {"unsealed", "wrong_side"}


# What is not caught.


@pytest.fixture
def inert(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave three kinds of fault in the catalogue, and take what they do away."""
    monkeypatch.setitem(strike.STRIKES, "raise", lambda: None)
    monkeypatch.setitem(device.SPOILERS, "flip_bit", lambda *_: None)
    monkeypatch.setitem(channel._FDS, "pipe", lambda fd: (fd,))


@pytest.mark.usefixtures("inert")
def test_a_fault_that_does_nothing_is_not_caught() -> None:
    inert = results("raise", "flip_bit", "pipe", "flip_byte")
    assert [result.wrong for result in inert] == [
        "expected error, observed passed: expected error, and it passed",
        "expected failed, observed passed: expected failed, and it passed",
        "expected failed, observed passed: expected failed, and it passed",
        "",
    ]
    assert selftest.line(inert[0]).startswith("WRONG (expected error, observed passed: ")
    report = selftest.report_on(inert, 1.0)
    assert report.exit_code == 1
    assert [one.outcome for one in report.scenarios] == [Outcome.FAILED] * 3 + [Outcome.PASSED]
    assert report.scenarios[0].reason_code == "fault_not_caught"


def test_the_wrong_outcome_and_the_wrong_culprit_are_not_caught() -> None:
    (good,) = results("raise")
    assert good.wrong == ""
    other = replace(good.case, kind=replace(good.case.kind, outcome=Outcome.CRASHED))
    assert judge(other, good.report).startswith("expected crashed, observed error: producer: ")
    other = replace(good.case, blamed=("consumer[0]",))
    assert judge(other, good.report) == "expected consumer[0] to carry it, it was producer"


def changed(report: ScenarioReport, role: str, **changes: object) -> ScenarioReport:
    def change(worker: WorkerReport) -> WorkerReport:
        return replace(worker, **changes) if worker.role == role else worker  # type: ignore[arg-type]

    return replace(report, workers=tuple(change(worker) for worker in report.workers))


def test_what_is_judged() -> None:
    (good,) = results("kill")
    assert {w.role: (w.outcome, w.reason_code) for w in good.report.workers} == {
        "producer": (Outcome.CRASHED, "killed"),
        "consumer": (Outcome.ERROR, "peer_gone"),
    }
    blamed_too = changed(good.report, "consumer", reason_code="exception")
    assert judge(good.case, blamed_too) == "consumer[0] did nothing, and is blamed too"
    crashed_too = changed(good.report, "consumer", outcome=Outcome.CRASHED, reason_code="killed")
    assert judge(good.case, crashed_too) == "consumer[0] did nothing, and is blamed too"
    nobody = changed(good.report, "producer", outcome=Outcome.ERROR, reason_code="peer_gone")
    assert judge(good.case, nobody) == "expected producer to carry it, it was nobody"
    late = replace(good.report, elapsed_s=selftest.LATE_S + 1)
    assert judge(good.case, late) == "caught after 11.0 s, later than 10 s"
    at_start = replace(good.case, phase="start")
    assert judge(at_start, late) == ""
    unstruck = replace(good.report, reason_code="fault_not_struck", reason="never struck")
    assert judge(good.case, unstruck) == "never struck"
    assert judge(good.case, replace(good.report, observed=Outcome.SKIPPED)).startswith("expected crashed,")


def test_the_fold_of_no_result_and_of_an_interrupt() -> None:
    assert selftest.report_on([], 0.0).exit_code == 77
    (good,) = results("exit_0")
    stopped = replace(good.report, observed=Outcome.INTERRUPTED, outcome=Outcome.INTERRUPTED)
    for number in (signal.SIGINT, signal.SIGTERM):
        report = selftest.report_on([good, Result(good.case, stopped, "", number)], 1.0)
        assert report.exit_code == 128 + number
        assert [one.outcome for one in report.scenarios] == [Outcome.PASSED, Outcome.INTERRUPTED]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_self_test_and_is_no_fault_that_was_not_caught(number: signal.Signals) -> None:
    found = []
    for result in selftest.run([case("exit_0"), case("exit_3"), case("raise")]):
        found.append(result)
        if len(found) == 1:
            signal.raise_signal(number)
    assert [result.wrong for result in found] == ["", ""]
    assert selftest.line(found[1]).startswith("cut ")
    report = selftest.report_on(found, 1.0)
    assert report.exit_code == 128 + number
    assert [one.outcome for one in report.scenarios] == [Outcome.PASSED, Outcome.INTERRUPTED]


# The command.


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the command inject few faults, on the CPU alone."""
    chosen = [case(name) for name in ("flip_bit", "raise", "kill")]
    monkeypatch.setattr(selftest, "grounds", lambda: (GROUND,))
    monkeypatch.setattr(selftest, "cases", lambda ground, *, every_phase: chosen)
    yield


@pytest.mark.usefixtures("few")
def test_the_command_prints_a_line_for_each_and_exits_with_0(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["selftest"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "cpu → cpu by memfd/memfd/mmap:"
    assert [line.split()[0] for line in lines[1:4]] == ["right"] * 3
    assert "flip_bit in fill of producer  →  failed: consumer[0]: 1 position differs" in lines[1]
    assert "kill in send of producer  →  crashed: producer: killed by SIGKILL" in lines[3]


@pytest.mark.usefixtures("few", "inert")
def test_the_command_fails_loudly(tmp_path: FilePath, capfd: pytest.CaptureFixture[str]) -> None:
    junit = tmp_path / "junit.xml"
    assert run_command(["selftest", "--json", "-", "--junit", str(junit)]) == 1
    out, err = capfd.readouterr()
    report = json.loads(out)
    assert report["exit_code"] == 1
    assert (report["summary"]["passed"], report["summary"]["failed"]) == (1, 2)
    assert [one["outcome"] for one in report["scenarios"]] == ["failed", "failed", "passed"]
    assert report["scenarios"][0]["reason_code"] == "fault_not_caught"
    assert err.count("WRONG (expected ") == 2
    suite = ET.parse(junit).getroot()
    assert sum(int(one.get("failures", 0)) for one in suite.iter("testsuite")) == 2


@pytest.mark.usefixtures("few")
def test_reports_of_a_self_test_that_passed(tmp_path: FilePath) -> None:
    report, junit = tmp_path / "report.json", tmp_path / "junit.xml"
    assert run_command(["selftest", "--json", str(report), "--junit", str(junit)]) == 0
    assert json.loads(report.read_text())["summary"]["passed"] == 3
    assert not list(ET.parse(junit).getroot().iter("failure"))
    assert run_command(["selftest", "--json", str(report), "--junit", str(report)]) == 2


def test_no_ground_is_no_pass(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(selftest, "grounds", tuple)
    assert run_command(["selftest"]) == 77
    assert "77" in capfd.readouterr().out


def test_roles_are_told_by_their_labels() -> None:
    for role in (Role("producer"), Role("relay", 2), Role("consumer", 1)):
        assert selftest._label(role.name, role.index) == role.label
