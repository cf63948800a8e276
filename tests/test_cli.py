"""The command line, on a double of the orchestrator (tests/cli_double.py), as a process of its own."""

from __future__ import annotations

import errno
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from dmabuf_mp import __version__
from dmabuf_mp.cli import run_command
from tests.cli_double import SERVICES

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parent.parent
DOUBLE = [sys.executable, "-m", "tests.cli_double"]
REAL = [sys.executable, "-m", "dmabuf_mp"]


def cli(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command line on the double."""
    return run(DOUBLE, *arguments, **options)


def run(program: Sequence[str], *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, in the project's folder."""
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    values = {"env": environment, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.run([*program, *arguments], cwd=ROOT, check=False, timeout=60, **values | options)


# Exit codes.


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["passed"], 0),
        (["passed", "skipped"], 0),
        (["--strict", "passed", "skipped"], 1),
        (["passed", "failed"], 1),
        (["crashed"], 1),
        (["timed_out"], 1),
        (["error"], 1),
        (["skipped"], 77),
        (["--skips-ok", "skipped"], 0),
        (["-k", "nothing", "passed"], 77),
        (["--skips-ok", "-k", "nothing", "passed"], 77),
        (["-k", "not failed", "passed", "failed"], 0),
        (["bad"], 2),
        ([], 2),
        (["--nonsense", "passed"], 2),
        (["-k", "and", "passed"], 2),
        (["--strict", "--skips-ok", "passed"], 2),
        (["-q", "-v", "passed"], 2),
        (["--timeout", "30", "passed"], 2),
        (["--timeout", "0s", "passed"], 2),
        (["--repeat", "0", "passed"], 2),
        (["--seed", "-1", "passed"], 2),
        (["--map", "cuda", "passed"], 2),
        (["--map", "gpu:*=cpu", "passed"], 2),
        (["--map", "cuda:*=gpu", "passed"], 2),
        (["--map", "cuda:*=cuda:*", "passed"], 2),
        (["--json", "-", "--junit", "-", "passed"], 2),
    ],
)
def test_exit_codes_of_run(arguments: list[str], code: int, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["run", *arguments], SERVICES) == code
    out, err = capfd.readouterr()
    assert "Traceback" not in err
    if code == 2:
        assert out == ""
    else:
        assert out.endswith(f": exit code {code}\n")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--timeout", "30"], "'30' has no unit: for seconds write 30s"),
        (["--map", "cuda"], "expected FROM=TO, as in 'cuda:*=cpu'; devices are cpu, cuda:N"),
        (["--map", "cuda:0=cuda:x"], "unknown device 'cuda:x': expected cuda:N"),
        (["--map", "cuda:*=cuda:*"], "TO must name one device"),
        (["--jsn", "x"], "Did you mean"),
        (["-k", "a (b"], "'('"),
        (["--json", "x", "--junit", "./x"], "./x: two reports cannot go to one place"),
    ],
)
def test_usage_errors_say_what_would_be_right(
    arguments: list[str], hint: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["run", *arguments, "passed"], SERVICES) == 2
    assert hint in capfd.readouterr().err


def test_a_bad_file_s_problems_are_all_told(capfd: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "check", "list", "explain"):
        assert run_command([command, "bad"], SERVICES) == 2
        assert capfd.readouterr() == ("", "bad:3:7: unknown key 'siez'\nbad:4:1: no size\n")


def test_an_empty_selection_names_what_is_there(capfd: pytest.CaptureFixture[str]) -> None:
    run_command(["run", "-q", "-k", "x", "passed", "failed", "passed"], SERVICES)
    assert "no name matches -k 'x'; there are: passed, failed\n" in capfd.readouterr().err


# What is printed where.


def test_the_report_goes_to_stdout_and_progress_to_stderr() -> None:
    result = cli("run", "passed", "failed", "--seed", "7")
    assert result.stdout.startswith("Scenario ")
    assert result.stdout.endswith("1 passed, 1 failed in 0.2 s: exit code 1\n")
    assert "to repeat: dmabuf-mp run passed failed --seed 7\n" in result.stdout
    lines = result.stderr.splitlines()
    assert lines[:3] == [
        "2 scenarios, seed 7",
        "[1/2] passed: passed in 10 ms",
        "[2/2] failed: failed in 10 ms: it failed",
    ]
    assert lines[-1] == "    0.001 producer      info    failed: filled\\x1b"


