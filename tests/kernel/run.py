#!/usr/bin/env python3
"""Runs everything that needs a kernel of the tests' own, and says how long each took.

For each kernel it boots one guest, which runs the commands below one after the other.
Their output comes through; JUnit files and other reports end up in build/report/RELEASE.
Exits 0 only if every command of every kernel ran and exited 0, and no test skipped itself
on the kernel that has everything.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from xml.etree import ElementTree

import boot
import prepare

# What runs in each guest: name, and a command for its shell, which has the package's Python
# first in PATH, the folder for reports in $REPORT and the test files to look into in $TESTS.
COMMANDS = {
    "6.12": {
        "tests": 'python -m pytest -q -m dmabuf -p no:cacheprovider --junit-xml="$REPORT/tests.xml" $TESTS',
        "scenarios": 'dmabuf-mp run --strict -k "not gpu" --junit "$REPORT/cpu.xml" scenarios/cpu*.yaml',
        "devices": "dmabuf-mp devices",
    },
    "6.1": {
        "devices": "dmabuf-mp devices",
        "skips": "dmabuf-mp run scenarios/cpu_udmabuf.yaml scenarios/cpu_dma_heap.yaml; test $? = 77",
    },
}
# The self-test waits for hangs, twenty times longer than elsewhere: only where it is asked for.
LONG_COMMANDS = {"6.12": {"selftest": 'dmabuf-mp selftest --json "$REPORT/selftest.json"'}}
NO_SKIPS = {"6.12": ("tests.xml",)}  # reports in which nothing may be skipped

PROJECT = prepare.HERE.parents[1]
ENVIRONMENT = (
    "DMABUF_MP_TIME_SCALE=20",  # emulation is about that much slower
    "HYPOTHESIS_STORAGE_DIRECTORY=/tmp/hypothesis",  # the checkout is read-only
)


def commands(release: str) -> dict[str, str]:
    """Return what runs in a kernel's guest; the long ones too where DMABUF_MP_LONG is set."""
    long = LONG_COMMANDS.get(release, {}) if os.environ.get("DMABUF_MP_LONG") else {}
    return {**COMMANDS[release], **long}


def run_all(releases: list[str], reports: Path, timeout_s: float) -> list[str]:
    """Runs the commands of each kernel; returns what went wrong, a line each."""
    started = time.monotonic()
    tests = compile_on_host()
    lines = [f"{'host':5} {'compile':12} {time.monotonic() - started:7.1f} s"]
    problems: list[str] = []
    for release in releases:
        folder = reports / release
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        booted = time.monotonic()
        code = boot.boot(
            boot.Job(
                command=(sys.executable, str(Path(__file__).resolve()), "--inside", release),
                release=release,
                keep=folder,
                environment=(
                    *ENVIRONMENT,
                    f"REPORT={folder}",
                    f"TESTS={' '.join(tests)}",
                    f"DMABUF_MP_LONG={os.environ.get('DMABUF_MP_LONG', '')}",
                ),
                timeout_s=timeout_s,
            )
        )
        if code:
            problems.append(f"{release}: the guest's exit code is {code}")
        results = read_results(folder)
        for name in commands(release):
            if name not in results:
                problems.append(f"{release}: {name} did not end")
                continue
            exit_code, elapsed_s = results[name]
            lines.append(f"{release:5} {name:12} {elapsed_s:7.1f} s  exit code {exit_code:g}")
        problems += [problem for name in NO_SKIPS.get(release, ()) for problem in judge_junit(folder / name)]
        lines.append(f"{release:5} {'whole guest':12} {time.monotonic() - booted:7.1f} s")
    print("\n" + "\n".join(lines) + f"\n{'all':18} {time.monotonic() - started:7.1f} s")
    return problems


def compile_on_host() -> list[str]:
    """Writes the byte code that the guest cannot write, its files being read-only.

    Collecting the tests writes pytest's own, and ends early where they cannot be imported.
    Returns the files that hold tests for the guest: it would take a minute to find them.
    """
    compile_all = [sys.executable, "-m", "compileall", "-q", "-j2"]
    subprocess.run([*compile_all, sysconfig.get_path("purelib"), "dmabuf_mp", "tests"], check=False)
    collect = [sys.executable, "-m", "pytest", "-qq", "--collect-only", "-m", "dmabuf", "tests"]
    collected = subprocess.run(collect, check=False, stdout=subprocess.PIPE, text=True)
    if collected.returncode:
        raise prepare.CannotBoot(f"no tests for the guest: {' '.join(collect[1:])}:\n{collected.stdout}")
    return re.findall(r"^(\S+): \d+$", collected.stdout, re.MULTILINE)


def run_inside(release: str) -> int:
    """In the guest: runs the commands; returns the exit code of the last one that failed, or 0."""
    worst = 0
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    results: dict[str, tuple[int, float]] = {}
    for name, command in commands(release).items():
        print(f"\n== {release} {name}: {command}", flush=True)
        started = time.monotonic()
        code = subprocess.run(command, shell=True, check=False, env=environment).returncode
        results[name] = (code, time.monotonic() - started)
        prepare.write(results_file(Path(os.environ["REPORT"])), json.dumps(results).encode())
        worst = code or worst
    return worst


def results_file(folder: Path) -> Path:
    """Where the guest says how its commands ended."""
    return folder / "commands.json"


def read_results(folder: Path) -> dict[str, tuple[int, float]]:
    """Exit code and seconds of each command that ended."""
    file = results_file(folder)
    return json.loads(file.read_text()) if file.exists() else {}


def judge_junit(file: Path) -> list[str]:
    """What is wrong with a JUnit file in which every test must have run."""
    if not file.exists():
        return [f"{file}: is missing"]
    cases = ElementTree.parse(file).getroot().findall(".//testcase")
    skipped = [f"{file}: skipped {case.get('name')}" for case in cases if case.find("skipped") is not None]
    return skipped if cases else [f"{file}: holds no test"]


def main() -> int:
    """Runs the kernels that are asked for, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--kernel-release", action="append", choices=COMMANDS, help="default: each of them")
    option("--report", type=Path, default=prepare.BUILD / "report", metavar="DIR")
    option("--timeout", type=float, default=300.0, metavar="SECONDS", help="for each guest")
    option("--inside", choices=COMMANDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.chdir(PROJECT)
    if arguments.inside:
        return run_inside(arguments.inside)
    boot.unwind_on_signals()
    try:
        releases = arguments.kernel_release or list(COMMANDS)
        problems = run_all(releases, arguments.report.resolve(), arguments.timeout)
    except (prepare.CannotBoot, OSError, subprocess.SubprocessError) as error:
        problems = [str(error)]
    for problem in problems:
        print(f"run: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
