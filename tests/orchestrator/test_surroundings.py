"""Hostile surroundings: limits, closed streams, ignored signals, a stop of the orchestrator itself."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dmabuf_mp
from dmabuf_mp import Role, UsageError
from dmabuf_mp.linux import process
from dmabuf_mp.model import Outcome
from dmabuf_mp.orchestrator.clock import Clock, time_scale
from tests.forked import in_child
from tests.orchestrator.making import fan_out, pair, run, same, with_role, worker

if TYPE_CHECKING:
    from dmabuf_mp import Context, Report

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534


def verdicts(report: Report) -> str:
    return f"{report.exit_code} " + " ".join(one.outcome for one in report.scenarios)


def a_pass_and_a_crash(**settings: object) -> str:
    return verdicts(run(pair(), with_role(pair("crash"), "consumer[0]", "exit_3"), same(), **settings))


AS_EVER = "1 passed crashed passed"


def test_exit_statuses_are_known_though_the_parent_ignores_sigchld() -> None:
    def ignoring() -> object:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        said = a_pass_and_a_crash()
        (crash,) = run(with_role(pair(), "consumer[0]", "exit_3")).scenarios
        assert worker(crash, "consumer[0]").exit_code == 3
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN  # as it was
        return said

    assert in_child(ignoring) == AS_EVER


def test_a_status_that_someone_else_took_is_unknown_and_never_a_zero() -> None:
    def stealing() -> object:
        from dmabuf_mp.orchestrator.handle import Handle

        reap = Handle.reap

        def steal_first(self: Handle) -> bool:
            if self.exit is None:
                os.waitpid(self.pid, os.WNOHANG)
            return reap(self)

        Handle.reap = steal_first  # type: ignore[method-assign]
        (crash,) = run(with_role(pair(), "consumer[0]", "exit_quietly")).scenarios
        return crash.outcome, worker(crash, "consumer[0]").exit_code, crash.reason

    assert in_child(stealing) == str(
        (
            Outcome.CRASHED,
            None,
            "consumer[0]: ended with an unknown status in phase 'role', without having been told to",
        )
    )


@pytest.mark.parametrize("closed", [(0,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("fork", [True, False])
def test_standard_streams_may_be_closed(closed: tuple[int, ...], fork: bool) -> None:
    def without_streams() -> object:
        for number in closed:
            os.close(number)
        return verdicts(
            dmabuf_mp.run([pair(), with_role(pair("t"), "producer", "chatty_everywhere")], fork=fork)
        )

    assert in_child(without_streams) == "0 passed passed"


def test_32_open_files_are_enough_for_a_pair_and_too_few_for_many() -> None:
    def limited() -> object:
        resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
        said = a_pass_and_a_crash()
        many = run(fan_out(count=20), pair("after"))
        assert many.scenarios[0].reason_code == "resource", many.scenarios[0].reason
        return said, many.scenarios[0].reason, verdicts(many)

    said = in_child(limited)
    assert AS_EVER in said
    assert "1 error passed" in said
    assert "Too many open files" in said


def test_no_process_to_be_had_is_an_error_that_says_so() -> None:
    def limited() -> object:
        run(pair())  # everything is imported now, by one who may read it
        if os.getuid() == 0:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        for scenario in (
            pair(),
            with_role(pair(), "consumer[0]", "play"),  # needs one that tries to import it
            pair(producer=Role("producer", device="cuda:0")),  # needs one that looks for devices
        ):
            (one,) = run(scenario).scenarios
            assert (one.outcome, one.reason_code) == (Outcome.ERROR, "resource")
            assert one.reason == "no further worker can be started: Resource temporarily unavailable"
        return "said so"

    assert in_child(limited) == "said so"


def test_a_limit_of_file_sizes_is_an_error_or_a_skip_and_never_a_hang() -> None:
    def limited() -> object:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        return verdicts(run(pair()))

    assert in_child(limited) in {"1 error", "77 skipped"}


def test_a_process_with_threads_may_not_fork_and_need_not() -> None:
    event = threading.Event()
    thread = threading.Thread(target=event.wait)
    thread.start()
    try:
        with pytest.raises(UsageError, match="needs a process with one thread"):
            run(pair())
        assert dmabuf_mp.run(pair()).exit_code == 0
    finally:
        event.set()
        thread.join()


def test_from_a_thread_other_than_the_main_one() -> None:
    reports = []
    thread = threading.Thread(target=lambda: reports.append(dmabuf_mp.run([pair(), same()])))
    thread.start()
    thread.join()
    assert verdicts(reports[0]) == "0 passed passed"


@pytest.mark.parametrize("level", ["1", "2"])
def test_no_check_is_lost_to_optimisation(level: str) -> None:
    code = (
        "from tests.orchestrator.making import *\n"
        "report = run(pair(), with_role(pair('bad'), 'producer', 'one_bit'),"
        " with_role(pair('none'), 'consumer[0]', 'receive_without_check'))\n"
        "print(report.exit_code, *(one.outcome for one in report.scenarios))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONOPTIMIZE": level},
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.stdout == "1 passed failed error\n", done.stderr
    assert done.stderr == ""


def test_kernels_without_pidfds_and_lists_of_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "pidfd_open", lambda pid: None)
    monkeypatch.setattr(process, "children", lambda pid="self": frozenset())
    assert a_pass_and_a_crash() == AS_EVER


def test_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "state", lambda pid: None)
    monkeypatch.setattr(process, "thread_names", lambda: ())
    monkeypatch.setattr(process, "open_fds", dict)
    monkeypatch.setattr(process, "children", lambda pid="self": frozenset())
    assert a_pass_and_a_crash() == AS_EVER
    hang = with_role(pair("hang", timeout_s=0.5), "consumer[0]", "hang")
    assert verdicts(run(hang)) == "1 timed_out"


def test_time_in_which_the_orchestrator_was_stopped_is_not_counted() -> None:
    """The consumer stops the orchestrator for most of the deadline, and takes long itself afterwards."""

    def consume(context: Context) -> None:
        parent = os.getppid()
        os.kill(parent, signal.SIGSTOP)
        while process.state(parent) != "T":
            os.sched_yield()
        time.sleep(1.2)
        os.kill(parent, signal.SIGCONT)
        time.sleep(0.9)
        context.receive()

    def stopped() -> object:
        began = time.monotonic()
        (one,) = run(with_role(pair(timeout_s=1.5), "consumer[0]", consume)).scenarios
        assert time.monotonic() - began > 2.1
        return one.outcome, one.reason

    assert in_child(stopped) == str((Outcome.PASSED, ""))


def gone(pid: int, within_s: float = 20) -> bool:
    """Wait for the end of a process that is not this one's child."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([pidfd], [], [], within_s)[0])
    finally:
        os.close(pidfd)


