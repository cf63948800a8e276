"""CUDA scenarios from end to end, on the software driver: a test double, never counted as hardware."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakecuda.build import environment

SCENARIOS = Path(__file__).parent.parent / "scenarios"
OPAQUE = """
producer: {device: "cuda:0", memory: device, handle: posix_fd}
consumer: {device: "cuda:%d", importer: external_memory}
size: 16KiB
timeout: 1s
"""


def run(*arguments: str, stdin: str = "", limit_s: int = 120, **switches: str | int) -> dict[str, Any]:
    """Run the command line on the double and return its JSON report, with standard error beside it."""
    ended = subprocess.run(
        [sys.executable, "-m", "dmabuf_mp", "run", "--json", "-", *arguments],
        input=stdin,
        env={**os.environ, **environment(**switches)},
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    report: dict[str, Any] = json.loads(ended.stdout)
    assert report["exit_code"] == ended.returncode
    assert "Traceback" not in ended.stderr
    report["stderr"] = ended.stderr
    return report


def only(report: dict[str, Any]) -> dict[str, Any]:
    """Return a report's one scenario."""
    (scenario,) = report["scenarios"]
    found: dict[str, Any] = scenario
    return found


def file(name: str) -> str:
    return str(SCENARIOS / f"{name}.yaml")


def test_the_samples_three_demos_pass_on_the_samples_path() -> None:
    report = run(file("dmabuf_interop"))
    assert [scenario["outcome"] for scenario in report["scenarios"]] == ["passed"] * 3
    paths = [scenario["path"] for scenario in report["scenarios"]]
    assert paths == [{"memory": "pinned", "handle": "dmabuf", "importer": "external_memory"}] * 3
    devices = [[worker["device"] for worker in scenario["workers"]] for scenario in report["scenarios"]]
    assert devices == [["cuda:0", "cuda:0"], ["cuda:0", "cuda:0"], ["cuda:0", "cuda:1"]]
    assert report["host"]["software_driver"] is True
    assert report["scenarios"][2]["workers"][1]["device_uuid"].startswith("GPU-")


def test_all_shipped_scenarios_on_the_sample_and_on_what_two_h200s_answered() -> None:
    sample = run(str(SCENARIOS))
    skipped = [scenario["name"] for scenario in sample["scenarios"] if scenario["outcome"] != "passed"]
    no_node = {"cpu_udmabuf", "cpu_dma_heap"}
    assert set(skipped) <= no_node, "only what needs a device node of the kernel may skip"
    h200 = run(str(SCENARIOS), PRESET="h200")
    outcomes = {scenario["name"]: scenario["outcome"] for scenario in h200["scenarios"]}
    assert {name for name, outcome in outcomes.items() if outcome == "skipped"} - no_node == {
        "same-process",
        "cross-process",
        "cross-gpu",
        "same-process#2",
        "cross-process#2",
        "cross-gpu#2",
    }
    assert outcomes["cross_gpu_vmm"] == outcomes["cross_gpu_memfd"] == "passed"
    assert h200["exit_code"] == 0


def test_a_skip_says_which_call_refused_and_what_the_attribute_had_said() -> None:
    scenario = only(run(file("cross_gpu"), PRESET="h200"))
    assert scenario["outcome"] == "skipped"
    assert "CUDA_ERROR_INVALID_VALUE" in scenario["reason"]
    assert "cuMemGetHandleForAddressRange" in scenario["reason"]
    assert "HOST_ALLOC_DMA_BUF_SUPPORTED is 0" in scenario["reason"]


def test_an_import_that_is_refused_although_the_attribute_says_yes_moves_on_to_the_next_path() -> None:
    scenario = only(run(file("cross_gpu_vmm"), IMPORT_DMABUF="unsupported"))
    assert scenario["outcome"] == "passed"
    assert scenario["path"]["importer"] == "vmm"
    assert all("DMA_BUF_SUPPORTED is 1" in over["reason"] for over in scenario["passed_over"])


def test_every_pair_of_eight_devices_costs_one_initialisation_for_each_device() -> None:
    report = run(file("all_pairs"), DEVICES=8)
    assert report["summary"]["passed"] == 56
    pids: dict[str, set[int]] = {}
    for scenario in report["scenarios"]:
        for worker in scenario["workers"]:
            pids.setdefault(worker["device"], set()).add(worker["pid"])
    assert len(pids) == 8
    assert all(len(workers) == 1 for workers in pids.values())


def test_a_crash_in_an_import_asked_for_by_name_is_contained_and_told_with_its_stack() -> None:
    scenario = only(run("-", stdin=OPAQUE % 0, PRESET="h200"))
    consumer = scenario["workers"][1]
    assert (scenario["outcome"], consumer["signal"]) == ("crashed", "SIGSEGV")
    assert scenario["reason"] == "consumer[0]: killed by SIGSEGV in phase 'import'"
    stack = "\n".join(line["message"] for line in consumer["log"] if line["level"] == "stack")
    assert "importers.py" in stack
    assert scenario["path"] == {"memory": "device", "handle": "posix_fd", "importer": "external_memory"}


