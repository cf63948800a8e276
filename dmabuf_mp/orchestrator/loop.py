"""The orchestrator's loop: waits on every worker at once, and for signals; owns all processes."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from typing import TYPE_CHECKING

from dmabuf_mp.errors import DmabufMpError
from dmabuf_mp.linux import process
from dmabuf_mp.orchestrator import handle as handles
from dmabuf_mp.orchestrator.clock import Clock, time_scale

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import FrameType

    from dmabuf_mp.orchestrator.handle import Handle

TERM_GRACE_S = 0.5
KILL_GRACE_S = 5.0
STACK_WAIT_S = 0.3
_POLL_S = 0.05  # where the kernel has no pidfd, ends are looked for this often
_TICK_S = 0.25  # the longest sleep: what exceeds it tells that this process itself was stopped


class Interrupted(DmabufMpError):
    """SIGINT or SIGTERM came, or the program that the run belongs to is gone."""


class Loop:
    """Every worker of this run, and the one place that waits."""

    def __init__(self, tied_to: int | None = None) -> None:
        self.clock = Clock()
        self.scale = time_scale()
        self.workers: dict[int, Handle] = {}
        self.left: list[int] = []
        self.interrupted_by: int | None = None
        self.ends_in_report = False  # until the run starts, an interrupt is the end at once
        self._selector = selectors.DefaultSelector()
        self._old_handlers: dict[int, object] = {}
        self._teardown = False
        self._wake: tuple[int, int] | None = None
        self._tied_to = tied_to
        self._not_ours: frozenset[int] = frozenset()
        self._was_subreaper = False

    def __enter__(self) -> Loop:
        self._not_ours = process.children()
        self._was_subreaper = process.is_subreaper()
        process.prctl(process.PR_SET_CHILD_SUBREAPER, 1)
        read, write = self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(read, selectors.EVENT_READ, lambda: self._drain_wakeups(read))
        self._old_handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup: the terminal may go, and the run stays
            self._old_handlers[number] = signal.signal(number, self._on_signal)
        self._old_wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        if self._tied_to is not None:
            self._selector.register(self._tied_to, selectors.EVENT_READ, self._on_owner)
        return self

    def __exit__(self, *_: object) -> None:
        self.ends_in_report = self._teardown = True
        self.end(list(self.workers.values()), at_once=self.interrupted_by is not None)
        signal.set_wakeup_fd(self._old_wakeup)
        for number, old in self._old_handlers.items():
            signal.signal(number, old if callable(old) or isinstance(old, int) else signal.SIG_DFL)
        self._selector.close()
        for number in self._wake or ():
            os.close(number)
        process.prctl(process.PR_SET_CHILD_SUBREAPER, int(self._was_subreaper))

    # Signals.

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self.ends_in_report:
            raise SystemExit(128 + number)
        if self.interrupted_by is None:
            self.interrupted_by = number

    def _on_owner(self) -> None:
        """Hear from the program that this run belongs to: a byte is its interrupt, the end is its end."""
        if self._tied_to is not None:
            try:
                said = os.read(self._tied_to, 1)
            except OSError:  # it ended without having read what we told it
                said = b""
            self._selector.unregister(self._tied_to)
            self._tied_to = None
            self._on_signal(signal.SIGINT if said else signal.SIGTERM, None)

    @staticmethod
    def _drain_wakeups(read: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(read, 64):
                pass

    # Workers.

    def spawn(self) -> Handle:
        """Fork a worker and watch it."""
        worker = handles.fork()
        self.workers[worker.pid] = worker
        register = self._selector.register
        register(worker.control.fileno(), selectors.EVENT_READ, lambda: self._frames(worker))
        for level, number in worker.pipes.items():
            register(number, selectors.EVENT_READ, lambda level=level: self._output(worker, level))
        if worker.pidfd is not None:
            register(worker.pidfd, selectors.EVENT_READ, lambda: None)
        return worker

    def _frames(self, worker: Handle) -> None:
        if not worker.read_frames() and not worker.control.closed:
            self._selector.unregister(worker.control.fileno())
            worker.control.close()

    def _output(self, worker: Handle, level: str) -> None:
        if worker.read_output(level) < 0:
            self._selector.unregister(worker.pipes[level])
            os.close(worker.pipes.pop(level))

    def _reap(self) -> None:
        for worker in list(self.workers.values()):
            if not worker.reap():
                continue
            worker.drain()
            del self.workers[worker.pid]
            for number in (*worker.pipes.values(), worker.control.fileno(), worker.pidfd):
                if number is not None and number >= 0:
                    self._selector.unregister(number)
            worker.close()

    def wait(self, done: Callable[[], bool], deadline: float | None = None) -> bool:
        """Serve everything until `done`; False when the deadline, on the clock, comes first.

        Raises Interrupted.
        """
        while not done():
            if self.interrupted_by is not None and not self._teardown:
                raise Interrupted(signal.Signals(self.interrupted_by).name)
            timeout = None if deadline is None else deadline - self.clock.now()
            if timeout is not None and timeout <= 0:
                return False
            self._serve(timeout)
        return True

    def _serve(self, timeout: float | None) -> None:
        if any(worker.pidfd is None for worker in self.workers.values()):
            timeout = _POLL_S if timeout is None else min(timeout, _POLL_S)
        timeout = _TICK_S if timeout is None else min(timeout, _TICK_S)
        self.clock.slept(0)
        events = self._selector.select(timeout)
        self.clock.slept(timeout)
        for key, _ in events:
            if key.fd in self._selector.get_map():
                key.data()
        self._reap()

    # The end of workers.

    def stacks(self, workers: Iterable[Handle]) -> None:
        """Have workers write their Python stacks into their logs, as far as they still can."""
        for worker in workers:
            worker.signal(signal.SIGUSR1)
        with contextlib.suppress(Interrupted):
            self.wait(lambda: False, self.clock.now() + STACK_WAIT_S * self.scale)

    def end(self, workers: Iterable[Handle], *, at_once: bool = False) -> None:
        """End workers and reap them: by closing their control, then SIGTERM, then SIGKILL.

        A worker that SIGKILL does not end (state D) is left, and its pid kept in `left`.
        """
        ending = [worker for worker in workers if worker.pid in self.workers]
        teardown, self._teardown = self._teardown, True  # an interrupt does not stop the ending
        try:
            if not at_once:
                for worker in ending:
                    self._dismiss(worker)
                self._wait_gone(ending, TERM_GRACE_S)
            for worker in ending:
                if worker.pid in self.workers and process.state(worker.pid) != "T":
                    worker.signal(signal.SIGTERM)
            self._wait_gone([w for w in ending if process.state(w.pid) != "T"], TERM_GRACE_S)
            for worker in ending:
                worker.signal(signal.SIGKILL)
            self._wait_gone(ending, KILL_GRACE_S)
        finally:
            self._teardown = teardown
        for worker in ending:
            if self.workers.pop(worker.pid, None) is not None:
                self.left.append(worker.pid)

    def _dismiss(self, worker: Handle) -> None:
        if worker.pid in self.workers and not worker.control.closed:
            self._selector.unregister(worker.control.fileno())
            worker.read_frames()
            worker.control.close()

    def _wait_gone(self, workers: Iterable[Handle], grace_s: float) -> None:
        pids = [worker.pid for worker in workers]
        deadline = self.clock.now() + grace_s * self.scale
        self.wait(lambda: not any(pid in self.workers for pid in pids), deadline)

    def sweep(self) -> list[str]:
        """Kill and reap every child that is not a worker: what a worker's role left behind."""
        found = []
        limit = time.monotonic() + KILL_GRACE_S
        # What is killed leaves its own children to this process: until there are none.
        while (there := self._strays()) and time.monotonic() < limit:
            for pid in there:
                found.append(f"process {pid} ({process.command(pid)})")
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < limit:
                        time.sleep(0.001)
        return found

    def _strays(self) -> frozenset[int]:
        return process.children() - self.workers.keys() - set(self.left) - self._not_ours
