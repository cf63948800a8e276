"""Kill a run with SIGKILL at random moments, the orchestrator or one of its workers: nothing is left behind.

    python -m tests.long.kill [--moments 200] [--seed 1]

A run is a real command line. Whatever it starts carries a mark in its environment, so that nothing that
outlives it can hide; a buffer has no name, and lives no longer than the processes that hold it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = ROOT / "tests/long/killed.yaml"
MARK = "DMABUF_MP_TEST_MARK"
END_S = 60.0  # far more than any run takes: what takes longer hangs
GONE_S = 20.0
TOO_LATE = "ended before it was killed"

Victim = Literal["orchestrator", "worker"]


@dataclass(frozen=True, slots=True)
class Moment:
    """When to kill whom: seconds after the first fork, and which of the workers there are then (0 to 1)."""

    victim: Victim
    after_s: float
    which: float


def moments(victim: Victim, seed: int, length_s: float) -> Iterator[Moment]:
    """Yield random moments of a run of a length, without an end."""
    drawn = random.Random(f"{victim}:{seed}")
    while True:
        yield Moment(victim, drawn.uniform(0, length_s), drawn.random())


def marked(mark: str) -> set[int]:
    """Return the living processes that were started with a mark in their environment."""
    wanted = f"{MARK}={mark}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
    return found


def children(pid: int) -> list[int]:
    """Return the workers that an orchestrator has now, zombies too."""
    with suppress(OSError):
        return sorted(int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return []


def gone(mark: str) -> set[int]:
    """Wait for the end of everything that carries a mark, and return what does not end."""
    deadline = time.monotonic() + GONE_S
    while (there := marked(mark)) and time.monotonic() < deadline:
        for pid in there:
            with suppress(ProcessLookupError):
                pidfd = os.pidfd_open(pid)
                select.select([pidfd], [], [], deadline - time.monotonic())
                os.close(pidfd)
    return there


class Run:
    """One command line that runs the scenarios, with everything that it may write in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.report = folder / "report.json"
        (folder / "tmp").mkdir()
        with (folder / "stderr").open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dmabuf_mp", "run", "--quiet", "--json", self.report, SCENARIOS],
                cwd=ROOT,
                env={**os.environ, MARK: self.mark, "TMPDIR": str(folder / "tmp")},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )

    def workers(self) -> list[int]:
        """Wait until there are workers, and return them; none where the command line ended instead."""
        while self.process.poll() is None:
            if there := children(self.process.pid):
                return there
            time.sleep(0.001)
        return []

    def end(self) -> int | None:
        """Wait for the end of the command line; None, and it is killed, where it does not come."""
        try:
            return self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None

    def left(self) -> list[str]:
        """Return what is left behind: processes and files."""
        found = [f"process {pid}" for pid in gone(self.mark)]
        found += [str(path) for path in (self.folder / "tmp").iterdir()]
        found += [
            str(path) for path in self.folder.iterdir() if path.name not in ("tmp", "report.json", "stderr")
        ]
        return found

    def said(self) -> str:
        """Return what it wrote to standard error."""
        return (self.folder / "stderr").read_text(errors="replace")


def label(worker: dict[str, Any]) -> str:
    """Return a worker's name as reasons have it."""
    return worker["role"] if worker["role"] == "producer" else f"{worker['role']}[{worker['index']}]"


def wrong_with(report: dict[str, Any], code: int, victim: int) -> list[str]:
    """Say what a report gets wrong about the death of one worker."""
    wrong = []
    hit = False
    for one in report["scenarios"]:
        dead = {label(w) for w in one["workers"] if w["pid"] == victim and w["outcome"] == "crashed"}
        hit = hit or bool(dead)
        if one["outcome"] != ("crashed" if dead else "passed"):
            wrong.append(f"{one['name']} {one['outcome']}: {one['reason']}")
        if dead and not (one["reason"].split(": ")[0] in dead and "killed by SIGKILL" in one["reason"]):
            wrong.append(f"{one['name']} blames {one['reason']!r}, and {dead} was killed")
        for worker in one["workers"]:
            suffered = worker["outcome"] == "error" and worker["culprit"] in dead
            if label(worker) not in dead and worker["outcome"] != "passed" and not suffered:
                wrong.append(f"{one['name']}: {label(worker)} {worker['outcome']}: {worker['reason']}")
    if code != int(hit) or report["exit_code"] != code:
        wrong.append(f"exit code {code}, in the report {report['exit_code']}, hit: {hit}")
    return wrong


