"""Every fault, in every place: the right outcome, the right worker blamed, in time, nothing left behind."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from dmabuf_mp.model import Outcome
from tests.orchestrator.making import LONG_S, chain, fan_out, log_of, pair, run, same, with_role, worker

if TYPE_CHECKING:
    from dmabuf_mp import Scenario, ScenarioReport

SHORT_S = 1.0  # a deadline that is meant to be reached


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, and what has to be said of it: outcome, reason code, a part of the culprit's reason."""

    name: str
    outcome: Outcome
    code: str
    says: str

    @property
    def deadline_s(self) -> float:
        return SHORT_S if self.outcome is Outcome.TIMED_OUT else LONG_S


CRASHED, TIMED_OUT, ERROR, FAILED = Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.ERROR, Outcome.FAILED
SEGV = Fault("segv", CRASHED, "killed", "killed by SIGSEGV in phase ")
KILL = Fault("kill", CRASHED, "killed", "killed by SIGKILL in phase ")
EXIT_0 = Fault("exit_quietly", CRASHED, "exited", "exited with status 0 in phase ")
EXIT_3 = Fault("exit_3", CRASHED, "exited", "exited with status 3 in phase ")
RAISE = Fault("raise_", ERROR, "exception", "RuntimeError: it broke (")
HANG = Fault("hang", TIMED_OUT, "deadline", f"did not finish within {SHORT_S:g} s: in phase ")
HANG_HARD = replace(HANG, name="hang_ignoring_term")
STOP = Fault("stop_itself", TIMED_OUT, "deadline", "stopped by a signal")

EVERYWHERE = (SEGV, EXIT_0, RAISE)
ONCE = (
    KILL,
    EXIT_3,
    Fault("abort", CRASHED, "killed", "killed by SIGABRT"),
    Fault("sys_exit", CRASHED, "exited", "exited with status 0"),
    Fault("sys_exit_with_a_text", CRASHED, "exited", "exited with status 1"),
    Fault("raise_with_a_huge_message", ERROR, "exception", "RuntimeError: xxx"),
    Fault("out_of_memory", ERROR, "resource", "none left"),
    Fault("recurse", ERROR, "exception", "RecursionError"),
    Fault("garbage_to_the_orchestrator", ERROR, "protocol", "sent 7 bytes, fewer than a frame's header"),
)
PLACES = {
    "pair": (pair, ("producer", "consumer[0]")),
    "fan-out": (fan_out, ("consumer[1]",)),
    "chain": (chain, ("relay[0]",)),
    "same": (same, ("producer", "consumer[0]")),
}


def case(place: str, victim: str, fault: Fault, at: str = "start", round_: int = 0) -> Scenario:
    make = PLACES[place][0]
    scenario = make(
        f"{place} {victim} {fault.name} {at} {round_}", rounds=round_ + 1, timeout_s=fault.deadline_s
    )
    return with_role(scenario, victim, "strike", {"fault": fault.name, "at": at, "round": round_})


def wrong_with(report: ScenarioReport, victim: str, fault: Fault) -> list[str]:
    """Say what a report gets wrong about a fault in one of its workers."""
    found = []
    if (report.observed, report.reason_code) != (fault.outcome, fault.code):
        found.append(f"it {report.observed} ({report.reason_code}): {report.reason}")
    # A crash takes both roles of one worker along, either is named where neither waited.
    both = report.name.startswith("same") and fault.outcome is CRASHED
    if not (report.reason.startswith(f"{victim}: ") or both) or fault.says not in report.reason:
        found.append(f"reason {report.reason!r}")
    collateral = {Outcome.PASSED, Outcome.ERROR} | ({CRASHED} if both else set())
    for one in report.workers:
        label = one.role if one.role == "producer" else f"{one.role}[{one.index}]"
        if one.outcome not in ({fault.outcome} if label == victim and not both else collateral):
            found.append(f"{label} {one.outcome}: {one.reason}")
    return found