def test_a_random_seed_is_printed_and_replays(capfd: pytest.CaptureFixture[str]) -> None:
    run_command(["run", "failed"], SERVICES)
    out, err = capfd.readouterr()
    seed = err.split("seed ")[1].split()[0]
    assert f"to repeat: dmabuf-mp run failed --seed {seed}\n" in out
    run_command(["run", "failed"], SERVICES)
    assert seed not in capfd.readouterr().err


def test_verbosity(capfd: pytest.CaptureFixture[str]) -> None:
    def stderr(*flags: str) -> str:
        run_command(["run", *flags, "passed"], SERVICES)
        return capfd.readouterr().err

    assert "filled" not in stderr()
    assert "filled" in stderr("-v")
    assert "a detail" not in stderr("-v")
    assert "a detail" in stderr("-vv")
    assert stderr("-q") == ""


def test_quiet_prints_the_verdict_alone(capfd: pytest.CaptureFixture[str]) -> None:
    run_command(["run", "-q", "passed"], SERVICES)
    assert capfd.readouterr() == ("1 passed in 0.2 s: exit code 0\n", "")


@pytest.mark.parametrize("target", ["-", "/dev/stdout"])
def test_json_on_stdout_is_pure(target: str) -> None:
    result = cli("run", "passed", "failed", "--json", target)
    report = json.loads(result.stdout)
    assert report["exit_code"] == result.returncode == 1
    assert "exit code 1\n" in result.stderr


def test_junit_on_stdout_is_pure() -> None:
    assert ElementTree.fromstring(cli("run", "passed", "--junit", "-").stdout).get("tests") == "1"


def test_log_on_stdout_is_json_lines() -> None:
    lines = cli("run", "passed", "--log", "-").stdout.splitlines()
    assert [json.loads(line)["level"] for line in lines] == ["info", "debug"]


def test_equal_names_are_told_apart_everywhere() -> None:
    result = cli("run", "-v", "passed", "passed", "--log", "-")
    names = [json.loads(line)["scenario"] for line in result.stdout.splitlines()]
    assert names == ["passed", "passed", "passed#2", "passed#2"]
    assert "[2/2] passed#2: passed in 10 ms\n" in result.stderr
    assert "\npassed#2 " in result.stderr  # the table


