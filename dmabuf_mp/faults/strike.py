"""Faults of a worker's process: they strike when it enters a phase of a round."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import time
from typing import TYPE_CHECKING, NoReturn

from dmabuf_mp.faults import CATALOGUE, ONCE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dmabuf_mp.model import Fault

_libc = ctypes.CDLL(None)


class InjectedFault(Exception):
    """What the fault `raise` raises."""


def striker(faults: Sequence[Fault], struck: Callable[[Fault], None]) -> Callable[[str, int], None] | None:
    """Return what to call on entering a phase of a round; None where no fault of the process is wanted.

    `struck` is told of a fault just before it strikes.
    """
    wanted = {
        _moment(fault.phase, fault.round): fault
        for fault in faults
        if CATALOGUE[fault.kind].group == "process"
    }
    if not wanted:
        return None

    def strike(phase: str, round_: int) -> None:
        if (moment := _moment(phase, round_)) in wanted:
            fault = wanted[moment]
            struck(fault)
            STRIKES[fault.kind]()

    return strike


def _moment(phase: str, round_: int) -> tuple[str, int]:
    return phase, 0 if phase in ONCE else round_


def _signal(number: signal.Signals) -> Callable[[], None]:
    def send() -> None:
        os.kill(os.getpid(), number)

    return send


def _segv() -> None:
    ctypes.string_at(0)


def _exit(status: int) -> Callable[[], None]:
    def leave() -> NoReturn:
        os._exit(status)

    return leave


def _hang() -> None:
    while True:
        time.sleep(3600)


def _hang_native() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        _libc.pause()


def _raise() -> None:
    raise InjectedFault("an exception that was asked for")


def _out_of_memory() -> None:
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**32, limits[1]))
    try:
        bytearray(2**40)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


STRIKES: dict[str, Callable[[], None]] = {
    "kill": _signal(signal.SIGKILL),
    "segv": _segv,
    "bus": _signal(signal.SIGBUS),
    "abort": _libc.abort,
    "exit_0": _exit(0),
    "exit_3": _exit(3),
    "stop": _signal(signal.SIGSTOP),
    "hang": _hang,
    "hang_native": _hang_native,
    "raise": _raise,
    "out_of_memory": _out_of_memory,
}
