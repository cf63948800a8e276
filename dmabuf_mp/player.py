"""One part being played in a worker: its device, its links, and the result that it owes."""

from __future__ import annotations

import contextlib
import traceback
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol

from dmabuf_mp import errors, roles
from dmabuf_mp.context import Context
from dmabuf_mp.findings import Findings, MismatchFound, describe
from dmabuf_mp.model import Outcome
from dmabuf_mp.wire import Channel, Kind, json_bytes

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from dmabuf_mp.assignment import Part
    from dmabuf_mp.backends.base import Device
    from dmabuf_mp.board import Board
    from dmabuf_mp.model import Fault, Json, RoleFunction

# What an exception out of a role means: the outcome, and the reason code of the report.
MEANING: tuple[tuple[type[BaseException], Outcome, str], ...] = (
    (MismatchFound, Outcome.FAILED, "mismatch"),
    (errors.WrongBuffer, Outcome.FAILED, "wrong_buffer"),
    (errors.Unsupported, Outcome.SKIPPED, "unsupported"),
    (errors.PeerGone, Outcome.ERROR, "peer_gone"),
    (errors.ProtocolError, Outcome.ERROR, "protocol"),
    (errors.CheckMissing, Outcome.ERROR, "no_check"),
    (errors.ResourceRefused, Outcome.ERROR, "resource"),
    (MemoryError, Outcome.ERROR, "resource"),
    (errors.DriverError, Outcome.ERROR, "driver"),
    (errors.UsageError, Outcome.ERROR, "role"),
    (TimeoutError, Outcome.TIMED_OUT, "deadline"),
    (errors.InternalError, Outcome.ERROR, "exception"),
    (errors.DmabufMpError, Outcome.ERROR, "role"),
)


class Home(Protocol):
    """The worker that a part is played in."""

    def open_device(self, selector: str) -> Device:
        """Open a device once, however many parts use it."""

    def ready(self, label: str) -> None:
        """Tell the orchestrator that a part's device is open."""

    def log(self, label: str, level: str, message: str) -> None:
        """Send a line to the scenario's log."""


