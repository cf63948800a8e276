"""What people are told of wrong data."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console

from dmabuf_mp.model import Outcome
from dmabuf_mp.reports import junit
from dmabuf_mp.reports.mismatches import closer, machine
from dmabuf_mp.reports.table import show
from tests.reports.sample import EVIDENCE, FAILED, report

if TYPE_CHECKING:
    from dmabuf_mp.model import Json, LinkReport, Mismatch, Report

HOST: dict[str, Json] = {
    "iommu": "dmar0 with 3 groups",
    "driver": "CUDA 13.0",
    "devices": [
        {"selector": "cuda:0", "details": {"peers": {"cuda:1": True}}},
        {"selector": "cuda:1", "details": {"peers": {"cuda:0": False}}},
        {"selector": "cpu", "details": {}},
    ],
}


def shown(whole: Report, *, dump: bool = False) -> list[str]:
    text = io.StringIO()
    show(whole, Console(file=text, width=140, highlight=False, markup=False), quiet=True, dump=dump)
    return text.getvalue().splitlines()


def first() -> Mismatch:
    found = FAILED.links[0].first_mismatch
    assert found is not None
    return found


def link(**changes: object) -> LinkReport:
    """Return the failed link with some of its evidence changed."""
    evidence = replace(EVIDENCE, **changes)  # type: ignore[arg-type]
    return replace(FAILED.links[0], first_mismatch=replace(first(), evidence=evidence))


def test_a_mismatch_is_told_closely_under_its_scenario() -> None:
    lines = shown(replace(report(FAILED, exit_code=1), host=HOST))
    assert lines[1].startswith(
        "    producer -> consumer[0]: 3 mismatches by way of memfd/memfd/mmap; the first"
    )
    assert lines[2:7] == [
        "      a second read gives the same wrong data: it is not a matter of time",
        "      2 runs of wrong data in the 12284 bytes from there on: 0x1004 to 0x1007, 0x100c to 0x1013; "
        "the longest is 0x100c to 0x1013",
        "      byte 0x100c (page 1): expected 0x00001403, got 0x00000000",
        "      byte 0x1010 (page 1): expected 0x00001404, got 0x00000000",
        "      machine: IOMMU dmar0 with 3 groups, driver CUDA 13.0",
    ]
    assert lines[7].startswith("    consumer[0] (cuda:1, pid 4100): failed")
    assert "  machine: IOMMU dmar0 with 3 groups" in junit.render(replace(report(FAILED), host=HOST)).decode()


def test_a_mismatch_that_was_expected_is_told_in_short() -> None:
    passed = replace(FAILED, outcome=Outcome.PASSED)
    text = io.StringIO()
    show(report(passed), Console(file=text, width=140), dump=True)
    assert "second read" not in text.getvalue()
    assert "3 mismatches" in text.getvalue()


def test_a_dump_shows_both_sides_and_marks_what_differs() -> None:
    lines = shown(replace(report(FAILED, exit_code=1), host=HOST), dump=True)
    at = next(number for number, line in enumerate(lines) if line.endswith("got"))
    row = "fc130000 fc130000 fc130000 fc130000"
    zeros = "00000000 00000000 00000000 00000000"
    assert lines[at : at + 4] == [
        "            byte  expected                             got",
        f"      0x00000ff0  {row}  {row}",
        f"      0x00001000  {row} *{zeros}",
        f"      0x00001010  {row} *{zeros[:8]}",
    ]


def test_what_a_second_read_says_and_how_many_runs_there_are() -> None:
    assert next(closer(link(second_read="changed"))).startswith("  a second read gives other data: stale,")
    gone = link(second_read="right", runs=0, longest_run=None, first_runs=(), positions=())
    assert [*closer(gone)] == ["  a second read gives the right data: stale, or racing with whoever writes"]
    many = [*closer(link(runs=9, first_runs=EVIDENCE.first_runs * 4))][1]
    assert many.endswith(", 0x1004 to 0x1007, …; the longest is 0x100c to 0x1013")
    assert [*closer(replace(FAILED.links[0], first_mismatch=None))] == []
    assert [*closer(replace(FAILED.links[0], first_mismatch=replace(first(), evidence=None)))] == []


def test_what_is_known_of_the_machine_and_what_is_not() -> None:
    known = "  machine: IOMMU dmar0 with 3 groups"
    assert machine("cpu", "cpu", HOST) == known
    assert machine("cuda:0", "cpu", HOST) == f"{known}, driver CUDA 13.0"
    assert machine("cuda:0", "cuda:0", HOST) == f"{known}, driver CUDA 13.0"
    no, yes = "cuda:1 has no peer access to cuda:0", "cuda:0 has peer access to cuda:1"
    assert machine("cuda:0", "cuda:1", HOST) == f"{known}, driver CUDA 13.0, {no}"
    assert machine("cuda:1", "cuda:0", HOST) == f"{known}, driver CUDA 13.0, {yes}"
    assert machine("cuda:0", "cuda:1", {}) == "  machine: IOMMU unknown, driver unknown"
