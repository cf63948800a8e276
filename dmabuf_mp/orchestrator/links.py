"""What the two ends of each link found, put together. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, cast

from dmabuf_mp.findings import mismatch_from
from dmabuf_mp.model import LinkReport, PassedOver, Path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dmabuf_mp.assignment import Part
    from dmabuf_mp.model import Json
    from dmabuf_mp.plan import Planned


class Found(TypedDict):
    """A worker's findings as they come: see `findings.Findings`."""

    allocated_bytes: int | None
    passed_over: list[tuple[str, str, str | None, str]]
    checked_rounds: int
    bytes_checked: int
    mismatches: int | None
    first: dict[str, Json] | None
    write_back_mismatches: int
    write_back_first: dict[str, Json] | None
    notes: list[str]
    timings_s: dict[str, float]


def link_reports(
    planned: Planned, results: Mapping[str, Mapping[str, Json]], tried: Mapping[str, str]
) -> tuple[int | None, dict[str, float], tuple[str, ...], tuple[LinkReport, ...]]:
    """Return the allocated bytes, the timings (the slowest worker's, in seconds), notes, and the links.

    `tried` is the path that each part was on when it ended, for those that got no further.
    """
    found = {label: cast("Found", result["findings"]) for label, result in results.items() if result}
    parts = {part.label: part for part in planned.parts}
    timings: dict[str, float] = {}
    for findings in found.values():
        for phase, seconds in findings["timings_s"].items():
            timings[phase] = round(max(timings.get(phase, 0.0), seconds), 6)
    links = tuple(
        _link(parts, found, producer, consumer, tried.get(consumer, ""))
        for producer, consumer in planned.links
    )
    source = found.get("producer")
    notes = tuple(note for findings in found.values() for note in findings["notes"])
    return source["allocated_bytes"] if source else None, timings, notes, links


def _owner(parts: Mapping[str, Part], label: str) -> str:
    """Return the part whose memory a link carries: a relay that forwards the fd owns none."""
    while not parts[label].offers and (upstream := parts[label].upstream) is not None:
        label = upstream
    return label


def _link(
    parts: Mapping[str, Part], found: Mapping[str, Found], producer: str, consumer: str, tried: str
) -> LinkReport:
    theirs = found.get(consumer)
    owner = _owner(parts, producer)
    exporter = found.get(owner)
    passed_over: list[PassedOver] = []
    for memory, handle, importer, reason in exporter["passed_over"] if exporter else ():
        for attempt in parts[consumer].receives:
            if importer is None and (attempt.memory, attempt.handle) == (memory, handle):
                passed_over += [
                    PassedOver(Path(memory, handle, i), f"{owner}: {reason}") for i in attempt.importers
                ]
    for memory, handle, importer, reason in theirs["passed_over"] if theirs else ():
        if importer is not None:
            passed_over.append(PassedOver(Path(memory, handle, importer), f"{consumer}: {reason}"))
    order = {
        (attempt.memory, attempt.handle, importer): number
        for number, (attempt, importer) in enumerate(
            (attempt, importer) for attempt in parts[consumer].receives for importer in attempt.importers
        )
    }
    passed_over.sort(key=lambda p: order.get((p.path.memory, p.path.handle, p.path.importer), len(order)))
    path = Path(*tried.split("/")) if tried else None
    if theirs is None:
        return LinkReport(producer, consumer, path, tuple(passed_over))
    upstream = found.get(producer)
    mismatches, first = theirs["mismatches"], theirs["first"]
    writes = parts[consumer].access == "readwrite"
    if writes and not mismatches and upstream and upstream["write_back_mismatches"]:
        mismatches, first = upstream["write_back_mismatches"], upstream["write_back_first"]
    return LinkReport(
        producer,
        consumer,
        path=path,
        passed_over=tuple(passed_over),
        mismatches=mismatches,
        first_mismatch=mismatch_from(first) if first else None,
        rounds_checked=theirs["checked_rounds"],
        bytes_checked=theirs["bytes_checked"],
    )
