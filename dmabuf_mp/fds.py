"""Fd: one owner of one file descriptor, which closes it once."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType


class Fd:
    """Owns a file descriptor until `close` or `take`, and holds -1 from then on.

    A signature that takes an `Fd` takes the ownership; one that takes an `int` borrows.
    """

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = -1  # what __del__ finds, should this raise
        if number < 0:
            raise ValueError(f"a file descriptor is never negative, got {number}")
        self._number = number

    def __repr__(self) -> str:
        return f"<Fd {self._number}>" if self._number >= 0 else "<Fd closed>"

    def fileno(self) -> int:
        """Return the number, borrowed; ValueError once closed or taken."""
        if self._number < 0:
            raise ValueError("the file descriptor is closed or was handed on")
        return self._number

    @property
    def closed(self) -> bool:
        """Whether this object owns nothing any more."""
        return self._number < 0

    def take(self) -> int:
        """Hand the number on: the caller owns it from here."""
        number = self.fileno()
        self._number = -1
        return number

    def duplicate(self) -> Fd:
        """Return a second owner of the same open file, close-on-exec."""
        return Fd(os.dup(self.fileno()))

    def close(self) -> None:
        """Close it, once; later calls do nothing."""
        if self._number >= 0:
            number, self._number = self._number, -1
            os.close(number)

    def __enter__(self) -> Fd:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
