"""Whole runs that go well: topologies, the pool of workers, and what decides whether a scenario is run."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dmabuf_mp import Role, ScenarioError, UsageError
from dmabuf_mp.errors import Problem
from dmabuf_mp.model import Fault, Outcome, Silent
from tests import role_faults
from tests.orchestrator.making import SIZE_BYTES, chain, fan_out, log_of, pair, run, same, with_role, worker

if TYPE_CHECKING:
    from pathlib import Path

    from dmabuf_mp import Context, Report, Scenario, ScenarioReport

GREETING = "hello from a global"


def pids(report: Report, index: int) -> list[int | None]:
    return [one.pid for one in report.scenarios[index].workers]


def outcomes(report: Report) -> list[str]:
    return [one.outcome.value for one in report.scenarios]


def test_every_topology_checks_every_byte_of_every_round() -> None:
    writer = (Role("consumer"), Role("consumer", 1, access="readwrite"), Role("consumer", 2))
    scenarios = [
        make(f"{make.__name__} {kind}", rounds=3, **more)
        for kind in ("two processes",)
        for make, more in ((pair, {}), (same, {}), (fan_out, {}), (pair, {"consumers": writer}))
    ]
    scenarios += [
        chain(" ".join(forwards), *forwards, rounds=2, consumers=writer)
        for forwards in (("fd",), ("copy",), ("fd", "copy", "fd"))
    ]
    scenarios += [same("same, written back", rounds=2, consumers=(Role("consumer", access="readwrite"),))]
    scenarios += [pair(f"{size} bytes", size_bytes=size) for size in (1, 3, 4, 4096, 4097, 131_072, 300_001)]
    report = run(*scenarios)
    assert report.exit_code == 0
    for one in report.scenarios:
        assert one.outcome is Outcome.PASSED, f"{one.name}: {one.reason}"
        for link in one.links:
            assert link.mismatches == 0
            assert link.rounds_checked == one.rounds
            assert link.bytes_checked == one.rounds * one.size_bytes
            assert link.path is not None
        assert len(one.links) == len(one.workers) - 1
        assert one.allocated_bytes is not None
        assert one.allocated_bytes >= one.size_bytes
        assert one.timings_s["check"] >= 0
        assert one.notes == ()
    three = report.scenarios[6]
    assert [(link.producer, link.consumer) for link in three.links] == [
        ("producer", "relay[0]"),
        ("relay[0]", "relay[1]"),
        ("relay[1]", "relay[2]"),
        ("relay[2]", "consumer[0]"),
        ("relay[2]", "consumer[1]"),
        ("relay[2]", "consumer[2]"),
    ]


def test_a_worker_is_used_again_after_a_pass_and_replaced_after_anything_else() -> None:
    scenarios = [
        pair("first"),
        pair("second"),
        with_role(pair("crashes"), "consumer[0]", "segv"),
        pair("third"),
        with_role(pair("own role"), "consumer[0]", role_faults.play),
        pair("fourth"),
    ]
    report = run(*scenarios)
    assert outcomes(report) == ["passed", "passed", "crashed", "passed", "passed", "passed"]
    everyone = [set(pids(report, index)) for index in range(6)]
    assert everyone[0] == everyone[1] == everyone[2]
    assert not everyone[2] & everyone[3]  # the producer was told of a fault: it has a history
    assert everyone[3] == everyone[4]
    assert len(everyone[4] & everyone[5]) == 1
    fresh = run(pair("first"), pair("second"), fresh=True)
    assert not set(pids(fresh, 0)) & set(pids(fresh, 1))


def test_64_consumers() -> None:
    began = time.perf_counter()
    (report,) = run(fan_out(count=64, timeout_s=120)).scenarios
    print(f"\n64 consumers on one producer: {time.perf_counter() - began:.2f} s")
    assert report.outcome is Outcome.PASSED, report.reason
    assert len(report.links) == 64
    assert {link.mismatches for link in report.links} == {0}


def test_needs_fail_fast_and_repeat() -> None:
    bad = with_role(pair("bad"), "producer", "one_bit")
    scenarios = [pair("good"), bad, pair("after good", needs=("good",)), pair("after bad", needs=("bad",))]
    scenarios += [pair("after none", needs=("elsewhere",))]
    report = run(*scenarios, repeat=2)
    assert outcomes(report) == ["passed", "failed", "passed", "skipped", "skipped"] * 2
    assert [one.repeat for one in report.scenarios] == [0] * 5 + [1] * 5
    assert report.scenarios[3].reason == "needs bad, which is failed"
    assert report.scenarios[4].reason == "needs elsewhere, which was not run"
    assert {one.pid for one in report.scenarios[3].workers} <= {None}  # nobody was started for it

    report = run(pair("good"), bad, pair("later"), fail_fast=True)
    assert outcomes(report) == ["passed", "failed", "skipped"]
    assert report.scenarios[2].reason_code == "fail_fast"
    assert report.exit_code == 1


def test_what_is_expected_counts_as_a_pass_and_an_unexpected_pass_does_not() -> None:
    report = run(
        with_role(pair("crash", expect=Outcome.CRASHED), "consumer[0]", "segv"),
        with_role(pair("mismatch", expect=Outcome.FAILED), "producer", "one_bit"),
        with_role(pair("another end", expect=Outcome.CRASHED), "producer", "one_bit"),
        pair("pass", expect=Outcome.CRASHED),
    )
    assert outcomes(report) == ["passed", "passed", "failed", "failed"]
    assert [one.observed.value for one in report.scenarios] == ["crashed", "failed", "failed", "passed"]
    assert report.scenarios[3].reason == "expected crashed, and it passed"
    assert report.exit_code == 1


def test_a_device_that_is_not_there_is_a_skip_with_its_reason() -> None:
    absent = pair("absent", producer=Role("producer", device="cuda:99"))
    report = run(absent)
    assert report.exit_code == 77
    assert report.scenarios[0].outcome is Outcome.SKIPPED
    assert "cuda:99" in report.scenarios[0].reason
    assert run(absent, strict=True).exit_code == 1
    assert run(absent, skips_ok=True).exit_code == 0
    mapped = run(absent, mapping={"cuda:*": "cpu"})
    assert mapped.exit_code == 0
    assert mapped.scenarios[0].mapped == {"cuda:99": "cpu"}


def test_more_memory_than_there_is_is_a_skip_before_anything_is_allocated() -> None:
    (report,) = run(pair(size_bytes=2**60, rounds=2)).scenarios
    assert (report.outcome, report.reason_code) == (Outcome.SKIPPED, "unsupported")
    assert "memfd/memfd: 1152921504606846976 bytes are larger than" in report.reason
    assert {passed.path.memory for passed in report.links[0].passed_over} == {"udmabuf", "dma_heap", "memfd"}


# Roles of the user's own.


def test_closures_and_lambdas_bring_what_they_use() -> None:
    offset = 4096
    seen = []

    def consume(context: Context) -> None:
        def each(buffer: object, round_: int) -> None:
            context.check(buffer, round_)  # type: ignore[arg-type]
            seen.append(round_)
            context.log(f"{GREETING} {offset} {seen} {context.params['word']} {os.getpid()}")

        context.receive(each)

    scenario = with_role(pair(rounds=2), "consumer[0]", consume, {"word": "w"})
    scenario = with_role(scenario, "producer", lambda context: context.share())
    (report,) = run(scenario).scenarios
    assert report.outcome is Outcome.PASSED, report.reason
    pid = worker(report, "consumer[0]").pid
    assert log_of(report, "consumer[0]") == [
        f"{GREETING} 4096 [0] w {pid}",
        f"{GREETING} 4096 [0, 1] w {pid}",
    ]
    assert seen == []  # it was another process's


def test_what_cannot_travel_is_named_before_anything_runs(tmp_path: Path) -> None:
    held = (byte for byte in b"")
    with pytest.raises(
        UsageError, match=r"role function .*<lambda> cannot be sent to a worker: cannot pickle"
    ):
        run(with_role(pair(), "consumer[0]", lambda context: next(held)))
    with (tmp_path / "open").open("w") as file:
        unsendable = with_role(pair(), "consumer[0]", "play", {"file": file})  # type: ignore[dict-item]
        with pytest.raises(UsageError, match="hold something that no worker can receive: cannot pickle"):
            run(unsendable)


NOISY = """
import threading, sys
print("printed on import")
threading.Thread(target=threading.Event().wait, daemon=True).start()