def pids_from(read: int, count: int) -> list[int]:
    data = b""
    while data.count(b"\n") < count and (more := os.read(read, 4096)):
        data += more
    return [int(line) for line in data.split()]


def test_no_worker_outlives_an_orchestrator_that_was_killed(tmp_path: Path) -> None:
    fifo = tmp_path / "pids"
    os.mkfifo(fifo)

    def hang(context: Context) -> None:
        with fifo.open("a") as file:
            file.write(f"{os.getpid()}\n")
        threading.Event().wait()

    pid = os.fork()
    if pid == 0:
        try:
            run(with_role(with_role(fan_out(), "consumer[1]", hang), "producer", hang))
        finally:
            os._exit(1)
    with fifo.open("rb", buffering=0) as pipe:
        workers = pids_from(pipe.fileno(), 2)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert all(gone(one) for one in workers)


def test_the_callers_subreaper_state_and_handlers_come_back() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
    run(pair())
    assert handlers == [
        signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
    ]
    assert not process.is_subreaper()


# The clock by itself.


def test_the_clock_credits_what_exceeds_the_sleep_and_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    now, busy = 100.0, 10.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "process_time", lambda: busy)
    clock = Clock()
    now = 101.0
    clock.slept(1.0)
    assert clock.now() == 101.0
    now = 111.0
    clock.slept(1.0)  # nine seconds too long
    assert clock.now() == 102.0
    now = 111.4
    clock.slept(0)  # a moment that is too short for a stop
    assert clock.now() == pytest.approx(102.4)
    now, busy = 121.4, 20.0
    clock.slept(0)  # ten seconds of work
    assert clock.now() == pytest.approx(112.4)


@pytest.mark.parametrize(
    ("value", "scale"),
    [("20", 20.0), ("0.5", 0.5), ("", 1.0), ("0", 1.0), ("-1", 1.0), ("nan", 1.0), ("inf", 1.0)],
)
def test_the_time_scale_is_a_positive_number_or_one(
    value: str, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DMABUF_MP_TIME_SCALE", value)
    assert time_scale() == scale
