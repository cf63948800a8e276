"""The command line from end to end: real scenario files, real workers, real file descriptors."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PROGRAM = [sys.executable, "-m", "dmabuf_mp"]
MEMFD = "name: {name}\nproducer: {{device: cpu, memory: memfd}}\nconsumer: cpu\nsize: 16KiB\n"
ROLES = """
import os, signal

def hang(context):
    print("hanging", os.getpid(), flush=True)
    while True:
        signal.pause()

def crash(context):
    os.kill(os.getpid(), signal.SIGSEGV)

def wrong(context):
    def spoil(buffer, round_):
        context.fill(buffer, round_)
        context.device.write(buffer, 4096, bytes(4))
    context.share(spoil)
"""


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `dmabuf-mp run` to its end."""
    values = {"capture_output": True, "text": True, "timeout": 60, **options}
    return subprocess.run([*PROGRAM, "run", *arguments], cwd=ROOT, check=False, **values)


def scenario(folder: Path, *names: str, role: str = "", more: str = "") -> str:
    """Write a file of scenarios, whose consumers play one of ROLES, and return its path."""
    (folder / "faulty.py").write_text(ROLES)
    text = MEMFD
    if role == "wrong":
        text = text.replace("memory: memfd", "memory: memfd, role: 'faulty:wrong'")
    elif role:
        text = text.replace("consumer: cpu", f"consumer: {{{{device: cpu, role: 'faulty:{role}'}}}}")
    file = folder / "scenario.yaml"
    file.write_text("---\n".join(text.format(name=name) + more for name in names))
    return str(file)


def report(folder: Path) -> dict[str, Any]:
    """Read the JSON report that `--json FOLDER/r.json` wrote."""
    data: dict[str, Any] = json.loads((folder / "r.json").read_text())
    return data


def test_a_pass(tmp_path: Path) -> None:
    result = run(scenario(tmp_path, "one"), "--json", f"{tmp_path}/r.json", "--seed", "7")
    assert result.returncode == 0
    assert result.stdout.splitlines()[-1].startswith("1 passed in ")
    data = report(tmp_path)
    (one,) = data["scenarios"]
    assert (one["outcome"], one["observed"], one["mismatches"], one["seed"]) == ("passed", "passed", 0, 7)
    assert one["path"] == {"memory": "memfd", "handle": "memfd", "importer": "mmap"}
    assert (one["size_bytes"], one["allocated_bytes"]) == (16384, 16384)
    assert [worker["role"] for worker in one["workers"]] == ["producer", "consumer"]
    assert one["links"][0]["bytes_checked"] == 16384
    assert 0 <= one["elapsed_s"] <= data["elapsed_s"]


def test_wrong_data_fails_and_is_located(tmp_path: Path) -> None:
    result = run(scenario(tmp_path, "one", role="wrong"), "--json", f"{tmp_path}/r.json")
    assert result.returncode == 1
    assert "1 failed in " in result.stdout
    assert "the first at byte 0x1000 (page 1) in round 0: expected 0x" in result.stdout
    (one,) = report(tmp_path)["scenarios"]
    assert (one["outcome"], one["mismatches"]) == ("failed", 1)
    assert (one["first_mismatch"]["offset_bytes"], one["first_mismatch"]["got"]) == (4096, "0x00000000")


def test_a_crash(tmp_path: Path) -> None:
    result = run(scenario(tmp_path, "one", role="crash"), "--json", f"{tmp_path}/r.json")
    assert result.returncode == 1
    assert "SIGSEGV" in result.stdout
    (one,) = report(tmp_path)["scenarios"]
    assert (one["outcome"], one["workers"][1]["signal"]) == ("crashed", "SIGSEGV")


def test_the_command_line_s_deadline(tmp_path: Path) -> None:
    result = run(scenario(tmp_path, "one", role="hang"), "--timeout", "500ms")
    assert result.returncode == 1
    assert "1 timed out in " in result.stdout


def test_what_a_scenario_expects_passes(tmp_path: Path) -> None:
    result = run(scenario(tmp_path, "one", role="crash", more="expect: crashed\n"))
    assert result.returncode == 0
    assert "passed (crashed, as expected)" in result.stdout
    assert run(scenario(tmp_path, "one", more="expect: failed\n")).returncode == 1


def test_skips(tmp_path: Path) -> None:
    file = tmp_path / "gpu.yaml"
    file.write_text("producer: {device: cuda:0, memory: pinned}\nconsumer: cuda:0\nsize: 4KiB\n")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    result = run(str(file), "--json", f"{tmp_path}/r.json", env=environment)
    assert result.returncode == 77
    assert "1 skipped in " in result.stdout
    assert "no device for 'cuda:0' on this machine" in report(tmp_path)["scenarios"][0]["reason"]
    assert run(str(file), "--skips-ok", env=environment).returncode == 0
    assert run(str(file), "--strict", env=environment).returncode == 1
    assert run(str(file), "--map", "cuda:*=cpu", "--json", f"{tmp_path}/r.json").returncode == 0
    assert report(tmp_path)["scenarios"][0]["mapped"] == {"cuda:0": "cpu"}