class Player:
    """One part being played: its device, its links, its board, and the result that it owes."""

    def __init__(self, worker: Home, part: Part, sockets: Sequence[socket.socket], board: Board) -> None:
        self.outcome, self.code, self.reason = Outcome.PASSED, "ok", ""
        self._culprit: str | None = None
        self._worker = worker
        self._part = part
        self._board = board
        self._device: Device | None = None
        self._role: RoleFunction | None = None
        self._findings = Findings()
        self._stop: SystemExit | None = None
        names = [part.upstream] if part.upstream is not None else []
        names.extend(peer.label for peer in part.downstream)
        self._strike: Callable[[str, int], None] | None = None
        if part.faults:
            from dmabuf_mp.faults.strike import striker

            self._strike = striker(part.faults, self._struck)
        self._channels = [self._link(sock, name) for sock, name in zip(sockets, names, strict=True)]

    def _link(self, sock: socket.socket, name: str) -> Channel:
        board, patience_s, faults = self._board, self._part.patience_s, self._part.faults
        if faults:
            from dmabuf_mp.faults.channel import FaultyChannel

            return FaultyChannel(
                sock, name, board=board, patience_s=patience_s, faults=faults, struck=self._struck
            )
        return Channel(sock, name, board=board, patience_s=patience_s)

    def _struck(self, fault: Fault) -> None:
        for number, one in enumerate(self._part.faults):
            if one == fault:
                self._board.strike(number)

    def open(self) -> None:
        """Open the part's device; what goes wrong is the part's result."""
        try:
            self._enter("start")
            self._enter("initialise")
            self._device = self._worker.open_device(self._part.device)
            if self._part.faults:
                from dmabuf_mp.faults.device import FaultyDevice

                self._device = FaultyDevice(self._device, self._part.faults, self._struck)
            self._worker.ready(self._part.label)
            self._board.enter("role")
            self._role = roles.function_of(self._part)
        except SystemExit as stop:
            self._stop = stop
        except BaseException as error:  # noqa: BLE001 - every failure becomes a result
            self._fail(error)

    def _enter(self, phase: str) -> None:
        self._board.enter(phase)
        if self._strike is not None:
            self._strike(phase, 0)

    def play(self) -> None:
        """Play the part to its end, whatever that is."""
        try:
            if self._device is not None and self._role is not None:
                context = self._context(self._device)
                self._findings = context.findings
                self._board.enter("role")
                self._role(context)
                context.finish()
                self._board.enter("end")
        except SystemExit as stop:
            self._stop = stop
        except BaseException as error:  # noqa: BLE001 - every failure becomes a result
            self._fail(error)
        finally:
            for channel in self._channels:
                channel.close()

    def end(self) -> None:
        """Let a role that asked for the worker's exit have it."""
        if self._stop is not None:
            raise self._stop

    def result(self) -> dict[str, Json]:
        """Return what the orchestrator is told."""
        return {
            "label": self._part.label,
            "outcome": self.outcome,
            "code": self.code,
            "reason": self.reason[:8192],
            "culprit": self._culprit,
            "device_uuid": self._device.info.uuid if self._device is not None else None,
            "findings": _findings(self._findings),
        }

    def _fail(self, error: BaseException) -> None:
        # An undo that fails in its turn, as everything does on a lost device, must not hide the cause.
        while isinstance(error.__context__, errors.DmabufMpError) and error.__cause__ is None:
            error = error.__context__
        error = self._weigh(error)
        self.outcome, self.code = _meaning(error)
        self.reason = str(error) if self.code != "exception" and str(error) else errors.one_line(error)
        self._culprit = self._blame(error)
        if self.code == "exception":
            self._worker.log(self._part.label, "error", "".join(traceback.format_exception(error)))
        if self.code != "mismatch":
            self._tell_peers()

    def _weigh(self, error: BaseException) -> BaseException:
        """Let wrong data outrank a skip and a peer's end, and allow a skip before the first round only."""
        findings = self._findings
        if isinstance(error, (errors.Unsupported, errors.PeerGone)) and findings.mismatches:
            return MismatchFound(describe(findings.mismatches, findings.first))
        if isinstance(error, errors.Unsupported) and findings.rounds_done:
            return errors.DmabufMpError(f"{self._part.label} gave up after its first round: {error}")
        return error

    def _context(self, device: Device) -> Context:
        part = self._part
        first_down = 0 if part.upstream is None else 1

        def log(level: str, message: str) -> None:
            self._worker.log(part.label, level, message)

        return Context(
            part,
            device,
            upstream=self._channels[0] if first_down else None,
            downstream=self._channels[first_down:],
            board=self._board,
            log=log,
            strike=self._strike,
        )

    def _blame(self, error: BaseException) -> str | None:
        """Return the peer that an error is the fault of: one that is gone, or sent what it may not."""
        if isinstance(error, (errors.PeerGone, errors.ProtocolError)):
            return error.peer
        return self._part.upstream if isinstance(error, errors.WrongBuffer) else None

    def _tell_peers(self) -> None:
        """Send a fault in place of whatever is due, so that no peer waits for ever."""
        culprit = self._culprit or self._part.label
        payload = json_bytes({"kind": self.code, "text": self.reason[:4096], "culprit": culprit})
        for channel in self._channels:
            with contextlib.suppress(errors.DmabufMpError, OSError):
                channel.send(Kind.FAULT, payload, wait=False)


def _findings(findings: Findings) -> dict[str, Json]:
    value = asdict(findings)
    value["checked_rounds"] = len(findings.checked_rounds)
    del value["rounds_done"]
    value["passed_over"] = [list(entry) for entry in findings.passed_over[:32]]
    return value


def _meaning(error: BaseException) -> tuple[Outcome, str]:
    for kind, outcome, code in MEANING:
        if isinstance(error, kind):
            return outcome, code
    return Outcome.ERROR, "exception"