def kill_orchestrator(run: Run, moment: Moment) -> tuple[str, list[str]]:
    """Kill the command line itself; return what it was at, and what is wrong after that."""
    run.workers()
    time.sleep(moment.after_s)
    was = TOO_LATE if run.process.poll() is not None else f"{len(children(run.process.pid))} workers"
    run.process.kill()
    run.end()
    wrong = []
    if run.report.exists():
        try:
            json.loads(run.report.read_text())
        except ValueError as error:
            wrong.append(f"the report is no JSON: {error}")
    return was, wrong


def kill_worker(run: Run, moment: Moment) -> tuple[str, list[str]]:
    """Kill one of the workers there are; return what came of it, and what is wrong with that."""
    run.workers()
    time.sleep(moment.after_s)
    victim = None
    if there := run.workers():
        victim = there[int(moment.which * len(there))]
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    code = run.end()
    if code is None:
        return "hang", [f"it did not end within {END_S:g} s"]
    if victim is None:
        return TOO_LATE, [] if code == 0 else [f"exit code {code}: {run.said()}"]
    if code == 2 and "killed by SIGKILL" in run.said():
        # The worker that tries to import the roles: a scenario error with its place, and nothing ran.
        return "while importing roles", []
    try:
        report = json.loads(run.report.read_text())
    except (OSError, ValueError) as error:
        return "no report", [f"exit code {code}, {error}: {run.said()}"]
    return "crashed" if code else "idle or done", wrong_with(report, code, victim)


def try_moment(moment: Moment) -> tuple[str, list[str]]:
    """Start a run, kill at a moment, and return what it was at and everything that is wrong after it."""
    with tempfile.TemporaryDirectory(prefix="kill-") as name:
        run = Run(Path(name))
        try:
            was, wrong = (kill_orchestrator if moment.victim == "orchestrator" else kill_worker)(run, moment)
        finally:
            if run.process.poll() is None:
                run.process.kill()
                run.process.wait()
        if "Traceback" in run.said():
            wrong.append(run.said())
        return was, wrong + [f"left behind: {what}" for what in run.left()]


def length_s() -> float:
    """Return how long a run that nobody kills takes here from its first fork on."""
    with tempfile.TemporaryDirectory(prefix="kill-") as name:
        run = Run(Path(name))
        run.workers()
        began = time.monotonic()
        if (code := run.end()) != 0:
            raise SystemExit(f"a run that nobody kills ends with {code}: {run.said()}")
        return time.monotonic() - began


def main() -> int:
    """Try as many moments of each kind as asked for, and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--moments", type=int, default=200, help="of each kind")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    chosen = parser.parse_args()
    whole_s = length_s()
    print(f"seed {chosen.seed}; a run takes {whole_s:.2f} s from its first fork on", flush=True)
    failed = 0
    victims: tuple[Victim, ...] = ("orchestrator", "worker")
    for victim in victims:
        states: Counter[str] = Counter()
        for moment in moments(victim, chosen.seed, whole_s):
            if states.total() - states[TOO_LATE] >= chosen.moments:
                break
            was, wrong = try_moment(moment)
            states[was] += 1
            failed += bool(wrong)
            for what in wrong:
                print(f"WRONG {moment}: {what}", flush=True)
        told = ", ".join(f"{count} × {was}" for was, count in sorted(states.items()))
        print(f"{victim} killed at {states.total() - states[TOO_LATE]} moments: {told}", flush=True)
    print(f"{failed} wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
