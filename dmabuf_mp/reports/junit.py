"""A Report as JUnit XML, for Jenkins, GitLab and whatever else reads it."""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from dmabuf_mp.model import Outcome
from dmabuf_mp.reports.text import details, log_text, merged_log, unique_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dmabuf_mp.model import Json, Report, ScenarioReport

# What XML 1.0 cannot carry, not even as a reference.
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
ELEMENTS = {
    Outcome.FAILED: "failure",
    Outcome.SKIPPED: "skipped",
    Outcome.CRASHED: "error",
    Outcome.TIMED_OUT: "error",
    Outcome.ERROR: "error",
    Outcome.INTERRUPTED: "error",
}


def render(report: Report) -> bytes:
    """Return the XML text in UTF-8: a testsuite for each scenario file, a testcase for each scenario."""
    report = unique_names(report)
    root = ElementTree.Element("testsuites", {"name": "dmabuf-mp", **_counts(report.scenarios)})
    root.set("time", f"{report.elapsed_s:.3f}")
    for file, scenarios in groupby(report.scenarios, key=lambda scenario: scenario.file):
        cases = tuple(scenarios)
        suite = ElementTree.SubElement(root, "testsuite", {"name": _legal(file), **_counts(cases)})
        suite.set("time", f"{sum(case.elapsed_s for case in cases):.3f}")
        suite.set("timestamp", report.started_at)
        suite.extend(_case(case, report.host) for case in cases)
    ElementTree.indent(root)
    text: str = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'.encode()


def _counts(scenarios: Iterable[ScenarioReport]) -> dict[str, str]:
    kinds = [ELEMENTS.get(scenario.outcome, "passed") for scenario in scenarios]
    return {
        "tests": str(len(kinds)),
        "failures": str(kinds.count("failure")),
        "errors": str(kinds.count("error")),
        "skipped": str(kinds.count("skipped")),
    }


def _case(scenario: ScenarioReport, host: Mapping[str, Json]) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase",
        {
            "classname": _legal(scenario.file),
            "name": _legal(scenario.name),
            "file": _legal(scenario.file),
            "line": str(scenario.line),
            "time": f"{scenario.elapsed_s:.3f}",
        },
    )
    if scenario.outcome in ELEMENTS:
        element = ElementTree.SubElement(case, ELEMENTS[scenario.outcome])
        element.set("type", _legal(scenario.reason_code or scenario.outcome.value))
        element.set("message", _legal(f"{scenario.outcome.value}: {scenario.reason}"))
        element.text = _legal("\n".join([scenario.reason, *details(scenario, host)]))
    if log := merged_log(scenario):
        output = ElementTree.SubElement(case, "system-out")
        output.text = _legal("\n".join(log_text(worker, line) for worker, line in log))
    return case


def _legal(text: str) -> str:
    return FORBIDDEN.sub("\ufffd", text)
