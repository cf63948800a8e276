"""Board: what a worker is doing, in memory that it shares with the orchestrator.

It costs no call to write, and can be read at any time: while the worker hangs, and after it died.
"""

from __future__ import annotations

import mmap

_FIELD_BYTES = 128
_PHASE, _PEER, _DUE, _LAST, _PATH = range(5)
_STRUCK = 8 * _FIELD_BYTES  # from here on a byte for each fault


class Board:
    """One page made before the fork: the worker writes, the orchestrator reads."""

    __slots__ = ("_page",)

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)

    def _write(self, field: int, text: str) -> None:
        start = field * _FIELD_BYTES
        self._page[start : start + _FIELD_BYTES] = text.encode()[:_FIELD_BYTES].ljust(_FIELD_BYTES, b"\0")

    def _read(self, field: int) -> str:
        start = field * _FIELD_BYTES
        return self._page[start : start + _FIELD_BYTES].rstrip(b"\0").decode(errors="replace")

    def clear(self) -> None:
        """Forget everything: a new assignment starts."""
        self._page[:] = bytes(mmap.PAGESIZE)

    def enter(self, phase: str) -> None:
        """Say which phase the worker is in; it waits for nobody."""
        self._write(_PHASE, phase)
        self._page[_PEER * _FIELD_BYTES] = 0

    def waiting(self, peer: str, due: str) -> None:
        """Say whom the worker waits for, and what is due."""
        self._write(_DUE, due)
        self._write(_PEER, peer)

    def got(self, peer: str, kind: str) -> None:
        """Say which frame came last; the worker waits for nobody."""
        self._page[_PEER * _FIELD_BYTES] = 0
        self._write(_LAST, f"'{kind}' from {peer}")

    def trying(self, path: str) -> None:
        """Say which path is being taken: `memory/handle/importer`, or nothing."""
        self._write(_PATH, path)

    def strike(self, fault: int) -> None:
        """Say that the part's fault of that number strikes."""
        self._page[_STRUCK + fault] = 1

    def has_struck(self, fault: int) -> bool:
        """Whether the part's fault of that number has struck."""
        return bool(self._page[_STRUCK + fault])

    @property
    def path(self) -> str:
        """The path that the part has tried last, or an empty text."""
        return self._read(_PATH)

    @property
    def phase(self) -> str:
        """The phase that the worker was in last."""
        return self._read(_PHASE)

    @property
    def peer(self) -> str | None:
        """Whom the worker waits for, or None."""
        return self._read(_PEER) if self._page[_PEER * _FIELD_BYTES] else None

    @property
    def due(self) -> str:
        """The frame that the worker waits for."""
        return self._read(_DUE)

    @property
    def last_frame(self) -> str:
        """The frame that came last, or an empty text."""
        return self._read(_LAST)