def test_a_hang_in_an_import_asked_for_by_name_is_ended_by_the_deadline() -> None:
    scenario = only(run("-", stdin=OPAQUE % 1, PRESET="h200"))
    assert scenario["outcome"] == "timed_out"
    assert scenario["reason"].startswith("consumer[0]: did not finish within 1 s: in phase 'import'")


def test_the_path_that_can_crash_is_never_entered_on_ones_own_accord() -> None:
    wish = OPAQUE.replace(", importer: external_memory", "")
    scenario = only(run("-", stdin=wish % 1, PRESET="h200"))
    assert scenario["outcome"] == "passed"
    assert scenario["path"]["importer"] == "vmm"


def test_zeros_on_another_gpu_fail_although_every_call_succeeded() -> None:
    report = run("--dump", file("cross_gpu"), IMPORT_DMABUF_OTHER="zeros")
    scenario = only(report)
    assert "cuda:1 has peer access to cuda:0" in report["stderr"]
    assert "*00000000 00000000 00000000 00000000" in report["stderr"]
    assert scenario["outcome"] == "failed"
    assert scenario["first_mismatch"]["class"] == "all_zero"
    assert scenario["mismatches"] == 4096
    first = scenario["first_mismatch"]
    assert (first["second_read"], first["runs"], first["looked_at_bytes"]) == ("same", 1, 16384)
    assert first["dump"]["got"] == "00" * 256


def test_a_gpu_without_peer_access_skips() -> None:
    scenario = only(run("-", stdin=OPAQUE.replace("external_memory", "vmm") % 1, PRESET="h200", PEER=0))
    assert scenario["outcome"] == "skipped"
    assert "during cuMemSetAccess" in scenario["reason"]
    assert "; cuda:1 has no peer access to cuda:0" in scenario["reason"]


def test_one_flipped_bit_is_found() -> None:
    scenario = only(run(file("cross_gpu"), FLIP="4100:3"))
    assert (scenario["outcome"], scenario["mismatches"]) == ("failed", 1)
    first = scenario["first_mismatch"]
    assert (first["offset_bytes"], first["longest_run"]) == (4100, {"offset_bytes": 4100, "size_bytes": 4})
    (one,) = first["positions"]
    assert int(one["expected"], 16) ^ int(one["got"], 16) == 1 << 3
    assert scenario["first_mismatch"]["class"] == "scattered_bits"


@pytest.mark.parametrize(
    ("switches", "outcome", "said"),
    [
        ({"FAULT_cuInit": 100}, "skipped", "CUDA_ERROR_NO_DEVICE"),
        ({"DEVICES": 1}, "skipped", "'other' needs a second device"),
        ({"FAULT_cuMemAllocHost": 2}, "error", "CUDA_ERROR_OUT_OF_MEMORY"),
        ({"FAULT_cuLaunchKernel": "lost:46"}, "error", "during cuLaunchKernel"),
        ({"FAULT_cuInit": "hang"}, "skipped", "no answer within"),
    ],
    ids=["no device", "one device", "out of memory", "lost device", "hang in cuInit"],
)
def test_a_driver_that_fails_is_named(
    switches: dict[str, Any], outcome: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DMABUF_MP_TIME_SCALE", "0.1")
    scenario = only(run(file("cross_gpu"), **switches))
    assert scenario["outcome"] == outcome
    assert said in scenario["reason"]


def test_relays_rounds_and_write_back_across_gpus() -> None:
    text = """
producer: {device: "cuda:0", memory: device}
relays: [{device: "cuda:1"}, {device: "cuda:0", forward: copy, memory: pinned}]
consumers: [{device: "cuda:1", access: readwrite}, {device: "cuda:0"}]
size: 1000003
rounds: 3
pattern: {kind: random, seed: 9}
"""
    scenario = only(run("-", stdin=text))
    assert scenario["outcome"] == "passed"
    assert [link["rounds_checked"] for link in scenario["links"]] == [3] * 4
    assert all(link["mismatches"] == 0 for link in scenario["links"])


def test_devices_and_explain_try_the_paths() -> None:
    def answer(*arguments: str) -> Any:
        ended = subprocess.run(
            [sys.executable, "-m", "dmabuf_mp", *arguments, "--json"],
            env={**os.environ, **environment(PRESET="h200")},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return json.loads(ended.stdout)

    found = answer("devices")
    gpus = [device for device in found["devices"] if device["selector"].startswith("cuda:")]
    assert [device["name"] for device in gpus] == ["fakecuda test double"] * 2
    assert gpus[0]["host_alloc_dma_buf_supported"] == 0
    assert gpus[0]["dma_buf_mmap_supported"] is None
    results = {(p["path"], p["producer"], p["consumer"]): p["result"] for p in found["paths"]}
    assert results["device/posix_fd/vmm", "cuda:0", "cuda:1"] == "works"
    assert results["pinned/dmabuf/external_memory", "cuda:0", "cuda:1"] == "skipped"
    assert results["device/posix_fd/external_memory", "cuda:0", "cuda:1"] == "not tried"
    (explained,) = answer("explain", file("cross_gpu_vmm"))
    assert explained["path"] == "device/posix_fd/vmm"
