"""Findings: what one role found out in one scenario, on its way into the report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dmabuf_mp.errors import DmabufMpError
from dmabuf_mp.model import Dump, Evidence, Mismatch, Stretch, Wrong

if TYPE_CHECKING:
    from collections.abc import Mapping


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


def mismatch_from(data: Mapping[str, Any]) -> Mismatch:
    """Rebuild a Mismatch that `dataclasses.asdict` took apart."""
    evidence = data["evidence"]
    return Mismatch(**{**data, "evidence": evidence_from(evidence) if evidence else None})


def evidence_from(data: Mapping[str, Any]) -> Evidence:
    """Rebuild an Evidence that `dataclasses.asdict` took apart, whatever else there is beside it."""
    longest = data["longest_run"]
    return Evidence(
        second_read=data["second_read"],
        looked_at_bytes=data["looked_at_bytes"],
        runs=data["runs"],
        longest_run=Stretch(**longest) if longest else None,
        first_runs=tuple(Stretch(**run) for run in data["first_runs"]),
        positions=tuple(Wrong(**one) for one in data["positions"]),
        dump=Dump(**data["dump"]),
    )