def check_all(cases: list[tuple[Scenario, str, Fault]]) -> dict[str, ScenarioReport]:
    """Run all in one run and report everything that is wrong at once."""
    report = run(*(scenario for scenario, _, _ in cases))
    found = [
        f"{one.name}: {wrong}"
        for one, (_, victim, fault) in zip(report.scenarios, cases, strict=True)
        for wrong in wrong_with(one, victim, fault)
    ]
    assert not found, "\n".join(found)
    return {one.name: one for one in report.scenarios}


def test_faults_at_the_start_of_every_role() -> None:
    cases = [
        (case(place, victim, fault), victim, fault)
        for place, (_, victims) in PLACES.items()
        for victim in victims
        for fault in EVERYWHERE
    ]
    cases += [(case("pair", "consumer[0]", fault), "consumer[0]", fault) for fault in ONCE]
    reports = check_all(cases)
    stack = "\n".join(log_of(reports["pair consumer[0] segv start 0"], "consumer[0]"))
    assert "Fatal Python error: Segmentation fault" in stack
    assert "in segv" in stack
    trace = "\n".join(log_of(reports["pair producer raise_ start 0"], "producer"))
    assert trace.startswith("Traceback")
    assert 'raise RuntimeError("it broke")' in trace
    # Nobody waits for the dead: far below the deadline of a minute.
    assert max(one.elapsed_s for one in reports.values()) < 10


def test_faults_later_on() -> None:
    spots = [
        ("pair", "producer", "filled", 1),
        ("pair", "producer", "end", 0),
        ("pair", "consumer[0]", "checked", 0),
        ("pair", "consumer[0]", "checked", 1),
        ("pair", "consumer[0]", "end", 0),
        ("fan-out", "consumer[1]", "checked", 1),
        ("fan-out", "consumer[1]", "end", 0),
        ("chain", "relay[0]", "checked", 0),
        ("chain", "relay[0]", "forwarded", 1),
        ("chain", "relay[0]", "end", 0),
        ("same", "consumer[0]", "checked", 1),
    ]
    check_all(
        [
            (case(place, victim, fault, at, round_), victim, fault)
            for place, victim, at, round_ in spots
            for fault in EVERYWHERE
        ]
    )


def test_a_worker_that_passes_and_then_crashes_has_crashed() -> None:
    names = ("segv_at_the_very_end", "exit_after_the_result")
    crash, end = run(*(with_role(pair(name), "consumer[0]", name) for name in names)).scenarios
    assert (crash.observed, crash.reason_code) == (CRASHED, "killed")
    assert crash.reason == "consumer[0]: killed by SIGSEGV after its part had passed"
    assert (end.observed, end.reason_code) == (CRASHED, "exited")
    assert end.reason == "consumer[0]: exited with status 3 after its part had passed"


def test_who_hangs_is_told_from_who_waits() -> None:
    spots = [
        ("pair", "producer", HANG_HARD, "start", 0),
        ("pair", "consumer[0]", STOP, "checked", 1),
        ("fan-out", "consumer[1]", HANG, "checked", 0),
        ("chain", "relay[0]", HANG, "forwarded", 0),
        ("same", "consumer[0]", HANG_HARD, "end", 0),
    ]
    began = time.monotonic()
    reports = check_all([(case(p, victim, fault, at, n), victim, fault) for p, victim, fault, at, n in spots])
    assert time.monotonic() - began < 30
    hung = reports["chain relay[0] hang forwarded 0"]
    assert "in hang" in "\n".join(log_of(hung, "relay[0]"))
    assert "waiting for 'ack' from relay[0], after 'go' from relay[0]" in worker(hung, "producer").reason
    stopped = reports["pair consumer[0] stop_itself checked 1"]
    assert worker(stopped, "consumer[0]").signal == "SIGKILL"
    assert stopped.elapsed_s >= SHORT_S


def test_a_worker_that_never_stops_talking_has_a_deadline() -> None:
    check_all(
        [
            (case("pair", "producer", replace(HANG, name=name)), "producer", replace(HANG, name=name))
            for name in ("flood_stdout", "flood_log")
        ]
    )


