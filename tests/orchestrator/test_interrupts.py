"""SIGINT and SIGTERM at any moment: everything is ended, and the report is there and says so.

DMABUF_MP_KILLS is the number of moments that are tried.
"""

from __future__ import annotations

import json
import os
import random
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
from dmabuf_mp.linux import process
from dmabuf_mp.model import Outcome
from dmabuf_mp.orchestrator.loop import Loop
from tests.orchestrator.making import chain, fan_out, pair, run, same, with_role

if TYPE_CHECKING:
    from collections.abc import Callable

    from dmabuf_mp import Context, Report

MOMENTS = int(os.environ.get("DMABUF_MP_KILLS", "16"))
ROOT = Path(__file__).resolve().parents[2]


COUNT = 200


def said_of(report: Report) -> str:
    """Return the exit code and what is wrong with an interrupted run's report."""
    outcomes = [one.outcome for one in report.scenarios]
    cut = outcomes.index(Outcome.INTERRUPTED)
    wrong = [one.value for one in outcomes[:cut] if one is not Outcome.PASSED]
    wrong += [one.value for one in outcomes[cut:] if one is not Outcome.INTERRUPTED]
    wrong += [one.reason for one in report.scenarios[cut:] if "interrupted" not in one.reason]
    return json.dumps([report.exit_code, len(outcomes), wrong, sorted(process.children())])


def orchestrate(out: int, told: int) -> None:
    """Be an orchestrator for long enough, and write what became of it."""
    makers = (pair, same, fan_out, chain)
    scenarios = [makers[number % 4](f"number {number}") for number in range(COUNT - 1)]
    scenarios[::5] = [with_role(one, "producer", "play") for one in scenarios[::5]]
    scenarios.append(with_role(pair("never ends"), "consumer[0]", "hang_ignoring_term"))
    wait = Loop.wait

    def tell_and_wait(self: Loop, done: Callable[[], bool], deadline: float | None = None) -> bool:
        Loop.wait = wait  # type: ignore[method-assign]
        os.write(told, b"s")  # from its first wait on, an interrupted run ends in a report
        return self.wait(done, deadline)

    Loop.wait = tell_and_wait  # type: ignore[method-assign]
    os.write(out, said_of(run(*scenarios)).encode())


def interrupted(number: int, *, group: bool, after_s: float) -> tuple[str, int]:
    """Interrupt an orchestrator after a time; return what it said, and how long it took to end."""
    out, told = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            orchestrate(out[1], told[1])
        finally:
            os._exit(0)
    os.close(out[1])
    os.read(told[0], 1)
    time.sleep(after_s)  # a moment like any other: nothing is ordered by it
    (os.killpg if group else os.kill)(pid, number)
    with os.fdopen(out[0]) as pipe:
        assert select.select([pipe], [], [], 20)[0], "it did not end"
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    os.close(told[0])
    os.close(told[1])
    return said, status


def test_an_interrupt_at_any_moment_ends_everything_and_is_reported() -> None:
    moments = random.Random(4)
    for index in range(MOMENTS):
        number = (signal.SIGINT, signal.SIGTERM)[index % 2]
        after_s = moments.uniform(0, 0.6) * moments.random()
        said = interrupted(number, group=index % 4 > 1, after_s=after_s)
        assert said == (f"[{128 + number}, {COUNT}, [], []]", 0), f"{number.name} after {after_s} s"


def cli(folder: Path, number: signal.Signals) -> tuple[int, dict[str, object], str]:
    (folder / "hanging.py").write_text(
        "import os, threading\n"
        "def role(context):\n"
        f"    open({str(folder / 'fifo')!r}, 'a').write('x')\n"
        "    threading.Event().wait()\n"
    )
    (folder / "one.yaml").write_text(
        "{name: before, producer: cpu, consumer: cpu, size: 4KiB}\n---\n"
        "{name: during, producer: cpu, consumer: {device: cpu, role: 'hanging:role'}, size: 4KiB}\n---\n"
        "{name: after, producer: cpu, consumer: cpu, size: 4KiB}\n"
    )
    os.mkfifo(folder / "fifo")
    command = [
        sys.executable,
        "-m",
        "dmabuf_mp",
        "run",
        folder / "one.yaml",
        "--json",
        folder / "report.json",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as child:
        (folder / "fifo").read_text()  # until the role has begun
        child.send_signal(number)
        _, errors = child.communicate(timeout=30)
    return child.returncode, json.loads((folder / "report.json").read_text()), errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_line_ends_with_the_signals_code_and_a_valid_report(
    number: signal.Signals, tmp_path: Path
) -> None:
    code, report, errors = cli(tmp_path, number)
    assert code == report["exit_code"] == 128 + number
    scenarios = report["scenarios"]
    assert isinstance(scenarios, list)
    assert [one["outcome"] for one in scenarios] == ["passed", "interrupted", "interrupted"]
    assert "Traceback" not in errors


def hanging(fifo: Path) -> object:
    def hang(context: Context) -> None:
        with fifo.open("a") as file:
            file.write(f"{os.getpid()} {os.getppid()}")
        threading.Event().wait()

    return with_role(pair(), "consumer[0]", hang)


def test_ctrl_c_in_an_embedding_program_is_raised_once_everything_has_ended(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    pids: list[str] = []

    def interrupt() -> None:
        pids.extend((tmp_path / "fifo").read_text().split())
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        dmabuf_mp.run(hanging(tmp_path / "fifo"))  # type: ignore[arg-type]
    thread.join()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_an_embedding_program_that_was_killed(
    number: signal.Signals, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "fifo")
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            dmabuf_mp.run(hanging(tmp_path / "fifo"))  # type: ignore[arg-type]
        finally:
            os._exit(1)
    pids = [int(word) for word in (tmp_path / "fifo").read_text().split()]
    pidfds = [os.pidfd_open(one) for one in pids]
    os.kill(pid, number)
    os.waitpid(pid, 0)
    for pidfd in pidfds:
        assert select.select([pidfd], [], [], 20)[0], "it lives on"
        os.close(pidfd)
