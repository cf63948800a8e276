"""The pool gives out no worker that is ending."""

from __future__ import annotations

import signal

from dmabuf_mp.orchestrator.loop import Loop
from dmabuf_mp.orchestrator.pool import Pool


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
