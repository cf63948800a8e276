"""Surroundings that lack something, by the command line as people start it: a verdict or a clear error."""

from __future__ import annotations

import ast
import ctypes
import errno
import json
import os
import platform
import resource
import struct
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 60
ADDRESS_SPACE = 512 * 2**20  # of which Python and numpy take the half

PAIR = "{name: pair, producer: cpu, consumer: cpu, size: 64KiB, rounds: 2}"
CRASH = "{name: crash, producer: cpu, consumer: {device: cpu, faults: kill}, size: 64KiB, expect: crashed}"
HANG = (
    "{name: hang, producer: cpu, consumer: {device: cpu, faults: hang_native}, size: 64KiB, timeout: 500ms,"
    " expect: timed_out}"
)
THREE = f"{PAIR}\n---\n{CRASH}\n---\n{HANG}\n"

libc = ctypes.CDLL(None, use_errno=True)


def command(
    folder: Path,
    scenarios: str,
    *arguments: str,
    prepare: Callable[[], None] | None = None,
    **environment: str,
) -> tuple[int, dict[str, Any] | None, str]:
    """Run scenarios by the command line; return its exit code, its report, if any, and what it said."""
    file, report = folder / "scenarios.yaml", folder / "report.json"
    file.write_text(scenarios)
    done = subprocess.run(
        [sys.executable, "-m", "dmabuf_mp", "run", str(file), *(arguments or ("--json", str(report)))],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        preexec_fn=prepare,
        timeout=LIMIT_S,
        check=False,
    )
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said
    return done.returncode, json.loads(report.read_text()) if report.exists() else None, said


def outcomes(report: dict[str, Any] | None) -> list[str]:
    assert report is not None
    return [one["outcome"] for one in report["scenarios"]]


# Limits.


