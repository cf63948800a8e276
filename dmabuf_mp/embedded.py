"""The orchestrator's side of `dmabuf_mp.run`: a fresh interpreter, tied to the program that started it.

It takes one request over its socket, and sends events as they happen, as lines of JSON: among them each
scenario's report, and at last the run's, without the scenarios. When the socket ends, so does the run.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import socket
import struct
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from dmabuf_mp.errors import DmabufMpError, ScenarioError
from dmabuf_mp.linux import process
from dmabuf_mp.orchestrator import run_scenarios
from dmabuf_mp.reports.json_report import to_json

if TYPE_CHECKING:
    from dmabuf_mp.model import Json, LogLine, Report, RunSettings, Scenario, ScenarioReport

LENGTH = struct.Struct("<Q")


class _Teller:
    """An observer that sends what it is told over the socket, for as long as somebody listens."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def tell(self, event: str, **values: Json) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendall(json.dumps({"event": event, **values}).encode() + b"\n")

    def scenario_started(self, index: int, total: int, name: str) -> None:
        self.tell("started", index=index, total=total, name=name)

    def log(self, scenario: str, worker: str, line: LogLine) -> None:
        self.tell("log", scenario=scenario, worker=worker, line=asdict(line))

    def scenario_ended(self, report: ScenarioReport, so_far: Report) -> None:
        self.tell("ended", report=to_json(replace(so_far, scenarios=(report,))))


def main(number: int) -> None:
    """Serve one request over the socket with this fd."""
    process.fill_standard_fds()
    with socket.socket(fileno=number) as sock:
        teller = _Teller(sock)
        try:
            request: tuple[tuple[Scenario, ...], RunSettings] = pickle.loads(_receive(sock))
            report = run_scenarios(*request, teller, tied_to=sock.fileno())
            teller.tell("report", report=to_json(replace(report, scenarios=())))
        except ScenarioError as error:
            teller.tell("mistakes", problems=[asdict(problem) for problem in error.problems])
        except DmabufMpError as error:
            teller.tell("error", text=str(error))
        except (KeyboardInterrupt, EOFError):
            pass


def _receive(sock: socket.socket) -> bytes:
    with sock.makefile("rb", buffering=0) as file:
        (length,) = LENGTH.unpack(_exactly(file, LENGTH.size))
        return _exactly(file, length)


def _exactly(file: socket.SocketIO, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        more = file.read(min(length - len(data), 2**20))
        if not more:
            raise EOFError
        data += more
    return bytes(data)
