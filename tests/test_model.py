"""What is worst, what counts as a pass, and which exit code follows: the whole tables."""

from __future__ import annotations

import itertools

import pytest

from dmabuf_mp.model import Outcome, Role, Scenario, exit_code, verdict, worst

PASSED, FAILED, SKIPPED = Outcome.PASSED, Outcome.FAILED, Outcome.SKIPPED
CRASHED, TIMED_OUT, ERROR, INTERRUPTED = (
    Outcome.CRASHED,
    Outcome.TIMED_OUT,
    Outcome.ERROR,
    Outcome.INTERRUPTED,
)
BAD = (FAILED, CRASHED, TIMED_OUT, ERROR, INTERRUPTED)


def test_the_worst_of_each_two() -> None:
    order = [PASSED, SKIPPED, FAILED, ERROR, TIMED_OUT, CRASHED, INTERRUPTED]
    for (low, one), (high, other) in itertools.product(enumerate(order), repeat=2):
        assert worst((one, other)) is order[max(low, high)]
    assert worst(()) is ERROR


def test_the_verdict_on_each_observation_by_each_expectation() -> None:
    for observed, expect in itertools.product(Outcome, (PASSED, FAILED, CRASHED, TIMED_OUT, ERROR)):
        said = verdict(observed, expect)
        if observed in (SKIPPED, INTERRUPTED):
            assert said is observed
        elif observed is expect:
            assert said is PASSED
        elif observed is PASSED:
            assert said is FAILED
        else:
            assert said is observed


@pytest.mark.parametrize(
    ("outcomes", "settings", "code"),
    [
        ((PASSED,), {}, 0),
        ((PASSED, SKIPPED), {}, 0),
        ((PASSED, SKIPPED), {"strict": True}, 1),
        ((SKIPPED,), {}, 77),
        ((SKIPPED,), {"skips_ok": True}, 0),
        ((SKIPPED,), {"strict": True}, 1),
        ((), {}, 77),
        ((), {"skips_ok": True}, 77),
        ((), {"strict": True}, 77),
        ((PASSED,), {"report_lost": True}, 1),
        ((SKIPPED,), {"report_lost": True}, 1),
        ((PASSED,), {"interrupted_by": 2}, 130),
        ((CRASHED,), {"interrupted_by": 15}, 143),
        ((), {"interrupted_by": 15, "report_lost": True}, 143),
    ],
)
def test_exit_codes(outcomes: tuple[Outcome, ...], settings: dict[str, object], code: int) -> None:
    assert exit_code(outcomes, **settings) == code  # type: ignore[arg-type]


def test_one_bad_outcome_is_enough_whatever_else_there_is() -> None:
    for bad in BAD:
        for others in ((), (PASSED,), (SKIPPED,), (PASSED, SKIPPED)):
            assert exit_code((*others, bad)) == 1
            assert exit_code((bad, *others), skips_ok=True) == 1


def test_roles_are_in_the_order_of_the_chain_and_labelled() -> None:
    scenario = Scenario(
        "s", 1, Role("producer"), (Role("consumer"), Role("consumer", 1)), relays=(Role("relay"),)
    )
    assert [role.label for role in scenario.roles] == ["producer", "relay[0]", "consumer[0]", "consumer[1]"]
