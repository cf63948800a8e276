"""Reports made by hand, for the tests of how reports are written."""

from __future__ import annotations

from dmabuf_mp.model import (
    Dump,
    Evidence,
    LinkReport,
    LogLine,
    Mismatch,
    Outcome,
    PassedOver,
    Path,
    Report,
    ScenarioReport,
    Stretch,
    WorkerReport,
    Wrong,
)

MEMFD = Path("memfd", "memfd", "mmap")
UDMABUF = Path("udmabuf", "dmabuf", "mmap")


def worker(
    role: str = "producer", index: int = 0, outcome: Outcome = Outcome.PASSED, **fields: object
) -> WorkerReport:
    """Return one worker's report, on the CPU unless told otherwise."""
    values = {"device": "cpu", "device_uuid": None, "pid": 4100 + index, **fields}
    return WorkerReport(role=role, index=index, outcome=outcome, **values)  # type: ignore[arg-type]


def scenario(name: str, outcome: Outcome = Outcome.PASSED, **fields: object) -> ScenarioReport:
    """Return one scenario's report: passed by way of memfd unless told otherwise."""
    values: dict[str, object] = {
        "file": "scenarios/memfd.yaml",
        "line": 1,
        "observed": outcome,
        "reason": "",
        "reason_code": outcome.value,
        "elapsed_s": 0.0123,
        "size_bytes": 16384,
        "allocated_bytes": 16384,
        "rounds": 1,
        "links": (
            LinkReport("producer", "consumer[0]", MEMFD, (), 0, None, rounds_checked=1, bytes_checked=16384),
        ),
        "workers": (worker(), worker("consumer")),
        **fields,
    }
    return ScenarioReport(name=name, outcome=outcome, **values)  # type: ignore[arg-type]


def report(*scenarios: ScenarioReport, exit_code: int = 0) -> Report:
    """Return a run's report."""
    return Report("2026-01-02T03:04:05+00:00", 2.14, exit_code, {"kernel": "6.12", "driver": None}, scenarios)


PASSED = scenario(
    "memfd",
    links=(
        LinkReport(
            "producer",
            "consumer[0]",
            MEMFD,
            (PassedOver(UDMABUF, "/dev/udmabuf: not there"),),
            0,
            None,
            rounds_checked=1,
            bytes_checked=16384,
        ),
    ),
    matrix={"size": "16KiB"},
    mapped={"cuda:0": "cpu"},
    notes=("the attribute says no, the call works",),
    seed=7,
    timings_s={"check": 0.001},
    workers=(
        worker(log=(LogLine(0.001, "info", "filled"), LogLine(0.004, "info", "freed"))),
        worker("consumer", log=(LogLine(0.003, "info", "checked \x1b[31m 16384 \x00 bytes"),)),
    ),
)
EVIDENCE = Evidence(
    "same",
    12284,
    runs=2,
    longest_run=Stretch(4108, 8),
    first_runs=(Stretch(4100, 4), Stretch(4108, 8)),
    positions=(
        Wrong(4100, 1, "0x00001401", "0x00000000", "0x00000000"),
        Wrong(4108, 1, "0x00001403", "0x00000000", "0x00000000"),
        Wrong(4112, 1, "0x00001404", "0x00000000", "0x00000000"),
    ),
    dump=Dump(4080, f"{0xFC130000:08x}" * 12, f"{0xFC130000:08x}" * 4 + "00" * 20),
)
FAILED = scenario(
    "wrong data",
    Outcome.FAILED,
    reason="3 mismatches",
    reason_code="mismatch",
    allocated_bytes=20480,
    links=(
        LinkReport(
            "producer",
            "consumer[0]",
            MEMFD,
            (),
            3,
            Mismatch(4100, 1, "0x00001401", "0x00000000", "zeros", 0, EVIDENCE),
            rounds_checked=1,
            bytes_checked=16384,
        ),
    ),
    workers=(
        worker(noted={"cuda:0 free": -4096}),
        worker("consumer", 0, Outcome.FAILED, device="cuda:1", reason="3 mismatches"),
    ),
)
SKIPPED = scenario(
    "cross-gpu",
    Outcome.SKIPPED,
    reason="no CUDA driver",
    reason_code="no_driver",
    allocated_bytes=None,
    links=(),
    workers=(worker(device="cuda:any", pid=None, outcome=Outcome.SKIPPED),),
)
CRASHED = scenario(
    "crash",
    Outcome.CRASHED,
    reason="consumer[0] was killed by SIGSEGV",
    reason_code="killed",
    workers=(
        worker(
            outcome=Outcome.ERROR,
            reason="consumer[0] is gone",
            reason_code="peer_gone",
            culprit="consumer[0]",
        ),
        worker("consumer", 0, Outcome.CRASHED, signal="SIGSEGV", reason="killed by SIGSEGV in import"),
    ),
)
ALL = report(PASSED, FAILED, SKIPPED, CRASHED, exit_code=1)
