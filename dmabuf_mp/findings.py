"""Findings: what one role found out in one scenario, on its way into the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dmabuf_mp.errors import DmabufMpError

if TYPE_CHECKING:
    from dmabuf_mp.model import Mismatch


class MismatchFound(DmabufMpError):
    """The data that was checked differs from the pattern."""


@dataclass(slots=True)
class Findings:
    """What a role found out, for the report; paths and checks are this role's own side of its links."""

    allocated_bytes: int | None = None
    passed_over: list[tuple[str, str, str | None, str]] = field(default_factory=list)
    checked_rounds: set[int] = field(default_factory=set)
    rounds_done: int = 0
    bytes_checked: int = 0
    mismatches: int | None = None
    first: Mismatch | None = None
    write_back_mismatches: int = 0
    write_back_first: Mismatch | None = None
    notes: list[str] = field(default_factory=list)
    timings_s: dict[str, float] = field(default_factory=dict)


def describe(count: int, first: Mismatch | None) -> str:
    """Say in one sentence how many positions differ, and where the first one is."""
    what = "1 position differs" if count == 1 else f"{count} positions differ"
    if first is None:
        return what
    return (
        f"{what} ({first.kind}); the first in round {first.round} at byte {first.offset_bytes:#x}, "
        f"page {first.page}: expected {first.expected}, got {first.got}"
    )
