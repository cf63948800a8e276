"""A few of the random moments at which `python -m tests.long.kill` kills a run, or one of its workers."""

from __future__ import annotations

import itertools

import pytest

from tests.long import kill

SEED = 11
LENGTH_S = 0.8  # about a run's, where nothing else is going on


@pytest.mark.parametrize("victim", ["orchestrator", "worker"])
def test_a_kill_at_any_moment_leaves_nothing_behind_and_is_blamed_right(victim: kill.Victim) -> None:
    for moment in itertools.islice(kill.moments(victim, SEED, LENGTH_S), 5):
        _, wrong = kill.try_moment(moment)
        assert wrong == [], moment
