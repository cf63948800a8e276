"""The pool gives out no worker that is ending; and what a mistake of our own costs."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

from dmabuf_mp.model import Outcome
from dmabuf_mp.orchestrator.loop import Loop
from dmabuf_mp.orchestrator.pool import Pool
from tests.orchestrator.making import pair, run

if TYPE_CHECKING:
    import pytest

    from dmabuf_mp.orchestrator.handle import Handle


def test_a_worker_whose_end_has_begun_is_not_taken() -> None:
    with Loop() as loop:
        pool = Pool(loop)
        for ending in (False, True):
            worker = pool.take(("cpu",))
            assert pool.keep(worker, ("cpu",))
            if (
                ending
            ):  # its sockets close first; that it has ended comes later, when the kernel is done with it
                worker.signal(signal.SIGSTOP)
                loop._dismiss(worker)
            assert (pool.take(("cpu",)) is worker) is not ending
            worker.signal(signal.SIGKILL)
            loop.wait(lambda pid=worker.pid: pid not in loop.workers)


def test_a_mistake_of_ours_costs_one_scenario_and_not_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    take, taken = Pool.take, 0

    def broken(pool: Pool, devices: tuple[str, ...]) -> Handle:
        nonlocal taken
        taken += 1
        if taken == 2:
            raise OSError(9, "Bad file descriptor")
        return take(pool, devices)

    monkeypatch.setattr(Pool, "take", broken)
    first, second = run(pair("first"), pair("second")).scenarios
    assert (first.outcome, first.reason_code) == (Outcome.ERROR, "internal")
    assert re.search(r"OSError: \[Errno 9\] Bad file descriptor \(.*test_pool\.py:\d+\)$", first.reason)
    assert second.outcome is Outcome.PASSED
