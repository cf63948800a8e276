from __future__ import annotations

from xml.etree import ElementTree

from dmabuf_mp.model import LogLine, Outcome
from dmabuf_mp.reports.junit import render
from tests.reports.sample import ALL, report, scenario, worker


def test_structure_and_counts() -> None:
    root = ElementTree.fromstring(render(ALL))
    assert root.tag == "testsuites"
    (suite,) = root
    for element in (root, suite):
        assert {key: element.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
            "tests": "4",
            "failures": "1",
            "errors": "1",
            "skipped": "1",
        }
    assert suite.get("name") == "scenarios/memfd.yaml"
    assert suite.get("timestamp") == "2026-01-02T03:04:05+00:00"
    passed, failed, skipped, crashed = suite
    assert (passed.get("name"), passed.get("classname"), passed.get("time")) == (
        "memfd",
        "scenarios/memfd.yaml",
        "0.012",
    )
    assert [child.tag for child in passed] == ["system-out"]
    (failure,) = failed
    assert (failure.tag, failure.get("message"), failure.get("type")) == (
        "failure",
        "failed: 3 mismatches",
        "mismatch",
    )
    assert "the first at byte 0x1004 (page 1) in round 0: expected 0x00001401, got 0x00000000" in (
        failure.text or ""
    )
    assert (skipped[0].tag, skipped[0].get("message")) == ("skipped", "skipped: no CUDA driver")
    assert crashed[0].tag == "error"
    assert "consumer[0] (cpu, pid 4100): crashed: killed by SIGSEGV in import" in (crashed[0].text or "")


def test_the_log_is_in_time_order_and_legal_xml() -> None:
    log = ElementTree.fromstring(render(ALL)).findtext(".//system-out") or ""
    first, second, third = log.splitlines()
    assert ("filled" in first, "checked" in second, "freed" in third) == (True, True, True)
    assert "\\x1b[31m 16384 \\x00 bytes" in second


def test_what_xml_forbids_is_replaced_everywhere() -> None:
    bad = "a\x00b\x1bc\ufffed\ud800e]]>&<\"'\n"
    case = scenario(
        bad,
        Outcome.ERROR,
        file=bad,
        reason=bad,
        reason_code=bad,
        workers=(worker(reason=bad, outcome=Outcome.ERROR, log=(LogLine(0.0, "info", bad),)),),
    )
    element = ElementTree.fromstring(render(report(case))).find(".//testcase")
    assert element is not None
    assert element.get("name") == "a\ufffdb\ufffdc\ufffdd\ufffde]]>&<\"'\n"
    assert (element[0].text or "").startswith(element.get("name") or "-")


def test_one_suite_for_each_file() -> None:
    root = ElementTree.fromstring(
        render(
            report(scenario("a", file="x.yaml"), scenario("b", file="y.yaml"), scenario("a", file="y.yaml"))
        )
    )
    assert [(suite.get("name"), [case.get("name") for case in suite]) for suite in root] == [
        ("x.yaml", ["a"]),
        ("y.yaml", ["b", "a#2"]),
    ]


def test_the_outcomes_that_are_not_verdicts_are_errors() -> None:
    for outcome in (Outcome.TIMED_OUT, Outcome.INTERRUPTED, Outcome.ERROR):
        root = ElementTree.fromstring(render(report(scenario("a", outcome, reason="why"))))
        assert root.find(".//testcase/error") is not None
        assert root.get("errors") == "1"
