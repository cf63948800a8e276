"""What a forked process does: serve one assignment after the other, until it is told to stop.

A worker sends a result for every part it was given, whatever happened to it; the orchestrator takes a
worker that ends without one for crashed.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from dataclasses import asdict
from typing import TYPE_CHECKING

from dmabuf_mp import backends, errors, ledger, roles
from dmabuf_mp.linux import process
from dmabuf_mp.model import Outcome
from dmabuf_mp.player import Player
from dmabuf_mp.wire import Channel, Kind, json_bytes, read_payload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dmabuf_mp.assignment import Part
    from dmabuf_mp.backends.base import Backend, Device
    from dmabuf_mp.board import Board
    from dmabuf_mp.fds import Fd
    from dmabuf_mp.model import Json
    from dmabuf_mp.wire import Frame


class Worker:
    """The life of one worker process, from just after the fork."""

    def __init__(self, control: socket.socket, boards: Sequence[Board]) -> None:
        self._control = Channel(control, "orchestrator")
        self._boards = boards
        self._backends: dict[str, Backend] = {}
        self._devices: dict[str, Device] = {}
        self._mapped: Mapping[str, int] | None = None
        self._sending = threading.Lock()

    def serve(self) -> None:
        """Serve until the orchestrator says stop or is gone."""
        due = (Kind.ASSIGN, Kind.INVENTORY, Kind.RESOLVE, Kind.STOP)
        while True:
            frame = self._control.receive(*due, end_is_due=True)
            if frame is None or frame.kind is Kind.STOP:
                return  # a driver's contexts end with the process: to release them first takes longer
            if frame.kind is Kind.ASSIGN:
                self._take(frame)
            elif frame.kind is Kind.INVENTORY:
                self._inventory(str(frame.json()["prefix"]))
            else:
                self._resolve(frame)

    # Answers that are not about a scenario.

    def _backend(self, prefix: str) -> Backend:
        if prefix not in self._backends:
            self._boards[0].enter("initialise")
            self._backends[prefix] = backends.load(prefix)
        return self._backends[prefix]

    def _inventory(self, prefix: str) -> None:
        inventory = self._backend(prefix).inventory()
        self._send(Kind.RESULT, asdict(inventory))

    def _resolve(self, frame: Frame) -> None:
        """Try whether the user's functions can be found; the answer is what is wrong with each."""
        wanted = frame.json()
        problems: dict[str, Json] = {}
        functions = wanted["functions"]
        search_path = wanted["search_path"]
        if not isinstance(functions, list) or not isinstance(search_path, list):
            raise errors.InternalError("'resolve' is malformed")
        roles.extend_path([str(folder) for folder in search_path])
        for function in functions:
            try:
                roles.resolve(str(function))
            except errors.UsageError as error:
                problems[str(function)] = str(error)
            except BaseException as error:  # noqa: BLE001 - the user's module may raise anything
                problems[str(function)] = f"role {function!r}: importing it raised {errors.one_line(error)}"
        self._send(Kind.RESULT, problems)

    # Assignments.

    def _take(self, frame: Frame) -> None:
        """Play the parts of one assignment and send a result for each."""
        for board in self._boards:
            board.clear()
        self._boards[0].enter("initialise")
        payload = read_payload(frame.fds[0]) if frame.fds else frame.payload
        frame.close()
        assignment: tuple[tuple[Part, ...], int] = pickle.loads(payload)
        parts, link_count = assignment
        links: list[Fd] = []
        while len(links) < link_count:
            links.extend(self._control.expect(Kind.LINKS).fds)
        rest = [socket.socket(fileno=fd.take()) for fd in links]
        players = []
        for part, board in zip(parts, self._boards, strict=False):
            count = (part.upstream is not None) + len(part.downstream)
            players.append(Player(self, part, rest[:count], board))
            rest = rest[count:]
        for player in players:
            player.open()  # before the ledger is taken: what a driver or a module opens once is no leak
        devices = self._devices.values()
        before = ledger.take(devices, mapped=self._mapped)
        self._play(players)
        self._flush()
        after = ledger.take(devices)
        self._mapped = after.mapped
        grown, moved = ledger.growth(before, after), ledger.moved(before, after)
        for player in players:
            if grown and player.outcome in (Outcome.PASSED, Outcome.SKIPPED):
                player.outcome, player.code = Outcome.FAILED, "ledger"
                player.reason = f"left behind: {grown}"
            self._send(Kind.RESULT, {**player.result(), "noted": moved})
        self._boards[0].enter("idle")

    @staticmethod
    def _play(players: Sequence[Player]) -> None:
        """Play one part, or both of `process: same`: the handshake makes the two take turns."""
        threads = [threading.Thread(target=player.play) for player in players[:-1]]
        for thread in threads:
            thread.start()
        players[-1].play()
        for thread in threads:
            thread.join()
        for player in players:
            player.end()

    def open_device(self, selector: str) -> Device:
        """Open a device once, however many assignments use it."""
        if selector not in self._devices:
            self._devices[selector] = self._backend(backends.prefix_of(selector)).open(selector)
            self._mapped = None  # what a driver maps for a device that it opens is no change
        return self._devices[selector]

    def ready(self, label: str) -> None:
        """Tell the orchestrator that a part's device is open."""
        self._send(Kind.READY, {"label": label})

    def log(self, label: str, level: str, message: str) -> None:
        """Send a line to the scenario's log."""
        text = message if len(message) <= 16_384 else f"{message[:16_384]} … (cut)"
        self._send(Kind.LOG, {"label": label, "level": level, "message": text})

    def _send(self, kind: Kind, value: Json) -> None:
        with self._sending:
            self._control.send(kind, json_bytes(value))

    @staticmethod
    def _flush() -> None:
        """Push out what Python and C hold back, so that it lands in this scenario's log."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        _libc.fflush(None)


_libc = ctypes.CDLL(None)


def run(control: socket.socket, boards: Sequence[Board], streams: tuple[int, int, int], parent: int) -> None:
    """Be a worker: called in the child just after the fork; never returns.

    `streams` are the pipes for standard output, standard error and the stacks of a crash or a hang;
    `parent` is the orchestrator's pid, recorded before the fork.
    """
    status = 70  # EX_SOFTWARE
    try:
        _settle_in(control.fileno(), streams, parent)
        Worker(control, boards).serve()
        status = 0
    except errors.PeerGone:
        status = 0  # the orchestrator is gone, and nobody is left to tell
    except SystemExit as stop:
        # A role that exits takes the worker with it, with the status that it asked for.
        status = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except BaseException:  # noqa: BLE001 - the last line of defence
        traceback.print_exc()
    finally:
        Worker._flush()
        os._exit(status & 0xFF)


def _settle_in(control: int, streams: tuple[int, int, int], parent: int) -> None:
    gc.freeze()  # what the parent's objects own is the parent's to close
    process.prctl(process.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)  # the orchestrator ended before the line above could tie us to it
    process.set_name("dmabuf-mp worker")
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _close_all_but({control, *streams})  # at the limit of open files there is no room for another before
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(streams[0], 1)
    os.dup2(streams[1], 2)
    _close_all_but({0, 1, 2, control, streams[2]})
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - lives as long as the process
    sys.stdout = open(1, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    faulthandler.enable(file=streams[2], all_threads=True)
    faulthandler.register(signal.SIGUSR1, file=streams[2], all_threads=True, chain=False)


def _close_all_but(keep: set[int]) -> None:
    """Close every fd that is not this worker's: a sibling that held it would hide a peer's end."""
    last = -1
    for number in [*sorted(keep), 1 << 20]:
        if last + 1 < number:  # an empty range starting at 0 closes everything: it ends at -1
            os.closerange(last + 1, number)
        last = number
