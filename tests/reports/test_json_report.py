from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dmabuf_mp.model import Outcome
from dmabuf_mp.reports.json_report import from_json, render, to_json
from dmabuf_mp.reports.text import unique_names
from tests.reports.sample import ALL, CRASHED, FAILED, PASSED, SKIPPED, report, scenario


def test_round_trip_loses_nothing() -> None:
    text = json.dumps(to_json(ALL))
    assert from_json(json.loads(text)) == ALL


def test_the_fields_are_the_documented_ones() -> None:
    data = json.loads(render(ALL))
    assert " ".join(data) == "schema_version tool host started_at elapsed_s exit_code summary notes scenarios"
    assert data["schema_version"] == 1
    assert data["tool"]["name"] == "dmabuf-mp"
    assert data["host"] == {"kernel": "6.12", "driver": None}
    assert data["summary"] == {
        "passed": 1,
        "failed": 1,
        "skipped": 1,
        "crashed": 1,
        "timed_out": 0,
        "error": 0,
        "interrupted": 0,
    }
    documented = (
        "name file line outcome observed reason reason_code elapsed_s size_bytes allocated_bytes rounds path "
        "passed_over mismatches first_mismatch timings_s workers links matrix repeat seed mapped"
    )
    for one in data["scenarios"]:
        assert set(documented.split()) <= set(one)
    passed, failed, skipped, crashed = data["scenarios"]
    assert passed["path"] == {"memory": "memfd", "handle": "memfd", "importer": "mmap"}
    assert passed["passed_over"] == [
        {
            "path": {"memory": "udmabuf", "handle": "dmabuf", "importer": "mmap"},
            "reason": "/dev/udmabuf: not there",
        }
    ]
    assert failed["mismatches"] == 3
    assert failed["first_mismatch"] == {
        "offset_bytes": 4100,
        "page": 1,
        "expected": "0x00001401",
        "got": "0x00000000",
        "class": "zeros",
        "round": 0,
        "second_read": "same",
        "looked_at_bytes": 12284,
        "runs": 2,
        "longest_run": {"offset_bytes": 4108, "size_bytes": 8},
        "first_runs": [{"offset_bytes": 4100, "size_bytes": 4}, {"offset_bytes": 4108, "size_bytes": 8}],
        "positions": [
            {"offset_bytes": at, "page": 1, "expected": due, "got": "0x00000000", "again": "0x00000000"}
            for at, due in ((4100, "0x00001401"), (4108, "0x00001403"), (4112, "0x00001404"))
        ],
        "dump": {
            "offset_bytes": 4080,
            "expected": "fc130000" * 12,
            "got": "fc130000" * 4 + "00" * 20,
        },
    }
    assert (skipped["path"], skipped["mismatches"], skipped["first_mismatch"]) == (None, None, None)
    assert " ".join(crashed["workers"][1]) == (
        "role index device device_uuid pid outcome exit_code signal reason_code reason culprit noted log"
    )
    assert passed["workers"][1]["log"][0]["message"] == "checked \x1b[31m 16384 \x00 bytes"


def test_the_first_link_is_the_scenario_s_own() -> None:
    links = (*FAILED.links, *PASSED.links)
    data = to_json(report(replace(FAILED, links=links)))
    one = data["scenarios"][0]  # type: ignore[index, call-overload]
    assert one["mismatches"] == 3  # type: ignore[index, call-overload]
    assert [link["mismatches"] for link in one["links"]] == [3, 0]  # type: ignore[index, union-attr, call-overload]


def test_names_are_made_unique_and_stay_as_they_are_while_a_report_grows() -> None:
    names = ["a", "b", "a", "a#2", "a", "b"]
    unique = ["a", "b", "a#2", "a#2#2", "a#3", "b#2"]
    for length in range(len(names) + 1):
        growing = unique_names(report(*map(scenario, names[:length])))
        assert [one.name for one in growing.scenarios] == unique[:length]
        assert unique_names(growing) == growing


def test_text_is_utf_8_whatever_the_names_are() -> None:
    odd = scenario("naïve \udcff", reason="\x00\u2028")
    data = json.loads(render(report(odd)).decode("utf-8", "strict"))
    assert data["scenarios"][0]["name"] == "naïve ?"
    assert data["scenarios"][0]["reason"] == "\x00\u2028"


def test_another_schema_version_is_refused() -> None:
    with pytest.raises(ValueError, match="expected schema_version 1, got 2"):
        from_json(dict(to_json(ALL), schema_version=2))


def test_a_report_without_scenarios_is_valid() -> None:
    empty = report(exit_code=77)
    assert from_json(json.loads(render(empty))) == empty


def test_every_outcome_survives() -> None:
    every = report(*(scenario(str(outcome), outcome) for outcome in Outcome), SKIPPED, CRASHED)
    assert from_json(json.loads(render(every))) == every