def role(context):
    context.receive()

number = 5
"""


def own_module(folder: Path, text: str) -> Scenario:
    (folder / "noisy_roles.py").write_text(text)
    role = Role("consumer", function="noisy_roles:role", line=7, column=3)
    return pair("own", consumers=(role,), file=str(folder / "own.yaml"))


def test_a_module_may_print_and_start_threads_when_it_is_imported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (report,) = run(own_module(tmp_path, NOISY)).scenarios
    assert report.outcome is Outcome.PASSED, report.reason
    assert log_of(report, "consumer[0]") == ["printed on import"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1", "has no function 'role'"),
        ("role = 5", "'role' is a int, not a function"),
        ("import no_such_module", "No module named 'no_such_module'; looked in "),
        ("role role", "importing it raised SyntaxError"),
        ("raise RuntimeError('no')", "importing it raised RuntimeError: no"),
        ("raise SystemExit(3)", "importing it raised SystemExit: 3"),
        ("import os; os._exit(3)", "the worker that asked exited with status 3"),
        ("import ctypes; ctypes.string_at(0)", "the worker that asked killed by SIGSEGV"),
    ],
)
def test_a_role_that_cannot_be_found_is_a_mistake_of_the_scenario(
    text: str, says: str, tmp_path: Path
) -> None:
    with pytest.raises(ScenarioError) as caught:
        run(own_module(tmp_path, text))
    (problem,) = caught.value.problems
    assert isinstance(problem, Problem)
    assert (problem.file, problem.line, problem.column) == (str(tmp_path / "own.yaml"), 7, 3)
    assert says in problem.message


def test_the_report_says_when_where_and_on_what() -> None:
    report = run(pair(), timeout_s=50)
    one = report.scenarios[0]
    assert report.host["python"]
    assert report.started_at.endswith("+00:00")
    assert 0 < one.elapsed_s <= report.elapsed_s
    assert (one.size_bytes, one.seed, one.rounds) == (SIZE_BYTES, 1, 1)
    assert [(w.role, w.index, w.device, w.outcome) for w in one.workers] == [
        ("producer", 0, "cpu", Outcome.PASSED),
        ("consumer", 0, "cpu", Outcome.PASSED),
    ]
    assert report.summary["passed"] == 1


def test_of_no_scenario_at_all_nothing_is_right() -> None:
    assert run().exit_code == 77


def test_scenarios_do_not_change_by_being_run() -> None:
    scenario = pair()
    before = replace(scenario)
    run(scenario)
    assert scenario == before


def test_the_path_that_was_tried_is_told_whatever_became_of_it() -> None:
    def struck(phase: str, kind: str = "kill") -> Scenario:
        consumer = Role("consumer", faults=(Fault(kind, phase),))
        return pair(f"{kind} in {phase}", consumers=(consumer,), producer=Role("producer", memory=("memfd",)))

    cases = [struck("import"), struck("check"), struck("import", "raise"), struck("start"), pair("before")]
    reports = run(*cases, pair("too large", size_bytes=2**60)).scenarios
    assert [str(report.links[0].path) for report in reports] == [
        *["memfd/memfd/mmap"] * 3,
        "None",
        "memfd/memfd/mmap",
        "None",
    ]


def test_a_worker_that_never_took_its_part_up_tried_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DMABUF_MP_TIME_SCALE", "0.02")

    class Stopping(Silent):
        def scenario_ended(self, report: ScenarioReport, so_far: Report) -> None:
            if len(so_far.scenarios) == 1:
                for one in report.workers:
                    os.kill(one.pid or 0, signal.SIGSTOP)

    before, stopped = run(fan_out("before"), pair("stopped"), observer=Stopping()).scenarios
    assert {one.pid for one in stopped.workers} < {
        one.pid for one in before.workers if one.role == "consumer"
    }
    assert "did not finish starting in time" in stopped.reason
    assert stopped.links[0].path is None