def limited(kind: int, amount: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(kind, (amount, amount))


def test_no_file_may_grow(tmp_path: Path) -> None:
    code, report, said = command(tmp_path, PAIR, prepare=limited(resource.RLIMIT_FSIZE, 1024))
    assert code == 1
    assert report is None
    assert "report.json: the report could not be written: File too large" in said
    assert not list(tmp_path.glob(".*"))
    assert "limit of a file's size (1024)" in said


def test_too_little_address_space_is_an_error_that_says_so(tmp_path: Path) -> None:
    scenarios = f"{PAIR}\n---\n{PAIR.replace('64KiB', '1GiB').replace('pair', 'large')}"
    code, report, said = command(tmp_path, scenarios, prepare=limited(resource.RLIMIT_AS, ADDRESS_SPACE))
    assert code == 1, said
    assert outcomes(report) == ["passed", "error"]
    assert report is not None
    large = report["scenarios"][1]
    assert large["reason_code"] == "resource", large["reason"]
    assert f"limit of address space ({ADDRESS_SPACE})" in large["reason"]


# Places.


def hide(*places: str) -> Callable[[], None]:
    """Return what puts an empty, read-only file system over places, seen by this process alone."""

    def prepare() -> None:
        clone_newns, ms_rdonly, ms_rec, ms_private = 0x20000, 1, 16384, 1 << 18
        if libc.unshare(clone_newns) or libc.mount(b"none", b"/", None, ms_rec | ms_private, None):
            os._exit(99)
        for place in places:
            if libc.mount(b"none", place.encode(), b"tmpfs", ms_rdonly, b"mode=555"):
                os._exit(99)

    return prepare


def test_a_working_directory_that_may_not_be_written_to(tmp_path: Path) -> None:
    readonly = tmp_path / "readonly"
    readonly.mkdir(mode=0o555)

    def prepare() -> None:
        if os.getuid() == 0:  # whom no mode keeps from writing
            hide(str(readonly))()
        os.chdir(readonly)

    code, report, said = command(tmp_path, PAIR, prepare=prepare)
    if code == 99:
        pytest.skip("file systems can be mounted by root only")
    assert code == 0, said
    assert outcomes(report) == ["passed"]
    code, _, said = command(tmp_path, PAIR, "--json", "here.json", prepare=prepare)
    assert code == 1
    assert "here.json: the report could not be written: " in said


@pytest.mark.parametrize("places", [("/proc", "/sys"), ("/dev/shm",)])
def test_without(places: tuple[str, ...], tmp_path: Path) -> None:
    code, report, said = command(tmp_path, THREE, prepare=hide(*places))
    if code == 99:
        pytest.skip("file systems can be mounted by root only")
    assert code == 0, said
    assert outcomes(report) == ["passed"] * 3
    assert report is not None
    assert [one["observed"] for one in report["scenarios"]] == ["passed", "crashed", "timed_out"]


# System calls.

NUMBERS = {"x86_64": (0xC000003E, 319, 434), "aarch64": (0xC00000B7, 279, 434)}


def refuse(call: str, error: int) -> Callable[[], None]:
    """Return what has the kernel refuse a system call to this process and all that it starts."""
    architecture, memfd_create, pidfd_open = NUMBERS[platform.machine()]
    number = {"memfd_create": memfd_create, "pidfd_open": pidfd_open}[call]

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    load, jump_if_equal, answer = 0x20, 0x15, 0x06
    allow, refuse_with = 0x7FFF0000, 0x00050000
    code = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (load, 0, 0, 4),  # the architecture
            (jump_if_equal, 0, 3, architecture),
            (load, 0, 0, 0),  # the call's number
            (jump_if_equal, 0, 1, number),
            (answer, 0, 0, refuse_with | error),
            (answer, 0, 0, allow),
        )
    )
    program = Program(len(code) // 8, code)

    def prepare() -> None:
        set_no_new_privs, set_seccomp, mode_filter = 38, 22, 2
        if libc.prctl(set_no_new_privs, 1, 0, 0, 0) or libc.prctl(
            set_seccomp, mode_filter, ctypes.byref(program), 0, 0
        ):
            os._exit(99)

    return prepare


filtered = pytest.mark.skipif(platform.machine() not in NUMBERS, reason="no numbers for this architecture")


@filtered
@pytest.mark.parametrize("error", [errno.EPERM, errno.ENOSYS])
def test_a_filter_that_refuses_memfds_is_a_skip_with_its_reason(error: int, tmp_path: Path) -> None:
    scenario = PAIR.replace("producer: cpu", "producer: {device: cpu, memory: memfd}")
    code, report, said = command(tmp_path, scenario, prepare=refuse("memfd_create", error))
    if code == 99:
        pytest.skip("this kernel has no seccomp")
    assert code == 77, said
    assert outcomes(report) == ["skipped"]
    assert report is not None
    assert "memfd_create" in report["scenarios"][0]["reason"]


@filtered
def test_a_filter_that_refuses_pidfds_changes_nothing(tmp_path: Path) -> None:
    code, report, said = command(tmp_path, THREE, prepare=refuse("pidfd_open", errno.EPERM))
    if code == 99:
        pytest.skip("this kernel has no seccomp")
    assert code == 0, said
    assert [one["observed"] for one in report["scenarios"]] == ["passed", "crashed", "timed_out"]  # type: ignore[index]


# Python.


def test_a_library_that_prints_when_it_is_imported_spoils_no_json(tmp_path: Path) -> None:
    (tmp_path / "talkative.py").write_text(
        "import os, sys\n"
        "print('imported, to stdout'); sys.stderr.write('imported, to stderr\\n')\n"
        "os.write(1, b'by number\\n')\n"
        "def role(context):\n    context.receive()\n"
    )
    scenario = PAIR.replace("consumer: cpu", "consumer: {device: cpu, role: 'talkative:role'}")
    (tmp_path / "scenarios.yaml").write_text(scenario)
    done = subprocess.run(
        [sys.executable, "-m", "dmabuf_mp", "run", "--json", "-", str(tmp_path / "scenarios.yaml")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    report = json.loads(done.stdout)
    assert (done.returncode, report["exit_code"]) == (0, 0), done.stderr
    consumer = report["scenarios"][0]["workers"][1]
    assert {"imported, to stdout", "imported, to stderr", "by number"} <= {
        line["message"] for line in consumer["log"]
    }


def test_everything_works_without_docstrings_and_assertions(tmp_path: Path) -> None:
    wrong = THREE.replace("expect: crashed", "expect: failed")
    code, report, said = command(tmp_path, wrong, PYTHONOPTIMIZE="2")
    assert code == 1, said
    assert outcomes(report) == ["passed", "crashed", "passed"]


def test_no_deadline_depends_on_a_clock_that_can_be_set() -> None:
    """The time of day is read for reports only: everything else counts on the monotonic clock."""
    found = []
    for path in sorted((ROOT / "dmabuf_mp").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                name = f"{node.value.id}.{node.attr}"
                if name in {"time.time", "time.time_ns", "time.localtime", "time.gmtime", "time.ctime"}:
                    found.append(f"{path.name}:{node.lineno} uses {name}")
            if isinstance(node, ast.ImportFrom) and node.module == "time":
                found.append(f"{path.name}:{node.lineno} imports from time: use time.monotonic")
    assert found == []
