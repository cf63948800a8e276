#!/usr/bin/env python3
"""Boots every kernel that the tests need, side by side, and says how long each step took.

What runs in them is in inside.py.  When a guest has ended its output comes through; JUnit files
and other reports end up in build/report/GUEST.  Exits 0 only if every step of every guest came to
what it must, and no test skipped itself on the kernel that has everything.
DMABUF_MP_LONG=1 in the environment adds the whole self-test.
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
from contextlib import ExitStack
from pathlib import Path
from xml.etree import ElementTree

import boot
import inside
import prepare

GUESTS = {**inside.GUESTS, **(inside.LONG_GUESTS if os.environ.get("DMABUF_MP_LONG") else {})}
TIMEOUT_S = 2400.0 if os.environ.get("DMABUF_MP_LONG") else 600.0
NO_SKIPS = {"6.12-tests": ("tests.xml",)}  # reports in which nothing may be skipped

PROJECT = prepare.HERE.parents[1]
ENVIRONMENT = (
    "DMABUF_MP_TIME_SCALE=20",  # emulation is about that much slower
    "HYPOTHESIS_STORAGE_DIRECTORY=/tmp/hypothesis",  # the checkout is read-only
)


def run_all(names: list[str], reports: Path, timeout_s: float) -> list[str]:
    """Runs the guests; returns what went wrong, a line each."""
    began = time.monotonic()
    with ExitStack() as stack:
        compiling = boot.start(stack, [sys.executable, str(Path(__file__).resolve()), "--compile"])
        for release in dict.fromkeys(GUESTS[name].release for name in names):
            prepare.prepare(release)
        if compiling.wait():
            raise prepare.CannotBoot("the tests for the guest cannot be collected")
    lines = [f"{'host':14} {'prepare':12} {time.monotonic() - began:7.1f} s"]
    booted = time.monotonic()
    problems: list[str] = []
    with ExitStack() as stack:
        guests = {name: start(stack, name, reports / name, timeout_s) for name in names}
        for name, guest in guests.items():
            code = guest.wait()
            print(f"\n== {name}\n{output_file(reports / name).read_text(errors='replace')}", flush=True)
            results = read_results(reports / name)
            lines += [f"{name:14} {step:12} {elapsed_s:7.1f} s" for step, (elapsed_s, _) in results.items()]
            problems += judge(name, code, results, reports / name)
    lines.append(f"{'guests':14} {'':12} {time.monotonic() - booted:7.1f} s")
    print("\n" + "\n".join(lines) + f"\n{'all':27} {time.monotonic() - began:7.1f} s")
    return problems


def compile_on_host() -> int:
    """Writes the byte code that the guest cannot write, its files being read-only; returns an exit code.

    Collecting the tests writes pytest's own, fails early where they cannot be imported, and finds
    the files that hold tests for the guest: there it would take a minute.
    """
    compile_all = [sys.executable, "-m", "compileall", "-q", "-j2"]
    subprocess.run([*compile_all, sysconfig.get_path("purelib"), "dmabuf_mp", "tests"], check=False)
    collect = [sys.executable, "-m", "pytest", "-qq", "--collect-only", "-m", "dmabuf", "tests"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    collected = subprocess.run(collect, check=False, stdout=subprocess.PIPE, text=True, env=environment)
    if collected.returncode:
        print(collected.stdout, file=sys.stderr)
    else:
        files = re.findall(r"^(\S+): \d+$", collected.stdout, re.MULTILINE)
        prepare.write(prepare.BUILD / "files", "\n".join(files).encode())
    return collected.returncode


def start(stack: ExitStack, name: str, report: Path, timeout_s: float) -> subprocess.Popen[bytes]:
    """Starts a guest that ends with the stack, and with this process."""
    shutil.rmtree(report, ignore_errors=True)
    report.mkdir(parents=True)
    shutil.copy(prepare.BUILD / "files", report)
    output = stack.enter_context(output_file(report).open("wb")).fileno()
    variables = [f"--env={variable}" for variable in (*ENVIRONMENT, f"REPORT={report}")]
    launcher = [sys.executable, str(prepare.HERE / "boot.py"), "--kernel-release", GUESTS[name].release]
    options = ["--keep", str(report), "--timeout", str(timeout_s), *variables]
    job = [sys.executable, str(prepare.HERE / "inside.py"), name]
    return boot.start(stack, [*launcher, *options, "--", *job], stdout=output, stderr=output)


def output_file(report: Path) -> Path:
    """Where a guest's output goes."""
    return report / "output.txt"


def read_results(report: Path) -> dict[str, tuple[float, str]]:
    """Seconds, and what was wrong, of each step that ended."""
    file = inside.results_file(report)
    return json.loads(file.read_text()) if file.exists() else {}


def judge(name: str, code: int, results: dict[str, tuple[float, str]], report: Path) -> list[str]:
    """What was wrong with a guest that ended."""
    wrong = [f"{step}: {problem}" for step, (_, problem) in results.items() if problem]
    wrong += [f"{step.name} did not end" for step in GUESTS[name].steps if step.name not in results]
    if code and not wrong:
        wrong.append(f"its exit code is {code}")
    wrong += [problem for file in NO_SKIPS.get(name, ()) for problem in judge_junit(report / file)]
    return [f"{name}: {problem}" for problem in wrong]


def judge_junit(file: Path) -> list[str]:
    """What is wrong with a JUnit file in which every test must have run."""
    if not file.exists():
        return [f"{file}: is missing"]
    cases = ElementTree.parse(file).getroot().findall(".//testcase")
    skipped = [f"{file}: skipped {case.get('name')}" for case in cases if case.find("skipped") is not None]
    return skipped if cases else [f"{file}: holds no test"]


def main() -> int:
    """Runs the guests that are asked for, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--guest", action="append", choices=GUESTS, help="default: each of them")
    option("--report", type=Path, default=prepare.BUILD / "report", metavar="DIR")
    option("--timeout", type=float, default=TIMEOUT_S, metavar="SECONDS", help="for each guest")
    option("--compile", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.chdir(PROJECT)
    if arguments.compile:
        return compile_on_host()
    boot.unwind_on_signals()
    try:
        problems = run_all(arguments.guest or list(GUESTS), arguments.report.resolve(), arguments.timeout)
    except (prepare.CannotBoot, OSError, subprocess.SubprocessError) as error:
        problems = [str(error)]
    for problem in problems:
        print(f"run: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
