"""The judge: cause before collateral, and who holds up the rest."""

from __future__ import annotations

import itertools

from dmabuf_mp.model import Outcome
from dmabuf_mp.orchestrator.judge import End, convict, judge, stuck

PASSED, FAILED, SKIPPED = Outcome.PASSED, Outcome.FAILED, Outcome.SKIPPED
CRASHED, TIMED_OUT, ERROR = Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.ERROR


def passed(label: str) -> End:
    return End(label, PASSED)


def suffered(label: str, culprit: str) -> End:
    return End(label, ERROR, "peer_gone", f"{culprit} ended", culprit)


def test_nothing_at_all_is_an_error_and_passes_are_a_pass() -> None:
    assert judge([])[0] is ERROR
    assert judge([passed("producer"), passed("consumer[0]")]) == (PASSED, "ok", "")


def test_one_that_did_not_pass_is_enough_in_any_order() -> None:
    for outcome in (FAILED, SKIPPED, CRASHED, TIMED_OUT, ERROR):
        ends = [passed("producer"), End("consumer[0]", outcome, "code", "why"), passed("consumer[1]")]
        for order in itertools.permutations(ends):
            assert judge(order) == (outcome, "code", "consumer[0]: why")


def test_the_cause_counts_though_its_victims_fared_worse() -> None:
    mismatch = End("consumer[1]", FAILED, "mismatch", "1 position differs")
    ends = [suffered("producer", "consumer[1]"), suffered("consumer[0]", "consumer[1]"), mismatch]
    for order in itertools.permutations(ends):
        assert judge(order) == (FAILED, "mismatch", "consumer[1]: 1 position differs")


def test_blame_is_followed_through_others() -> None:
    crash = End("relay[0]", CRASHED, "killed", "killed by SIGSEGV")
    ends = [suffered("producer", "relay[0]"), crash, suffered("consumer[0]", "relay[0]")]
    assert judge(ends) == (CRASHED, "killed", "relay[0]: killed by SIGSEGV")
    chain = [
        suffered("producer", "relay[0]"),
        suffered("relay[0]", "consumer[0]"),
        End("consumer[0]", CRASHED),
    ]
    assert judge(chain)[2].startswith("consumer[0]: ")


def test_the_worst_cause_counts() -> None:
    ends = [End("producer", ERROR, "exception", "e"), End("consumer[0]", CRASHED, "killed", "k")]
    assert judge(ends) == (CRASHED, "killed", "consumer[0]: k")


def test_blaming_nobody_one_that_passed_or_each_other_excuses_nothing() -> None:
    for culprit in ("nobody", "consumer[0]"):
        assert judge([suffered("producer", culprit), passed("consumer[0]")])[0] is ERROR
    assert judge([suffered("producer", "consumer[0]"), suffered("consumer[0]", "producer")])[0] is ERROR
    assert judge([suffered("producer", "producer")])[0] is ERROR


def test_who_sent_what_may_not_be_sent_is_charged_with_it() -> None:
    noticed = End("consumer[0]", ERROR, "protocol", "producer sent no frame", "producer")
    for producer in (passed("producer"), suffered("producer", "consumer[0]")):
        ends = convict([producer, noticed])
        assert [(end.label, end.outcome, end.code) for end in ends] == [
            ("producer", ERROR, "protocol"),
            ("consumer[0]", ERROR, "peer_gone"),
        ]
        assert judge(ends) == (ERROR, "protocol", "producer: consumer[0]: producer sent no frame")
    crash = End("producer", CRASHED, "killed", "killed by SIGSEGV")
    assert judge(convict([crash, noticed])) == (CRASHED, "killed", "producer: killed by SIGSEGV")


def test_two_that_both_sent_what_may_not_be_sent_both_carry_it() -> None:
    one = End("producer", ERROR, "protocol", "consumer[0] sent frame 1", "consumer[0]")
    other = End("consumer[0]", ERROR, "protocol", "producer sent frame 0", "producer")
    ends = convict([one, other])
    assert [(end.label, end.code, end.reason) for end in ends] == [
        ("producer", "protocol", "consumer[0]: producer sent frame 0"),
        ("consumer[0]", "protocol", "producer: consumer[0] sent frame 1"),
    ]
    assert judge(ends) == (ERROR, "protocol", "producer: consumer[0]: producer sent frame 0")


def test_stuck_is_who_waits_for_nobody_that_is_not_done() -> None:
    table: dict[tuple[tuple[str, str | None], ...], set[str]] = {
        (("a", None),): {"a"},
        (("a", "b"), ("b", None)): {"b"},
        (("a", "b"), ("b", "c"), ("c", None)): {"c"},
        (("a", "done"), ("b", "a")): {"a"},
        (("a", None), ("b", None), ("c", "a")): {"a", "b"},
        (("a", "b"), ("b", "a")): {"a", "b"},
        (): set(),
    }
    for waiting, expected in table.items():
        assert stuck(dict(waiting)) == expected
