"""One scenario from its plan to its report: hand out, watch, and judge."""

from __future__ import annotations

import pickle
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from dmabuf_mp import plan, wire
from dmabuf_mp.errors import DmabufMpError, PeerGone, ProtocolError, ResourceRefused, one_line
from dmabuf_mp.linux import process
from dmabuf_mp.model import LogLine, Outcome, ScenarioReport, verdict
from dmabuf_mp.orchestrator.capture import Capture
from dmabuf_mp.orchestrator.judge import End, convict, judge, stuck
from dmabuf_mp.orchestrator.links import link_reports
from dmabuf_mp.orchestrator.loop import Interrupted
from dmabuf_mp.orchestrator.playing import PLAYED_TO_ITS_END, Playing, misses, nobody, read_end
from dmabuf_mp.wire import Kind

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from dmabuf_mp.assignment import Part
    from dmabuf_mp.fds import Fd
    from dmabuf_mp.orchestrator.handle import Handle
    from dmabuf_mp.orchestrator.loop import Loop
    from dmabuf_mp.orchestrator.pool import Pool
    from dmabuf_mp.orchestrator.watch import Watch
    from dmabuf_mp.plan import Planned
    from dmabuf_mp.wire import Frame

SETTLE_S = 2.0
_INLINE_BYTES = 32 * 1024
_LINKS_PER_FRAME = 200
_NOT_JUDGED = (Outcome.SKIPPED, Outcome.INTERRUPTED)


