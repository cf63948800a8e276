"""Faults: what can be made to go wrong on purpose, and how each has to be reported.

The catalogue here is data; what a worker does with it lies beside it, and is imported only where a part
carries a fault.
"""

from __future__ import annotations

from dataclasses import dataclass

from dmabuf_mp.model import Outcome, Role, RoleName

PHASES = ("start", "initialise", "export", "fill", "send", "import", "check", "ack", "release")
ONCE = ("start", "initialise", "export", "import", "release")  # and not in every round


def phases_of(role: Role) -> tuple[str, ...]:
    """Return the phases that a built-in role comes through, in order."""
    match role.name:
        case "producer":
            own: tuple[str, ...] = ("export", "fill", "send")
        case "relay":
            own = ("import", "check", *(("export",) if role.forward == "copy" else ()), "send", "ack")
        case _:
            own = ("import", "check", *(("fill",) if role.access == "readwrite" else ()), "ack")
    return ("start", "initialise", *own, "release")


_PRODUCING: tuple[RoleName, ...] = ("producer",)
_ANY: tuple[RoleName, ...] = ("producer", "relay", "consumer")


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind of fault: who can have it, in which phases, what it must become.

    `blames` is `self` where the part with the fault has to carry the outcome, `checker` where only the
    data is wrong, so that who finds it carries it.
    """

    name: str
    group: str
    roles: tuple[RoleName, ...]
    phases: tuple[str, ...]
    outcome: Outcome
    description: str
    blames: str = "self"
    first_round: int = 0
    readwrite: bool = False

    def phases_in(self, role: Role) -> tuple[str, ...]:
        """Return the phases in which it can strike a role; the first is the default."""
        comes_through = phases_of(role)
        return tuple(phase for phase in self.phases if phase in comes_through)


def _data(name: str, description: str, *, first_round: int = 0) -> FaultKind:
    return FaultKind(name, "data", _PRODUCING, ("fill",), Outcome.FAILED, description, "checker", first_round)


def _fd(name: str, outcome: Outcome, description: str) -> FaultKind:
    return FaultKind(name, "fd", _PRODUCING, ("send",), outcome, description)


def _wire(name: str, outcome: Outcome, description: str) -> FaultKind:
    return FaultKind(name, "wire", _ANY, ("send", "ack"), outcome, description)


def _process(name: str, outcome: Outcome, description: str) -> FaultKind:
    first = ("check", "send")
    phases = (*first, *(phase for phase in PHASES if phase not in first))
    return FaultKind(name, "process", _ANY, phases, outcome, description)


CATALOGUE = {
    kind.name: kind
    for kind in (
        _data("flip_bit", "one bit in the middle is flipped"),
        _data("flip_byte", "one byte in the middle is inverted"),
        _data("wrong_page", "one page in the middle holds something else"),
        _data("wrong_last_byte", "the last byte is inverted"),
        _data("all_zero", "the buffer is all zero"),
        _data("stale_round", "the buffer still holds the round before", first_round=1),
        _data("shifted_1", "the data is shifted by one byte"),
        _data("shifted_4", "the data is shifted by one word"),
        _data("shifted_page", "the data is shifted by one page"),
        _data("other_buffer", "the data is another scenario's"),
        FaultKind(
            "torn",
            "data",
            ("consumer",),
            ("check",),
            Outcome.FAILED,
            "the data changes while it is checked",
            readwrite=True,
        ),
        FaultKind(
            "lost_write_back",
            "data",
            ("consumer",),
            ("fill",),
            Outcome.FAILED,
            "what the consumer writes back never reaches the buffer",
            "checker",
            readwrite=True,
        ),
        FaultKind(
            "wrong_side", "data", ("consumer",), ("check",), Outcome.ERROR, "a reader writes into the buffer"
        ),
        _fd("no_fd", Outcome.ERROR, "the offer comes without an fd"),
        _fd("two_fds", Outcome.ERROR, "the offer comes with two fds"),
        _fd("pipe", Outcome.FAILED, "the fd is a pipe"),
        _fd("regular_file", Outcome.FAILED, "the fd is a regular file"),
        _fd("directory", Outcome.FAILED, "the fd is a directory"),
        _fd("dev_zero", Outcome.FAILED, "the fd is /dev/zero"),
        _fd("too_small", Outcome.FAILED, "the buffer is smaller than said"),
        _fd("too_large", Outcome.FAILED, "the buffer is larger than said"),
        _fd("unsealed", Outcome.FAILED, "the memfd could be shrunk under its reader"),
        FaultKind(
            "closed_fd",
            "fd",
            ("consumer",),
            ("import",),
            Outcome.ERROR,
            "the fd is closed before it is mapped",
        ),
        FaultKind(
            "no_fds_left",
            "fd",
            ("consumer",),
            ("import",),
            Outcome.ERROR,
            "the limit of open files is reached",
        ),
        _wire("early_end", Outcome.ERROR, "the link is closed before its end"),
        _wire("garbage", Outcome.ERROR, "what is sent is no frame"),
        _wire("wrong_version", Outcome.ERROR, "the frame is of another version of the protocol"),
        _wire("wrong_order", Outcome.ERROR, "another frame is sent than the one that is due"),
        _wire("duplicate", Outcome.ERROR, "the frame is sent twice"),
        _wire("oversized", Outcome.ERROR, "the frame is larger than a frame may be"),
        _wire("silence", Outcome.TIMED_OUT, "nothing is sent"),
        _process("kill", Outcome.CRASHED, "killed by SIGKILL"),
        _process("segv", Outcome.CRASHED, "a segmentation fault"),
        _process("bus", Outcome.CRASHED, "a bus error"),
        _process("abort", Outcome.CRASHED, "native code aborts"),
        _process("exit_0", Outcome.CRASHED, "exits with status 0 without a word"),
        _process("exit_3", Outcome.CRASHED, "exits with status 3"),
        _process("stop", Outcome.TIMED_OUT, "stopped by SIGSTOP"),
        _process("hang", Outcome.TIMED_OUT, "hangs in Python"),
        _process("hang_native", Outcome.TIMED_OUT, "hangs in native code, and ignores SIGTERM"),
        _process("raise", Outcome.ERROR, "raises an exception"),
        _process("out_of_memory", Outcome.ERROR, "runs out of memory"),
    )
}
