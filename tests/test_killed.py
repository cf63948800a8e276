"""A few of the random moments at which `python -m tests.long.kill` kills a run, or one of its workers."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

from tests.long import kill

SEED = 11
LENGTH_S = 1.2  # about a run's, where nothing else is going on


def test_a_kill_at_any_moment_leaves_nothing_behind_and_is_blamed_right() -> None:
    victims: tuple[kill.Victim, ...] = ("orchestrator", "worker")
    moments = [one for v in victims for one in itertools.islice(kill.moments(v, SEED, LENGTH_S), 5)]
    with ThreadPoolExecutor(len(moments)) as side_by_side:
        found = list(side_by_side.map(kill.try_moment, moments))
    assert [(moment, wrong) for moment, (_, wrong) in zip(moments, found, strict=True) if wrong] == []