def test_all_reports_at_once(tmp_path: Path) -> None:
    reports = ["--json", f"{tmp_path}/r.json", "--junit", f"{tmp_path}/r.xml", "--log", f"{tmp_path}/l"]
    assert cli("run", "passed", *reports).returncode == 0
    assert json.loads((tmp_path / "r.json").read_text())["summary"]["passed"] == 1
    assert ElementTree.parse(tmp_path / "r.xml").getroot().get("tests") == "1"
    assert json.loads((tmp_path / "l").read_text().splitlines()[0]) == {
        "scenario": "passed",
        "worker": "producer",
        "t_s": 0.001,
        "level": "info",
        "message": "passed: filled\x1b",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["l", "r.json", "r.xml"]


def test_a_terminal_gets_progress_and_colours_and_no_thread_draws_them() -> None:
    primary, secondary = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    environment.pop("NO_COLOR", None)
    program = subprocess.Popen(
        [*DOUBLE, "run", "wait"], stdout=secondary, stderr=secondary, env=environment, cwd=ROOT
    )
    os.close(secondary)
    seen = b""
    while b"waiting" not in seen:
        seen += os.read(primary, 4096)
    assert b"0/1" in seen
    assert len(list(Path(f"/proc/{program.pid}/task").iterdir())) == 1
    program.send_signal(signal.SIGINT)
    try:
        while part := os.read(primary, 4096):
            seen += part
    except OSError as error:
        assert error.errno == errno.EIO  # how a pseudo-terminal says that the other end has closed
    os.close(primary)
    assert program.wait() == 130
    assert b"\x1b[35minterrupted" in seen
    assert b"\x1b[?25h" in seen.rpartition(b"\x1b[?25l")[2]  # the cursor is back


# Hostile surroundings.


def test_a_full_disk_for_each_report_is_told_and_the_verdict_printed() -> None:
    for flag, what in (("--json", "report"), ("--junit", "report"), ("--log", "log")):
        result = cli("run", "passed", flag, "/dev/full")
        assert result.returncode == 1
        assert result.stdout.endswith("1 passed in 0.2 s: exit code 1\n")
        assert f"dmabuf-mp: {flag} /dev/full: the {what} could not be written: No space left" in result.stderr


@pytest.mark.parametrize(
    ("name", "problem"),
    [("missing/r.json", "there is no folder"), ("file/r.json", "there is no folder"), ("", "it is a folder")],
)
def test_a_report_without_a_place_is_refused_before_anything_runs(
    tmp_path: Path, name: str, problem: str
) -> None:
    (tmp_path / "file").write_text("")
    for flag in ("--json", "--junit", "--log"):
        result = cli("run", "passed", flag, f"{tmp_path}/{name}")
        assert result.returncode == 2
        assert not result.stdout
        assert f"dmabuf-mp: {flag} {tmp_path}/{name}: {problem}" in result.stderr
        assert "Traceback" not in result.stderr


def test_a_report_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    name = "x" * 300
    for flag in ("--json", "--junit", "--log"):
        result = cli("run", "passed", flag, f"{tmp_path}/{name}")
        assert result.returncode == 1
        assert result.stdout.endswith("1 passed in 0.2 s: exit code 1\n")
        assert f"dmabuf-mp: {flag} {tmp_path}/{name}: the " in result.stderr
        assert "Traceback" not in result.stderr


def test_a_lost_junit_report_shows_in_the_json_report(tmp_path: Path) -> None:
    result = cli("run", "passed", "--json", f"{tmp_path}/r.json", "--junit", "/dev/full")
    assert result.returncode == 1
    assert json.loads((tmp_path / "r.json").read_text())["exit_code"] == 1


@pytest.mark.parametrize("command", ["run passed", "list passed", "check passed", "--help", "run --help"])
def test_a_full_stdout_is_told(command: str) -> None:
    with Path("/dev/full").open("w") as full:
        result = cli(*command.split(), stdout=full)
    assert result.returncode == 1
    assert "dmabuf-mp: standard output could not be written: No space left on device\n" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Exception ignored" not in result.stderr


@pytest.mark.parametrize("command", ["run passed", "list passed", "devices", "run passed --json -", "--help"])
def test_a_reader_that_has_gone_is_told(command: str) -> None:
    read, write = os.pipe()
    os.close(read)
    result = cli(*command.split(), stdout=write)
    os.close(write)
    assert result.returncode == 1
    assert "could not be written: Broken pipe\n" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Exception ignored" not in result.stderr


def test_a_lost_stdout_shows_in_the_json_report(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        assert cli("run", "passed", "--json", f"{tmp_path}/r.json", stdout=full).returncode == 1
    assert json.loads((tmp_path / "r.json").read_text())["exit_code"] == 1


@pytest.mark.parametrize(("closing", "code"), [("<&-", 0), (">&-", 1), ("2>&-", 0), ("<&- >&- 2>&-", 1)])
def test_closed_standard_streams(closing: str, code: int, tmp_path: Path) -> None:
    line = f"exec {' '.join(DOUBLE)} run passed --json {tmp_path}/r.json {closing}"
    result = run(["sh", "-c", line])
    assert result.returncode == code
    assert json.loads((tmp_path / "r.json").read_text())["exit_code"] == code
    assert "Traceback" not in result.stderr


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """So that nothing written to a standard stream can end up in a buffer or a socket."""
    program = f"{' '.join(DOUBLE)} run --log {tmp_path}/log fds <&- >&- 2>&-"
    run(["sh", "-c", f"exec {program}"])
    opened = json.loads((tmp_path / "log").read_text().splitlines()[-1])["message"]
    assert min(map(int, opened.split())) > 2


@pytest.mark.parametrize("command", ["--version", "list passed", "run passed --json -", "run passed --log -"])
def test_a_closed_stdout_is_told(command: str) -> None:
    result = run(["sh", "-c", f"exec {' '.join(DOUBLE)} {command} >&-"])
    assert result.returncode == 1
    assert "could not be written: it is closed\n" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_odd_locale_loses_nothing() -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    result = cli("run", "passed", env=environment)
    assert result.returncode == 0
    assert "cpu \\u2192 cpu" in result.stdout
    assert cli("list", "naïve", env=environment).returncode == 0


def test_no_home_and_no_terminal() -> None:
    result = cli("run", "passed", env={"PATH": "/usr/bin"}, stdin=subprocess.DEVNULL, start_new_session=True)
    assert result.returncode == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals(number: signal.Signals, code: int, tmp_path: Path) -> None:
    running = subprocess.Popen(
        [*DOUBLE, "run", "passed", "wait", "--json", f"{tmp_path}/r.json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert running.stderr is not None
    while running.stderr.readline() != "waiting\n":
        pass
    running.send_signal(number)
    out, err = running.communicate(timeout=30)
    assert running.returncode == code
    assert out.endswith(f"1 passed, 1 interrupted in 0.2 s: exit code {code}\n")
    assert "Traceback" not in err
    assert json.loads((tmp_path / "r.json").read_text())["exit_code"] == code


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_while_loading(number: signal.Signals, code: int) -> None:
    loading = subprocess.Popen([*DOUBLE, "run", "slow"], stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert loading.stderr is not None
    assert loading.stderr.readline() == "loading\n"
    loading.send_signal(number)
    try:
        _, err = loading.communicate(timeout=30)
    finally:
        loading.kill()  # it has ended, unless this fails
    assert (loading.returncode, err) == (code, "")


# The other commands.


def test_check(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["check", "a", "b"], SERVICES) == 0
    assert run_command(["check", "a"], SERVICES) == 0
    text = "2 scenarios in 2 files: no mistakes\n1 scenario in 1 file: no mistakes\n"
    assert capfd.readouterr().out == text


def test_list(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["list", "one", "two", "-k", "two"], SERVICES) == 0
    assert capfd.readouterr().out == (
        "name  devices   size_bytes  rounds  file      line\n"
        "two   cpu, cpu  16384       1       two.yaml  1\n"
    )
    assert run_command(["list", "--json", "one"], SERVICES) == 0
    assert json.loads(capfd.readouterr().out) == [
        {
            "name": "one",
            "devices": ["cpu", "cpu"],
            "size_bytes": 16384,
            "rounds": 1,
            "file": "one.yaml",
            "line": 1,
        }
    ]


def test_explain_devices_and_schema(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["explain", "--map", "cuda:*=cpu", "a"], SERVICES) == 0
    assert "a     memfd/memfd/mmap  cuda:*=cpu\n" in capfd.readouterr().out
    assert run_command(["explain", "--json", "a"], SERVICES) == 0
    assert json.loads(capfd.readouterr().out)[0]["name"] == "a"
    assert run_command(["devices"], SERVICES) == 0
    assert capfd.readouterr().out == ("devices:\n  device  memory\n  cpu     5\n  cuda:0\nhost:\n  a: yes\n")
    assert run_command(["devices", "--json"], SERVICES) == 0
    assert json.loads(capfd.readouterr().out)["host"] == {"a": True}
    assert run_command(["schema"], SERVICES) == 0
    assert json.loads(capfd.readouterr().out) == {"title": "scenario"}


# The way in.


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version(flag: str) -> None:
    assert run(REAL, flag).stdout == f"dmabuf-mp {__version__}\n"


def test_version_imports_nothing_heavy() -> None:
    result = run([sys.executable, "-X", "importtime", "-m", "dmabuf_mp"], "--version")
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "dmabuf_mp" in imported
    assert not imported & {"click", "numpy", "pydantic", "rich", "json", "importlib.metadata"}


def test_version_with_stdout_full() -> None:
    with Path("/dev/full").open("w") as full:
        result = run(REAL, "--version", stdout=full)
    assert result.returncode == 1
    assert result.stderr == "dmabuf-mp: standard output could not be written: No space left on device\n"


def test_nothing_of_cuda_and_no_thread_comes_with_the_command_line() -> None:
    code = (
        "import sys, os; sys.argv[1:] = ['run', 'passed']\n"
        "from tests.cli_double import SERVICES; from dmabuf_mp.__main__ import main; main(SERVICES)\n"
        "import numpy; print(len(os.listdir('/proc/self/task')), [m for m in sys.modules if m == 'cuda'])"
    )
    environment = {name: value for name, value in os.environ.items() if "THREADS" not in name}
    assert run([sys.executable, "-c", code], env=environment).stdout.splitlines()[-1] == "1 []"


def test_completion_for_bash() -> None:
    environment = {
        **os.environ,
        "_DMABUF_MP_COMPLETE": "bash_complete",
        "COMP_WORDS": "dmabuf-mp ru",
        "COMP_CWORD": "1",
    }
    assert run(REAL, env=environment).stdout == "plain,run\n"


@pytest.mark.parametrize("command", ["run", "check", "list", "explain", "devices", "schema"])
def test_help(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command([command, "--help"], SERVICES) == 0
    assert capfd.readouterr().out.startswith(f"Usage: dmabuf-mp {command}")
