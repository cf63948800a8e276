"""The framework from Python: load scenarios, or make them, and run them.

It works in a notebook and inside a test runner, whose processes have threads and may have initialised a
driver, by running the orchestrator in a fresh interpreter.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pickle
import secrets
import socket
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dmabuf_mp import embedded
from dmabuf_mp.errors import InternalError, Problem, ScenarioError, UsageError
from dmabuf_mp.linux import process
from dmabuf_mp.model import LogLine, RunSettings, Scenario, Silent
from dmabuf_mp.plan import serialised
from dmabuf_mp.reports.json_report import from_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dmabuf_mp.model import Observer, Report, Role, ScenarioReport

StrPath = str | os.PathLike[str]

_START = "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
_START += "from dmabuf_mp.embedded import main; main(int(sys.argv[1]))"


def load(*paths: StrPath) -> tuple[Scenario, ...]:
    """Load scenario files and folders; raises ScenarioError with every mistake in all of them."""
    from dmabuf_mp import scenario

    return scenario.load(paths)


def run(
    scenarios: Scenario | StrPath | Sequence[Scenario | StrPath],
    *,
    seed: int | None = None,
    repeat: int = 1,
    mapping: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    fresh: bool = False,
    strict: bool = False,
    skips_ok: bool = False,
    fail_fast: bool = False,
    duration_s: float | None = None,
    until_fail: bool = False,
    shuffle: bool = False,
    observer: Observer | None = None,
    fork: bool = False,
) -> Report:
    """Run scenarios, given as such or as files, and return the report; a failure is in it, not raised.

    `mapping` puts devices in the place of others (`{"cuda:*": "cpu"}`); `timeout_s` replaces every
    scenario's own; with `duration_s` or `until_fail` all is repeated until then. With `fork` this process
    itself forks the workers: it must have one thread and no CUDA.
    Raises ScenarioError, UsageError; KeyboardInterrupt once everything has been ended.
    """
    chosen = tuple(_with_serialised_roles(one) for one in _scenarios(scenarios))
    settings = RunSettings(
        seed=secrets.randbits(32) if seed is None else seed,
        repeat=repeat,
        mapping=tuple((mapping or {}).items()),
        fresh=fresh,
        strict=strict,
        skips_ok=skips_ok,
        fail_fast=fail_fast,
        timeout_s=timeout_s,
        duration_s=duration_s,
        until_fail=until_fail,
        shuffle=shuffle,
    )
    request = _request(chosen, settings)
    if fork:
        return _run_here(chosen, settings, observer or Silent())
    return _run_in_fresh_interpreter(request, observer or Silent())


def _scenarios(given: Scenario | StrPath | Sequence[Scenario | StrPath]) -> tuple[Scenario, ...]:
    from dmabuf_mp import scenario

    items = [given] if isinstance(given, (Scenario, str, os.PathLike)) else list(given)
    found: list[Scenario] = []
    for item in items:
        if isinstance(item, Scenario):
            scenario.validate(item)
            found.append(item)
        else:
            found.extend(scenario.load([item]))
    return tuple(found)


def _with_serialised_roles(scenario: Scenario) -> Scenario:
    """Return the scenario with callables as bytes, so that only a worker ever rebuilds them."""

    def convert(role: Role) -> Role:
        return replace(role, function=serialised(role.function))

    return replace(
        scenario,
        producer=convert(scenario.producer),
        relays=tuple(convert(role) for role in scenario.relays),
        consumers=tuple(convert(role) for role in scenario.consumers),
    )


def _run_here(scenarios: tuple[Scenario, ...], settings: RunSettings, observer: Observer) -> Report:
    if process.cuda_is_initialised():
        raise UsageError(
            "fork=True needs a process without CUDA, and something in this one has initialised it"
        )
    threads = process.thread_names()
    if len(threads) > 1:
        raise UsageError(f"fork=True needs a process with one thread; this one has {', '.join(threads)}")
    from dmabuf_mp.orchestrator import run_scenarios

    return run_scenarios(scenarios, settings, observer)


def _request(scenarios: tuple[Scenario, ...], settings: RunSettings) -> bytes:
    try:
        return pickle.dumps((scenarios, settings))
    except Exception as error:
        raise UsageError(f"the scenarios hold something that no worker can receive: {error}") from error


def _run_in_fresh_interpreter(request: bytes, observer: Observer) -> Report:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            child = _start(theirs)
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                ours.sendall(embedded.LENGTH.pack(len(request)) + request)
            report = _follow(ours, _Follower(observer))
        finally:
            with contextlib.suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)  # an unfinished event still holds the socket open
            _end(child)
    if report is None:
        raise InternalError(f"the orchestrator ended without a report (status {child.returncode})")
    return report


def _start(sock: socket.socket) -> subprocess.Popen[bytes]:
    """Start the interpreter that runs the orchestrator, in a session of its own: it hears signals from us."""
    path = [entry for entry in sys.path if isinstance(entry, str)]
    # Not 0, 1 or 2, which are free where this process has its standard streams closed.
    number = fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD_CLOEXEC, 3)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _START, str(number), json.dumps(path)],
            stdin=subprocess.DEVNULL,
            pass_fds=(number,),
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )
    finally:
        os.close(number)


def _follow(sock: socket.socket, follower: _Follower) -> Report | None:
    """Take events until the report; on an interrupt, pass it on and wait for everything to end first."""
    interrupted = False
    events = _events(sock)
    while True:
        try:
            for event in events:
                report = follower.take(event)
                if report is not None and not interrupted:
                    return report
            break
        except KeyboardInterrupt:
            interrupted = True
            events = _events(sock)
            with contextlib.suppress(OSError):
                sock.send(b"I")
    if interrupted:
        raise KeyboardInterrupt
    return None


def _events(sock: socket.socket) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(ConnectionResetError, ValueError), sock.makefile("rb") as file:
        for line in file:
            yield json.loads(line)


class _Follower:
    """Takes the events of a run: tells the observer, and puts the scenarios' reports together."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._scenarios: list[ScenarioReport] = []

    def take(self, event: dict[str, Any]) -> Report | None:
        """Take one event; return the whole report once it is there. Raises what the run raised."""
        kind = event["event"]
        if kind == "report":
            return self._so_far(event)
        if kind == "started":
            self._observer.scenario_started(event["index"], event["total"], event["name"])
        elif kind == "log":
            self._observer.log(event["scenario"], event["worker"], LogLine(**event["line"]))
        elif kind == "ended":
            so_far = self._so_far(event)
            self._observer.scenario_ended(so_far.scenarios[-1], so_far)
        elif kind == "mistakes":
            raise ScenarioError(tuple(Problem(**problem) for problem in event["problems"]))
        else:
            raise InternalError(event["text"])
        return None

    def _so_far(self, event: dict[str, Any]) -> Report:
        news = from_json(event["report"])
        self._scenarios.extend(news.scenarios)
        return replace(news, scenarios=tuple(self._scenarios))


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        child.wait(timeout=15)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
