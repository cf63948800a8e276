"""The launcher that the tests on a real kernel rest on: does every way to fail show as one?"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import inside
import prepare
import pytest
import run

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.kernel

HERE = Path(__file__).resolve().parent
TIMED_OUT, NO_STATUS = 124, 125


class Launcher:
    """Starts tests/kernel/boot.py, and knows the processes that came of it."""

    def __init__(self, temporary: Path) -> None:
        self.mark = f"BOOT_TEST={uuid.uuid4()}"
        self.temporary = temporary
        self.started: list[subprocess.Popen[str]] = []

    def start(self, script: str, *options: str, cwd: Path = HERE) -> subprocess.Popen[str]:
        """Starts a guest that runs the shell script."""
        name, _, value = self.mark.partition("=")
        process = subprocess.Popen(
            [sys.executable, HERE / "boot.py", *options, "--", "sh", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env=os.environ | {name: value, "TMPDIR": str(self.temporary)},
        )
        self.started.append(process)
        return process

    def run(self, script: str, *options: str, cwd: Path = HERE) -> tuple[int, str, str]:
        """Runs a guest to its end; returns exit code, output, and the launcher's words."""
        process = self.start(script, *options, cwd=cwd)
        output, words = process.communicate(timeout=300)
        return process.returncode, output, words

    def processes(self) -> list[int]:
        """All processes, of any parent, that inherited the mark."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:  # it has ended, or is a zombie
                continue
        return found


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """A launcher that must leave no process and no file behind."""
    (temporary := tmp_path / "temporary").mkdir()
    before = set(Path("/var/tmp").glob("vl.*"))  # where QEMU would write for itself
    launcher = Launcher(temporary)
    yield launcher
    left = launcher.processes()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    for process in launcher.started:
        process.communicate()
    assert left == []
    assert list(temporary.iterdir()) == []
    assert set(Path("/var/tmp").glob("vl.*")) <= before


def last_lines(words: str) -> str:
    """What the launcher printed of the console."""
    return words.partition("the end of the guest's console:")[2]


@pytest.mark.parametrize("release", ["6.12", "6.1"])
def test_exit_code_and_output_come_through(launcher: Launcher, release: str) -> None:
    script = 'uname -r; echo "to stderr" >&2; echo "$GREETING"; exit 7'
    code, output, words = launcher.run(script, "--kernel-release", release, "--env", "GREETING=it's  me")
    kernel, *lines = output.splitlines()
    assert (code, lines, words) == (7, ["to stderr", "it's  me"], "")
    assert kernel.startswith(f"{release}.")


def test_death_by_signal_is_no_success(launcher: Launcher) -> None:
    code, _, _ = launcher.run("kill -SEGV $$")
    assert code == 128 + signal.SIGSEGV


def test_only_the_kept_folder_is_writable(launcher: Launcher, tmp_path: Path) -> None:
    (keep := tmp_path / "with a space").mkdir()
    (beside := tmp_path / "beside").mkdir()
    target = HERE / f"written-by-{uuid.uuid4()}"
    script = f"""
        set -e
        test -z "$(ls -A /run; ls -A /dev/shm)"
        echo fresh > /tmp/file; echo fresh > /run/file; echo fresh > /dev/shm/file
        echo kept > '{keep}/file'
        test ! -e '{beside}'
        if touch '{target}'; then exit 1; fi
        mount -o remount,rw /
        if touch '{target}'; then exit 2; fi
    """
    code, output, words = launcher.run(script, "--keep", str(keep))
    assert (code, words) == (0, "")
    assert output.count("Read-only file system") == 2
    assert [file.read_text() for file in keep.iterdir()] == ["kept\n"]
    assert not target.exists()


@pytest.mark.parametrize("parent", ["/tmp", "/dev/shm", "/var/tmp"])
def test_the_folder_that_it_runs_in_is_there_wherever_it_lies(launcher: Launcher, parent: str) -> None:
    with tempfile.TemporaryDirectory(prefix="with a space ", dir=parent) as name:
        (folder := Path(name) / "keep").mkdir()
        (Path(name) / "file").write_text("seen")
        script = "cat file; echo kept > keep/file; ! echo lost > file"
        code, output, words = launcher.run(script, "--keep", str(folder), cwd=Path(name))
        assert (code, words) == (0, "")
        assert output.startswith("seen")
        assert "Read-only file system" in output
        assert (folder / "file").read_text() == "kept\n"


def test_a_guest_that_hangs_is_ended_and_its_console_shown(launcher: Launcher) -> None:
    started = time.monotonic()
    assert launcher.run("exit 0")[0] == 0
    enough_s = round(3 * (time.monotonic() - started))  # to boot, on this machine, at this time
    script = "echo the last output; echo the last console line > /dev/console; while :; do sleep 100; done"
    code, output, words = launcher.run(script, "--timeout", str(enough_s))
    assert (code, output) == (TIMED_OUT, "the last output\n")
    assert f"ended after {enough_s} s" in words
    assert "the last console line" in last_lines(words)


def test_a_panic_is_a_failure_and_its_console_shown(launcher: Launcher) -> None:
    code, output, words = launcher.run("echo the last output; echo c > /proc/sysrq-trigger; exit 0")
    assert (code, output) == (NO_STATUS, "the last output\n")
    assert "Kernel panic - not syncing" in last_lines(words)


def test_a_guest_that_restarts_by_itself_is_a_failure(launcher: Launcher) -> None:
    code, _, words = launcher.run("echo b > /proc/sysrq-trigger; exit 0")
    assert code == NO_STATUS
    assert "without an exit code" in words
    assert "init: running the job" in last_lines(words)


def test_a_guest_that_finds_no_memory_is_a_failure(launcher: Launcher) -> None:
    code, _, words = launcher.run("exit 0", "--memory", "24M")
    assert code == NO_STATUS
    assert "without an exit code" in words


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (signal.SIGINT, 128 + signal.SIGINT),
        (signal.SIGTERM, 128 + signal.SIGTERM),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_the_guest_ends_with_its_launcher(launcher: Launcher, number: int, expected: int) -> None:
    process = launcher.start("echo running; while :; do sleep 100; done")
    assert process.stdout
    assert process.stdout.readline() == "running\n"
    helpers = [pid for pid in launcher.processes() if pid != process.pid]
    assert len(helpers) == 2  # QEMU and virtiofsd
    ends = [os.pidfd_open(pid) for pid in helpers]
    process.send_signal(number)
    assert process.wait(60) == expected
    for end in ends:
        assert select.select([end], [], [], 10)[0], "it lives on"
        os.close(end)


def test_what_cannot_be_booted_says_why(launcher: Launcher, tmp_path: Path) -> None:
    code, _, words = launcher.run("exit 0", "--keep", str(tmp_path / "absent"))
    assert code == NO_STATUS
    assert "absent" in words


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('<testsuites><testsuite><testcase name="one"/></testsuite></testsuites>', []),
        ("<testsuites><testsuite/></testsuites>", ["holds no test"]),
        ('<testsuites><testcase name="one"><skipped/></testcase></testsuites>', ["skipped one"]),
        (None, ["is missing"]),
    ],
)
def test_tests_that_did_not_run_are_a_failure(
    tmp_path: Path, content: str | None, expected: list[str]
) -> None:
    report = tmp_path / "tests.xml"
    if content is not None:
        report.write_text(content)
    assert [problem.removeprefix(f"{report}: ") for problem in run.judge_junit(report)] == expected


def test_a_step_has_to_exit_and_to_speak_as_it_must(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    cases = {
        inside.Step("right", "dmabuf-mp --version", (r"dmabuf-mp \d",)): [],
        inside.Step("silent", "dmabuf-mp --version", ("dmabuf-mp x",)): ["it did not say 'dmabuf-mp x'"],
        inside.Step("usage", "dmabuf-mp run"): ["exit code 2, expected 0"],
        inside.Step("no usage", "dmabuf-mp --version", exit_code=77): ["exit code 0, expected 77"],
        inside.Step("unknown", "dmabuf"): ["exit code 1, expected 0"],
    }
    assert {step.name: inside.run_step(step) for step in cases} == {
        step.name: expected for step, expected in cases.items()
    }
    assert b"dmabuf-mp " in capfdbinary.readouterr().out


def test_a_step_that_did_not_end_is_a_failure_and_so_is_a_guest_that_failed(tmp_path: Path) -> None:
    ended = {step.name: (1.0, "") for step in run.GUESTS["6.1"].steps}
    some = {"devices": (1.0, "it did not say 'yes'"), "explain": (1.0, "")}
    assert run.judge("6.1", 0, ended, tmp_path) == []
    assert run.judge("6.1", 125, ended, tmp_path) == ["6.1: its exit code is 125"]
    assert run.judge("6.1", 1, some, tmp_path) == [
        "6.1: devices: it did not say 'yes'",
        "6.1: skips did not end",
    ]


@pytest.mark.parametrize(("failures", "tries"), [(0, 1), (1, 2), (2, 2)])
def test_a_mirror_that_fails_is_asked_once_more(
    failures: int, tries: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(prepare, "RETRY_S", 0)
    tried = []

    def attempt() -> str:
        tried.append(len(tried))
        subprocess.run(["false" if len(tried) <= failures else "true"], check=True)
        return "done"

    if failures < tries:
        assert prepare.twice(attempt) == "done"
    else:
        with pytest.raises(subprocess.CalledProcessError):
            prepare.twice(attempt)
    assert len(tried) == tries
    assert ("once more" in capsys.readouterr().err) == (tries == 2)


def test_without_root_it_fails_and_says_so() -> None:
    as_nobody = "import os, boot; os.seteuid(65534); boot.boot(boot.Job(command=('true',)))"
    ran = subprocess.run(
        [sys.executable, "-c", as_nobody], cwd=HERE, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert "needs root: run it with sudo" in ran.stderr