def test_nothing_runs_where_a_file_is_wrong(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(MEMFD.format(name="good"))
    bad.write_text("size: 16k\nproducer: cpu\nconsumer: cpu\n")
    result = run(str(good), str(bad), "--json", f"{tmp_path}/r.json")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(f"{bad}:1:7: '16k' can be read in two ways")
    assert not (tmp_path / "r.json").exists()


def test_a_role_that_cannot_be_found_is_the_author_s_mistake(tmp_path: Path) -> None:
    result = run(scenario(tmp_path, "one", role="no_such_role"))
    assert result.returncode == 2
    assert f"{tmp_path}/scenario.yaml:3:" in result.stderr
    assert "no_such_role" in result.stderr
    assert "Traceback" not in result.stderr


def test_standard_input_repeats_and_equal_names(tmp_path: Path) -> None:
    text = MEMFD.format(name="a") + "---\n" + MEMFD.format(name="a")
    assert run("-", "--repeat", "2", "--json", f"{tmp_path}/r.json", input=text).returncode == 0
    scenarios = report(tmp_path)["scenarios"]
    assert [(one["name"], one["repeat"]) for one in scenarios] == [
        ("a", 0),
        ("a#2", 0),
        ("a#3", 1),
        ("a#4", 1),
    ]


def test_fail_fast(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    first = scenario(tmp_path / "a", "bad", role="crash")
    result = run(first, scenario(tmp_path, "good"), "--fail-fast", "--json", f"{tmp_path}/r.json")
    assert result.returncode == 1
    assert [one["outcome"] for one in report(tmp_path)["scenarios"]] == ["crashed", "skipped"]


def hanging(tmp_path: Path, *arguments: str) -> tuple[subprocess.Popen[str], int]:
    """Start a run that hangs in a role's function; return it and the pid of the worker that hangs."""
    command = [*PROGRAM, "run", "-v", scenario(tmp_path, "hangs", "later", role="hang"), *arguments]
    program = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert program.stderr is not None
    for line in program.stderr:
        if "hanging" in line:
            return program, int(line.split()[-1])
    raise AssertionError(program.communicate())


def ends(pid: int) -> None:
    """Wait until a process that is not ours has gone, for some seconds."""
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"process {pid} lives on"
        time.sleep(0.01)


@pytest.mark.parametrize("to_group", [False, True])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_the_workers_and_writes_the_report(
    tmp_path: Path, number: signal.Signals, code: int, to_group: bool
) -> None:
    program, worker = hanging(tmp_path, "--json", f"{tmp_path}/r.json", "--junit", f"{tmp_path}/r.xml")
    (os.killpg if to_group else os.kill)(program.pid, number)
    out, err = program.communicate(timeout=30)
    assert program.returncode == code
    assert out.splitlines()[-1].endswith(f": exit code {code}")
    assert "Traceback" not in err
    ends(worker)
    data = report(tmp_path)
    assert data["exit_code"] == code
    assert [one["outcome"] for one in data["scenarios"]] == ["interrupted", "interrupted"]
    assert (tmp_path / "r.xml").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_while_scenarios_are_read(number: signal.Signals, code: int) -> None:
    program = subprocess.Popen(
        [*PROGRAM, "run", "-"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert program.stdin is not None
    os.write(program.stdin.fileno(), b"name: never ends\n")
    unread = bytearray(b"\1\0\0\0")
    while any(unread):
        fcntl.ioctl(program.stdin, termios.FIONREAD, unread)
    program.send_signal(number)
    assert program.wait(timeout=30) == code
    out, err = program.communicate()
    assert (out, b"Traceback" in err) == (b"", False)


def test_killing_the_orchestrator_leaves_no_worker(tmp_path: Path) -> None:
    program, worker = hanging(tmp_path)
    program.kill()
    program.communicate(timeout=30)
    ends(worker)


def test_a_run_does_not_wait_for_who_reads_its_stderr(tmp_path: Path) -> None:
    names = [f"a-name-that-fills-the-pipe-sooner-{'x' * 200}-{i}" for i in range(150)]
    program = subprocess.Popen(
        [*PROGRAM, "run", "-v", scenario(tmp_path, *names), "--json", f"{tmp_path}/r.json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    assert program.stderr is not None
    while not (line := program.stdout.readline()).endswith(": exit code 0\n"):
        assert line, program.communicate()
    # The run is over, and stderr is still full.
    assert report(tmp_path)["summary"]["passed"] == 150
    assert program.stderr.read().count("passed in") == 150
    program.communicate(timeout=30)
    assert program.returncode == 0


@pytest.mark.parametrize(("closing", "code"), [("<&-", 0), (">&-", 1), ("2>&-", 0), ("<&- >&- 2>&-", 1)])
def test_closed_standard_streams(tmp_path: Path, closing: str, code: int) -> None:
    file = scenario(tmp_path, "one", "two")
    line = f"exec {' '.join(PROGRAM)} run {file} --json {tmp_path}/r.json {closing}"
    result = subprocess.run(
        ["sh", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == code
    data = report(tmp_path)
    assert (data["summary"]["passed"], data["exit_code"]) == (2, code)


def test_check_list_explain_devices_and_schema(tmp_path: Path) -> None:
    def answer(*arguments: str) -> str:
        result = subprocess.run([*PROGRAM, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        assert (result.returncode, result.stderr) == (0, "")
        return result.stdout

    file = scenario(tmp_path, "one", "two")
    assert answer("check", file) == "2 scenarios in 1 file: no mistakes\n"
    assert [one["name"] for one in json.loads(answer("list", "--json", file))] == ["one", "two"]
    (one,) = json.loads(answer("explain", "--json", "-k", "one", file))
    assert (one["name"], one["path"]) == ("one", "memfd/memfd/mmap")
    assert json.loads(answer("devices", "--json"))["devices"][0]["selector"] == "cpu"
    assert json.loads(answer("schema"))["title"] == "dmabuf-mp scenario"
