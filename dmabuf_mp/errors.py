"""One exception for each party that can be at fault."""

from __future__ import annotations

from dataclasses import dataclass


class DmabufMpError(Exception):
    """Base of everything this package raises on purpose."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One authoring mistake: `file:line:column: message`, lines and columns from 1."""

    file: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message}"


class ScenarioError(DmabufMpError):
    """The scenario's author is at fault; carries every problem that was found."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


class UsageError(DmabufMpError):
    """A flag or an argument is wrong; the message says which and what would be right."""


class Unsupported(DmabufMpError):
    """This machine cannot do it: move on to the next path, or skip."""


class ResourceRefused(DmabufMpError):
    """The kernel or a driver refused a resource (memory, fds) that it can usually give."""


class DriverError(DmabufMpError):
    """A driver or kernel call failed: `name: what it means, during which call, on which device`."""


class ProtocolError(DmabufMpError):
    """The other worker, `peer`, sent something else than what was due."""

    def __init__(self, message: str, peer: str | None = None) -> None:
        super().__init__(message)
        self.peer = peer


class PeerGone(DmabufMpError):
    """The other worker ended, or told of its own failure, while something was due from it."""

    def __init__(self, peer: str, message: str) -> None:
        super().__init__(message)
        self.peer = peer


class WrongBuffer(DmabufMpError):
    """The fd that came is not the buffer that was announced."""


class CheckMissing(DmabufMpError):
    """A consumer's role ended without having checked the data."""


class InternalError(DmabufMpError):
    """Ourselves: a bug in this package."""


def one_line(error: BaseException) -> str:
    """Return an exception as one line: its type, its message, and the line that raised it."""
    import traceback  # most runs never need it

    text = traceback.format_exception_only(error)[-1].strip()
    text = text if len(text) <= 500 else f"{text[:500]} …"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text