class ScenarioRun:
    """The run of one planned scenario."""

    def __init__(
        self, planned: Planned, loop: Loop, pool: Pool, watch: Watch, log: Callable[[str, LogLine], None]
    ) -> None:
        self._planned = planned
        self._loop = loop
        self._pool = pool
        self._watch = watch
        self._log = log
        self._started = time.monotonic()  # the reader's time; deadlines are on the loop's clock
        self._began = loop.clock.now()
        self._all_ready: float | None = None
        self._settle: float | None = None
        self._playing: dict[str, Playing] = {}
        self._notes: list[str] = []
        self._kernel_log: tuple[LogLine, ...] = ()
        self._own_ends: list[End] = []

    def run(self) -> ScenarioReport:
        """Run it to its end, whatever that is, and report it."""
        planned = self._planned
        if planned.refusal:
            return self._report(planned.refused_as, planned.refusal_code, planned.refusal)
        broken_off = Outcome.ERROR, "no_check", "nothing was run"
        self._watch.begin()
        try:
            self._hand_out()
            while not self._finished():
                if not self._loop.wait(self._finished_or_changed(), self._deadline()):
                    self._expire()
        except Interrupted as reason:
            broken_off = Outcome.INTERRUPTED, "interrupted", f"interrupted by {reason}"
            self._end_unfinished(*broken_off)
        except Exception as error:  # noqa: BLE001 - a mistake of our own must not cost the run its report
            code = "resource" if isinstance(error, ResourceRefused) else "internal"
            text = str(error) if isinstance(error, DmabufMpError) else one_line(error)
            broken_off = Outcome.ERROR, code, text
            self._end_unfinished(*broken_off)
        self._give_back()
        if not self._playing:
            return self._report(*broken_off)
        self._find_interrupted()
        ends = convict([playing.end for playing in self._playing.values() if playing.end is not None])
        for end in ends:
            self._playing[end.label].end = end
        if any(end.outcome is Outcome.INTERRUPTED for end in ends):
            return self._report(Outcome.INTERRUPTED, "interrupted", "interrupted")
        return self._report(*judge([*ends, *self._own_ends]))

    def _find_interrupted(self) -> None:
        """Tell workers that the interrupt of the whole process group killed from those that crashed."""
        if self._loop.interrupted_by is None:
            return
        name = signal.Signals(self._loop.interrupted_by).name
        for label, playing in self._playing.items():
            how = playing.worker.exit
            if how is not None and how.signal == name and playing.end and playing.end.code == "killed":
                playing.end = End(label, Outcome.INTERRUPTED, "interrupted", f"interrupted by {name}")

    # Handing out.

    def _hand_out(self) -> None:
        """Give each team to a worker, and its ends of the links with it."""
        ends = self._make_links()
        try:
            for team in self._planned.teams:
                worker = self._pool.take(tuple(part.device for part in team))
                for slot, part in enumerate(team):
                    self._add(part, worker, slot)
                worker.on_frame = self._on_frame
                worker.on_output = self._on_output_of(team[0].label)
                numbers = [sock for part in team for sock in ends[part.label]]
                self._send(worker, team, numbers)
                for sock in numbers:
                    sock.close()  # a peer must see the end when its other end goes
        finally:
            for sockets in ends.values():
                for sock in sockets:
                    sock.close()

    def _make_links(self) -> dict[str, list[socket.socket]]:
        """Return each part's ends of its links: upstream first, then downstream in order."""
        up: dict[str, list[socket.socket]] = {part.label: [] for part in self._planned.parts}
        down: dict[str, list[socket.socket]] = {part.label: [] for part in self._planned.parts}
        try:
            for producer, consumer in self._planned.links:
                ours, theirs = wire.pair()
                down[producer].append(ours)
                up[consumer].append(theirs)
        except OSError as error:
            for sock in (s for ends in (*up.values(), *down.values()) for s in ends):
                sock.close()
            raise ResourceRefused(f"the links cannot be made: {error.strerror}; see 'ulimit -n'") from error
        return {label: up[label] + down[label] for label in up}

    def _add(self, part: Part, worker: Handle, slot: int) -> None:
        def seen(line: LogLine) -> None:
            self._log(part.label, line)

        capture = Capture(lambda: time.monotonic() - self._started, seen)
        worker.boards[slot].clear()  # a fault that struck in an earlier scenario is not this one's
        self._playing[part.label] = Playing(part, worker, slot, capture, pid=worker.pid)

    @staticmethod
    def _send(worker: Handle, team: tuple[Part, ...], sockets: list[socket.socket]) -> None:
        payload = pickle.dumps((team, len(sockets)))
        big: Fd | None = None
        try:
            if len(payload) > _INLINE_BYTES:
                big = wire.sealed_payload(payload)
                worker.control.send(Kind.ASSIGN, b"", (big.fileno(),), wait=False)
            else:
                worker.control.send(Kind.ASSIGN, payload, wait=False)
            for start in range(0, len(sockets), _LINKS_PER_FRAME):
                numbers = [sock.fileno() for sock in sockets[start : start + _LINKS_PER_FRAME]]
                worker.control.send(Kind.LINKS, b"", numbers, wait=False)
        except (PeerGone, BlockingIOError):
            pass  # it ended, or does not listen: its end or its deadline tells
        finally:
            if big is not None:
                big.close()

    # Watching.

    def _on_output_of(self, label: str) -> Callable[[str, bytes], None]:
        return self._playing[label].capture.feed

    def _on_frame(self, frame: Frame) -> None:
        message = frame.json()
        frame.close()
        playing = self._playing.get(str(message.get("label")))
        if playing is None or playing.end is not None:
            return
        try:
            if frame.kind is Kind.READY:
                playing.ready = True
            elif frame.kind is Kind.LOG:
                playing.capture.add(str(message["level"]), str(message["message"]))
            else:
                playing.end = read_end(playing.part.label, message)
                playing.result = message
        except (KeyError, ValueError) as error:
            raise ProtocolError(
                f"{frame.kind.word!r} of {playing.part.label} is malformed: {error}"
            ) from error

    def _look_for_ends(self) -> None:
        """Notice workers that ended without a result: crashed, whatever their status is."""
        ended = [playing for playing in self._unfinished() if playing.worker.exit is not None]
        ends: dict[str, End] = {}
        for playing in ended:
            team = {p.part.label: p.waits_for for p in ended if p.worker is playing.worker}
            label, how, worker = playing.part.label, playing.worker.exit, playing.worker
            where = f"in phase '{playing.board.phase or 'start'}'"
            if label not in stuck(team):
                # Both roles were one worker's, and this one waited for the other: it only suffered.
                ends[label] = End(label, Outcome.ERROR, "peer_gone", f"was {where}", team[label])
            elif worker.broken:
                ends[label] = End(label, Outcome.ERROR, "protocol", worker.broken)
            elif how is not None and how.signal is not None:
                ends[label] = End(label, Outcome.CRASHED, "killed", f"{how} {where}")
            else:
                reason = f"{how} {where}, without having been told to"
                ends[label] = End(label, Outcome.CRASHED, "exited", reason)
        for playing in ended:
            playing.end = ends[playing.part.label]

    def _unfinished(self) -> list[Playing]:
        return [playing for playing in self._playing.values() if playing.end is None]

    def _finished(self) -> bool:
        self._look_for_ends()
        unfinished = self._unfinished()
        if self._all_ready is None and all(playing.ready for playing in unfinished):
            self._all_ready = self._loop.clock.now()
        if self._settle is None and unfinished and self._cause() is not None:
            self._settle = self._loop.clock.now() + SETTLE_S * self._loop.scale
        return not unfinished

    def _cause(self) -> str | None:
        """Return the part that broke the dialogue by itself, so that the others only have to follow."""
        for label, playing in self._playing.items():
            end = playing.end
            if end is None or end.outcome is Outcome.PASSED or end.code in PLAYED_TO_ITS_END:
                continue
            if end.culprit not in self._playing:
                return label
        return None

    def _finished_or_changed(self) -> Callable[[], bool]:
        before = (self._all_ready, self._settle, self._phases())
        return lambda: self._finished() or (self._all_ready, self._settle, self._phases()) != before

    def _phases(self) -> tuple[bool, ...]:
        return tuple(playing.has_started for playing in self._playing.values())

    # Deadlines.

    def _deadline(self) -> float:
        """Return when the next deadline is due: start, initialise, the scenario's own, or settling."""
        if self._settle is not None:
            return self._settle
        if self._all_ready is not None:
            return self._all_ready + self._planned.deadline_s
        started = all(playing.has_started for playing in self._unfinished())
        limit = plan.INITIALISE_DEADLINE_S if started else 0.0
        return self._began + (plan.START_DEADLINE_S + limit) * self._loop.scale

    def _expire(self) -> None:
        """End what is not finished: name who holds up the rest, and where they are stuck."""
        unfinished = self._unfinished()
        self._loop.stacks({playing.worker.pid: playing.worker for playing in unfinished}.values())
        unfinished = self._unfinished()
        if self._settle is not None:
            cause = self._cause()
            for playing in unfinished:
                reason = f"was {playing.doing} when {cause} ended; ended by the orchestrator"
                playing.end = End(playing.part.label, Outcome.ERROR, "peer_gone", reason, cause)
        else:
            culprits = stuck({playing.part.label: self._held_up_by(playing) for playing in unfinished})
            limit_s = self._planned.deadline_s if self._all_ready is not None else None
            for playing in unfinished:
                self._time_out(playing, culprits, limit_s)
        self._loop.end({playing.worker.pid: playing.worker for playing in unfinished}.values(), at_once=True)

    def _time_out(self, playing: Playing, culprits: frozenset[str], limit_s: float | None) -> None:
        label = playing.part.label
        doing = playing.doing
        if label in culprits:
            limit = f"within {limit_s:g} s" if limit_s is not None else "starting in time"
            playing.end = End(label, Outcome.TIMED_OUT, "deadline", f"did not finish {limit}: {doing}")
        else:
            culprit = sorted(culprits)[0]
            playing.end = End(label, Outcome.ERROR, "peer_gone", f"was {doing}", culprit)

    def _held_up_by(self, playing: Playing) -> str | None:
        """Return the part that one waits for: by its board, or, at its end, the other of its worker."""
        if playing.is_stopped:
            return None
        if playing.board.phase != "end":
            return playing.waits_for
        team = (p.part.label for p in self._unfinished() if p.worker is playing.worker and p is not playing)
        return next(team, None)

    # The end.

    def _end_unfinished(self, outcome: Outcome, code: str, reason: str) -> None:
        for part in self._planned.parts:
            playing = self._playing.get(part.label)
            if playing is not None and playing.end is None:
                playing.end = End(part.label, outcome, code, reason)
        self._loop.end(
            {playing.worker.pid: playing.worker for playing in self._playing.values()}.values(), at_once=True
        )

    def _give_back(self) -> None:
        """Keep workers that passed for the next scenario; end all others, and what they left behind."""
        by_pid: dict[int, list[Playing]] = {}
        for playing in self._playing.values():
            by_pid.setdefault(playing.worker.pid, []).append(playing)
        clean = {Outcome.PASSED, Outcome.SKIPPED}
        ending = []
        for team in by_pid.values():
            worker = team[0].worker
            worker.drain() if worker.exit is None else None
            good = all(p.end is not None and p.end.outcome in clean and p.part.function is None for p in team)
            if not good or not self._pool.keep(worker, tuple(p.part.device for p in team)):
                ending.append(worker)
        self._loop.end(ending)
        for playing in self._playing.values():
            playing.capture.end()
            playing.worker.forget()
            self._look_for_late_crash(playing)
        self._blame_leftovers(self._loop.sweep())
        for pid in self._loop.left:
            self._notes.append(f"worker {pid} could not be killed (state {process.state(pid)}) and was left")
        self._look_at_ledgers()

    @staticmethod
    def _look_for_late_crash(playing: Playing) -> None:
        """Hold a bad end of the worker against a part that had passed by then."""
        how, end = playing.worker.exit, playing.end
        if how is None or end is None or end.outcome is not Outcome.PASSED:
            return
        if how.code or how.signal not in (None, "SIGTERM", "SIGKILL"):  # those are ours
            code = "exited" if how.signal is None else "killed"
            reason = f"{how} after its part had passed"
            playing.end = End(playing.part.label, Outcome.CRASHED, code, reason)

    def _blame_leftovers(self, found: list[str]) -> None:
        if not found:
            return
        text = f"left behind: {', '.join(found)}"
        self._notes.append(f"{text}; killed")
        ends = [playing.end for playing in self._playing.values() if playing.end is not None]
        if any(end.code == "ledger" and "process " in end.reason for end in ends):
            return  # a worker has seen them among its own children: it is known whose they are
        for playing in self._playing.values():
            if playing.part.function:
                self._fail_for_leaving(playing, text)

    @staticmethod
    def _fail_for_leaving(playing: Playing, text: str) -> None:
        if playing.end is not None and playing.end.outcome in (Outcome.PASSED, Outcome.SKIPPED):
            playing.end = replace(playing.end, outcome=Outcome.FAILED, code="ledger", reason=text)

    def _look_at_ledgers(self) -> None:
        """Fail what left the kernel a buffer of its own, or this process anything."""
        makers = {playing.worker.pid: playing for playing in reversed(self._playing.values())}
        for pid, what in self._watch.outlived(makers).items():
            self._fail_for_leaving(makers[pid], f"left behind: {what}")
        if grown := self._watch.grown():
            self._own_ends.append(End("orchestrator", Outcome.FAILED, "ledger", f"left behind: {grown}"))
        self._kernel_log, faults = self._watch.kernel_log()
        self._notes += faults

    # The report.

    def _report(self, observed: Outcome, code: str, reason: str) -> ScenarioReport:
        planned = self._planned
        scenario = planned.scenario
        results = {label: playing.result for label, playing in self._playing.items()}
        tried = {label: playing.board.path for label, playing in self._playing.items()}
        allocated, timings, notes, links = link_reports(planned, results, tried)
        outcome = verdict(observed, scenario.expect)
        if outcome is Outcome.FAILED and observed is Outcome.PASSED:
            code, reason = "unexpected_pass", f"expected {scenario.expect}, and it passed"
        missed = misses(self._playing.values()) if observed not in _NOT_JUDGED else []
        if missed and Outcome.PASSED in (outcome, observed):
            outcome, code = Outcome.ERROR, "fault_not_struck"
            reason, missed = f"{'; '.join(missed)}; observed: {observed}", []
        return ScenarioReport(
            name=scenario.name,
            file=scenario.file,
            line=scenario.line,
            outcome=outcome,
            observed=observed,
            reason=reason,
            reason_code=code,
            elapsed_s=round(time.monotonic() - self._started, 6),
            size_bytes=scenario.size_bytes,
            allocated_bytes=allocated,
            rounds=scenario.rounds,
            links=links,
            workers=tuple(playing.report() for playing in self._playing.values())
            or nobody(scenario, observed),
            timings_s=timings,
            matrix=scenario.matrix,
            repeat=planned.repeat,
            seed=planned.seed,
            mapped=planned.mapped,
            notes=(*notes, *self._notes, *missed),
            kernel_log=self._kernel_log,
        )
