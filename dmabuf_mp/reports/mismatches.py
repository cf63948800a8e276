"""What people are told of wrong data: where, whether it stays so, on which machine, and both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dmabuf_mp.model import Json, LinkReport, Stretch

SECOND_READ = {
    "same": "a second read gives the same wrong data: it is not a matter of time",
    "changed": "a second read gives other data: stale, or racing with whoever writes",
    "right": "a second read gives the right data: stale, or racing with whoever writes",
}
SHOWN = 3  # runs and positions, of those that a report has
ROW_BYTES = 16


def first(link: LinkReport) -> str:
    """Say where a link's data first differed."""
    if (at := link.first_mismatch) is None:
        return ""
    return (
        f"; the first at byte {at.offset_bytes:#x} (page {at.page}) in round {at.round}: "
        f"expected {at.expected}, got {at.got} ({at.kind})"
    )


def closer(link: LinkReport) -> Iterator[str]:
    """Tell what closer looks at a link's mismatch have shown, line by line."""
    found = link.first_mismatch.evidence if link.first_mismatch else None
    if found is None:
        return
    yield f"  {SECOND_READ[found.second_read]}"
    if found.longest_run is not None:
        count = "1 run" if found.runs == 1 else f"{found.runs} runs"
        runs = ", ".join(map(stretch, found.first_runs[:SHOWN])) + (", …" if found.runs > SHOWN else "")
        longest = f"; the longest is {stretch(found.longest_run)}" if found.runs > 1 else ""
        yield f"  {count} of wrong data in the {found.looked_at_bytes} bytes from there on: {runs}{longest}"
    for one in found.positions[1 : 1 + SHOWN]:
        yield f"  byte {one.offset_bytes:#x} (page {one.page}): expected {one.expected}, got {one.got}"


def stretch(run: Stretch) -> str:
    """Return a run's first and last byte: `0x1000 to 0x1fff`."""
    return f"{run.offset_bytes:#x} to {run.offset_bytes + run.size_bytes - 1:#x}"


def dumped(link: LinkReport) -> Iterator[str]:
    """Show both sides row by row, by four bytes, as they lie in memory; rows that differ are marked."""
    if link.first_mismatch is None or link.first_mismatch.evidence is None:
        return
    dump = link.first_mismatch.evidence.dump
    sides = bytes.fromhex(dump.expected), bytes.fromhex(dump.got)
    width = 2 * ROW_BYTES + 3
    yield f"  {'byte':>10}  {'expected':{width}}  got"
    for at in range(0, len(sides[0]), ROW_BYTES):
        expected, got = (side[at : at + ROW_BYTES] for side in sides)
        mark = " " if expected == got else "*"
        yield f"  {dump.offset_bytes + at:#010x}  {expected.hex(' ', -4):{width}} {mark}{got.hex(' ', -4)}"


def machine(producer: str, consumer: str, host: Mapping[str, Json]) -> str:
    """Tell what is known of the machine that may bear on wrong data between two devices."""
    facts = [f"IOMMU {host.get('iommu') or 'unknown'}"]
    if (producer, consumer) != ("cpu", "cpu"):
        facts.append(f"driver {host.get('driver') or 'unknown'}")
    devices = cast("Sequence[Mapping[str, Any]]", host.get("devices") or ())
    peers = {device["selector"]: device["details"].get("peers", {}) for device in devices}
    if (access := peers.get(consumer, {}).get(producer)) is not None:
        facts.append(f"{consumer} {'has' if access else 'has no'} peer access to {producer}")
    return f"  machine: {', '.join(facts)}"