def test_a_stopped_worker_is_blamed_even_where_it_seems_to_wait() -> None:
    """Stopped while it waits for an offer that is there already: both ends look as if they wait."""

    scenario = with_role(pair(timeout_s=SHORT_S), "producer", "stop_the_consumer")
    (report,) = run(scenario).scenarios
    assert report.outcome is TIMED_OUT
    assert report.reason.startswith("consumer[0]: did not finish")
    assert "stopped by a signal" in report.reason
    assert worker(report, "producer").outcome is ERROR


def test_a_role_that_checks_nothing_never_passes() -> None:
    no_check = Fault("nothing", ERROR, "no_check", "")
    cases = [
        (with_role(make(f"{place} {victim} {fault}", rounds=2), victim, fault), victim, no_check)
        for place, victim, fault in (
            ("pair", "producer", "nothing"),
            ("pair", "consumer[0]", "nothing"),
            ("pair", "consumer[0]", "receive_without_check"),
            ("pair", "consumer[0]", "check_first_round_only"),
            ("fan-out", "consumer[1]", "receive_without_check"),
            ("chain", "relay[0]", "nothing"),
            ("same", "consumer[0]", "receive_without_check"),
        )
        for make in (PLACES[place][0],)
    ]
    check_all(cases)


@pytest.mark.parametrize(
    ("fault", "kind", "count"),
    [
        ("one_bit", "scattered_bits", 2),
        ("last_byte", "tail_only", 2),
        ("no_fill", "poison", 2 * 4099),
        ("last_rounds_data", "earlier_round:0", 4099),
    ],
)
def test_wrong_data_fails_with_its_place_and_its_kind(fault: str, kind: str, count: int) -> None:
    scenarios = [with_role(pair(fault, rounds=2), "producer", fault)]
    scenarios += [
        with_role(chain(f"{fault} chain", forward, rounds=2), "producer", fault) for forward in ("fd", "copy")
    ]
    scenarios += [with_role(same(f"{fault} same", rounds=2), "producer", fault)]
    report = run(*scenarios)
    assert report.exit_code == 1
    for one in report.scenarios:
        assert (one.outcome, one.reason_code) == (FAILED, "mismatch"), one.reason
        first = one.links[0].first_mismatch
        assert first is not None
        assert first.kind == kind
        assert one.links[0].mismatches == count
        assert one.links[0].rounds_checked == 2
        assert kind in one.reason
        assert worker(one, "producer").outcome is Outcome.PASSED


def test_wrong_frames_and_fds_are_errors_of_the_protocol() -> None:
    scenarios = [
        with_role(pair("two fds"), "producer", "wrong_fd_count"),
        with_role(pair("garbage"), "producer", "garbage"),
        with_role(pair("garbage back"), "consumer[0]", "garbage"),
        with_role(chain("garbage from a relay"), "relay[0]", "garbage"),
    ]
    reports = run(*scenarios).scenarios
    assert [(one.observed, one.reason_code) for one in reports] == [(ERROR, "protocol")] * 4
    assert "expected 'offer' or 'none' with 1 fd from producer, got 'offer' with 2 fds" in reports[0].reason
    assert "producer sent no frame: it starts with b'garbage,'" in reports[1].reason
    assert "consumer[0] sent no frame" in reports[2].reason
    assert "relay[0] sent no frame" in reports[3].reason
    # Who sent it is known not to have answered any more, and no worker waits for its deadline.
    assert max(one.elapsed_s for one in reports) < 10


def test_one_that_closes_its_links_and_lives_on_is_ended_with_the_others() -> None:
    (report,) = run(with_role(pair(timeout_s=SHORT_S), "consumer[0]", "close_links")).scenarios
    assert report.outcome is TIMED_OUT
    assert report.reason.startswith("consumer[0]: did not finish")
    assert worker(report, "producer").reason == "consumer[0] ended before it sent 'go'"
