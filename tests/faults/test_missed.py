"""A fault that never came to strike is an error, whatever happened: nothing was shown."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dmabuf_mp import Role
from dmabuf_mp.backends.cpu import blocks
from dmabuf_mp.model import Fault, Outcome
from dmabuf_mp.patterns import step
from tests.faults.test_striking import with_fault
from tests.orchestrator.making import pair, run, with_role

if TYPE_CHECKING:
    from dmabuf_mp import Context, Scenario, ScenarioReport
    from dmabuf_mp.backends.base import Buffer

ERROR, FAILED, CRASHED, PASSED = Outcome.ERROR, Outcome.FAILED, Outcome.CRASHED, Outcome.PASSED


def writes_by_hand(context: Context) -> None:
    """Share the right data, from round 1 on without the call in which the data's faults strike."""

    def fill(buffer: Buffer, round_: int) -> None:
        if round_ == 0:
            context.fill(buffer, round_)
            return
        data = np.empty(context.size_bytes, np.uint8)
        blocks.fill(data, context._part.pattern, step(round_))
        context.device.write(buffer, 0, data.tobytes())

    context.share(fill)


def writes_nothing_back(context: Context) -> None:
    context.receive(context.check)  # type: ignore[arg-type]


def kills_itself(context: Context) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def faulty(scenario: Scenario, label: str, *faults: Fault, expect: Outcome) -> Scenario:
    return replace(with_fault(scenario, label, *faults), expect=expect)


def said(report: ScenarioReport) -> tuple[Outcome, Outcome, str]:
    return report.outcome, report.observed, report.reason_code


def test_a_fault_whose_round_is_gone_through_otherwise_is_named_with_its_moment() -> None:
    early, late = (Fault("flip_bit", "fill", round_) for round_ in range(2))
    by_hand = with_role(pair("by hand", rounds=2), "producer", writes_by_hand)
    scenarios = [
        faulty(pair("struck", rounds=2), "producer", early, late, expect=FAILED),
        faulty(by_hand, "producer", late, expect=FAILED),
        faulty(by_hand, "producer", early, late, expect=FAILED),
        faulty(by_hand, "producer", early, expect=FAILED),
    ]
    struck, unstruck, one_of_two, only = run(*scenarios).scenarios
    assert said(struck) == said(only) == (PASSED, FAILED, "mismatch")
    assert said(unstruck) == (ERROR, PASSED, "fault_not_struck")
    assert said(one_of_two) == (ERROR, FAILED, "fault_not_struck")
    never = "producer: the fault 'flip_bit', due in 'fill' of round 1, never struck"
    assert unstruck.reason == f"{never}; observed: passed"
    assert one_of_two.reason == f"{never}; observed: failed"
    assert unstruck.notes == ()


def test_what_looks_like_the_fault_is_not_taken_for_it() -> None:
    writer = pair("writer", consumers=(Role("consumer", access="readwrite"),))
    scenarios = [
        faulty(
            with_role(writer, "consumer[0]", writes_nothing_back),
            "consumer[0]",
            Fault("lost_write_back", "fill"),
            expect=FAILED,
        ),
        faulty(
            with_role(pair("killed"), "consumer[0]", kills_itself),
            "consumer[0]",
            Fault("kill", "check"),
            expect=CRASHED,
        ),
    ]
    reports = run(*scenarios).scenarios
    assert [said(one) for one in reports] == [
        (ERROR, FAILED, "fault_not_struck"),
        (ERROR, CRASHED, "fault_not_struck"),
    ]


def test_what_is_no_pass_anyhow_stays_what_it_is_with_a_note() -> None:
    killed = with_role(pair(), "consumer[0]", kills_itself)
    (report,) = run(faulty(killed, "consumer[0]", Fault("kill", "check"), expect=FAILED)).scenarios
    assert said(report) == (CRASHED, CRASHED, "killed")
    assert report.notes == ("consumer[0]: the fault 'kill', due in 'check' of round 0, never struck",)


def test_a_fault_that_another_one_leaves_no_time_for_is_excused() -> None:
    both = faulty(pair(), "producer", Fault("kill", "send"), Fault("raise", "release"), expect=CRASHED)
    (report,) = run(with_fault(both, "consumer[0]", Fault("raise", "release"))).scenarios
    assert said(report) == (PASSED, CRASHED, "killed")
    assert report.notes == ()


def test_a_skip_stays_a_skip() -> None:
    too_large = pair(size_bytes=2**60)
    (report,) = run(faulty(too_large, "producer", Fault("flip_bit", "fill"), expect=FAILED)).scenarios
    assert said(report) == (Outcome.SKIPPED, Outcome.SKIPPED, "unsupported")
    assert report.notes == ()
