#!/usr/bin/env python3
"""What runs in each guest, one step after the other, and what each step must come to.

The package is imported once, and each step forks: under emulation, starting Python and importing
takes longer than most of what there is to run.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import boot
import prepare

if TYPE_CHECKING:
    from collections.abc import Callable

NOBODY = 65534


@dataclass(frozen=True, slots=True)
class Step:
    """A command line, and what it must exit with and say; $REPORT is the folder for reports."""

    name: str
    command: str  # dmabuf-mp or pytest with its arguments, in which * stands for files
    says: tuple[str, ...] = ()  # regular expressions, each to be found in its output
    exit_code: int = 0
    user: int = 0


@dataclass(frozen=True, slots=True)
class Guest:
    """Which kernel boots, and what runs on it."""

    release: str
    steps: tuple[Step, ...]


def _refused(node: str) -> str:
    name = node.rpartition("/")[2]
    return (
        rf"no permission to open {node} \(mode 0600, group root\): be root, or give a group access by a udev "
        rf'rule in /etc/udev/rules\.d: KERNEL=="{name}", GROUP="video", MODE="0660"'
    )


WORKS = tuple(rf"{path} +cpu +cpu +works" for path in ("udmabuf/dmabuf/mmap", "dma_heap/dmabuf/mmap"))
ABSENT = tuple(
    rf"{reason} and, in a container, the device passed in"
    for reason in (
        "no /dev/udmabuf: it needs a kernel with CONFIG_UDMABUF",
        "no /dev/dma_heap/system: it needs a kernel with CONFIG_DMABUF_HEAPS",
    )
)
REFUSED = (_refused("/dev/udmabuf"), _refused("/dev/dma_heap/system"))
MEMFD_WORKS = r"memfd/memfd/mmap +cpu +cpu +works"
ON_DMABUFS = "scenarios/cpu_udmabuf.yaml scenarios/cpu_dma_heap.yaml"
# One fault of each kind that a real dma-buf can show or hide; the whole catalogue takes a while.
FAULTS = (
    "flip_bit",
    "wrong_last_byte",
    "stale_round",
    "other_buffer",
    "torn",
    "wrong_side",
    "pipe",
    "too_small",
    "too_large",
    "no_fds_left",
    "segv",
)

# What most steps import.
PRELOADED = ("scenario", "selftest", "reports.output", "backends.cpu.backend")

GUESTS = {
    "6.12-tests": Guest(
        "6.12",
        (
            Step(
                "tests",
                "pytest -q -p no:cacheprovider -m dmabuf --junit-xml=$REPORT/tests.xml @$REPORT/files",
            ),
        ),
    ),
    "6.12": Guest(
        "6.12",
        (
            Step("devices", "dmabuf-mp devices", (*WORKS, MEMFD_WORKS)),
            Step(
                "explain",
                f"dmabuf-mp explain {ON_DMABUFS} scenarios/cpu_fan_out.yaml",
                (
                    r"cpu_udmabuf +cpu, cpu +udmabuf/dmabuf/mmap +passed",
                    r"cpu_dma_heap +cpu, cpu +dma_heap/dmabuf/mmap +passed",
                    r"cpu_fan_out +cpu, cpu, cpu, cpu +udmabuf/dmabuf/mmap +passed",
                ),
            ),
            Step("scenarios", "dmabuf-mp run --strict --junit $REPORT/cpu.xml scenarios/cpu_[!t]*.yaml"),
            Step("nobody", f"dmabuf-mp run {ON_DMABUFS} scenarios/cpu_fan_out.yaml", REFUSED, user=NOBODY),
            Step("faults", f"dmabuf-mp selftest -k '{' or '.join(FAULTS)}'"),
        ),
    ),
    "6.1": Guest(
        "6.1",
        (
            Step("devices", "dmabuf-mp devices", (*ABSENT, MEMFD_WORKS)),
            Step("explain", f"dmabuf-mp explain {ON_DMABUFS}", ABSENT),
            Step("skips", f"dmabuf-mp run {ON_DMABUFS}", ABSENT, exit_code=77),
        ),
    ),
}
# It waits for hangs, twenty times longer than elsewhere: only where it is asked for.
LONG_GUESTS = {
    "6.12-selftest": Guest("6.12", (Step("selftest", "dmabuf-mp selftest --json $REPORT/selftest.json"),))
}


def run_guest(guest: Guest, report: Path) -> int:
    """Run the steps, and leave in `results.json` what each came to; returns 0 or 1."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # this process is going to fork
    if any(step.command.startswith("dmabuf-mp ") for step in guest.steps):
        for module in PRELOADED:
            importlib.import_module(f"dmabuf_mp.{module}")
    results: dict[str, tuple[float, str]] = {}
    for step in guest.steps:
        print(f"\n$ {step.command}", flush=True)
        began = time.monotonic()
        problem = "; ".join(run_step(step))
        results[step.name] = (time.monotonic() - began, problem)
        prepare.write(results_file(report), json.dumps(results).encode())
    return 1 if any(problem for _, problem in results.values()) else 0


def results_file(report: Path) -> Path:
    """Where the guest says how its steps ended: seconds, and what was wrong, for each."""
    return report / "results.json"


def run_step(step: Step) -> list[str]:
    """Run one step and pass its output on; returns what was wrong."""
    receiver, sender = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(receiver)
        play(step, sender)
    os.close(sender)
    said = b""
    while some := os.read(receiver, 65536):
        said += some
        sys.stdout.buffer.write(some)
        sys.stdout.buffer.flush()
    os.close(receiver)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    problems = [] if code == step.exit_code else [f"exit code {code}, expected {step.exit_code}"]
    output = said.decode(errors="replace")
    return problems + [f"it did not say {text!r}" for text in step.says if not re.search(text, output)]


def play(step: Step, output: int) -> None:
    """In the child: become the step."""
    code: int | str | None = 1
    try:
        os.dup2(output, sys.stdout.fileno())
        os.dup2(output, sys.stderr.fileno())
        os.close(output)
        if step.user:
            become(step.user)
        sys.argv = words(step.command)
        code = PROGRAMS[sys.argv[0]]()
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def become(user: int) -> None:
    """Be an ordinary user from now on, who can read the checkout and Python wherever they lie.

    In mounts of this process's own, folders above them that are closed to others give way to empty ones.
    """
    here = Path.cwd()
    folders = (here, Path(sys.base_prefix))
    boot.check(boot.libc.unshare(boot.CLONE_NEWNS))
    held = [os.open(folder, os.O_PATH) for folder in folders]
    for folder, fd in zip(folders, held, strict=True):
        if closed := [above for above in reversed(folder.parents) if not above.stat().st_mode & 1]:
            boot.check(boot.libc.mount(b"tmpfs", bytes(closed[0]), b"tmpfs", 0, b"mode=755"))
        folder.mkdir(parents=True, exist_ok=True)
        boot.check(boot.libc.mount(b"/proc/self/fd/%d" % fd, bytes(folder), None, boot.MS_BIND, None))
        os.close(fd)
    os.chdir(here)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def words(command: str) -> list[str]:
    """The words of a command, with the files that stand for those with a *."""
    found = [os.path.expandvars(word) for word in shlex.split(command)]
    return [
        part for word in found for part in (sorted(map(str, Path().glob(word))) if "*" in word else [word])
    ]


def _dmabuf_mp() -> int:
    from dmabuf_mp.__main__ import main

    return main()


def _pytest() -> int:
    import pytest

    return pytest.main(sys.argv[1:])


PROGRAMS: dict[str, Callable[[], int]] = {"dmabuf-mp": _dmabuf_mp, "pytest": _pytest}


if __name__ == "__main__":
    name = sys.argv[1]
    sys.exit(run_guest({**GUESTS, **LONG_GUESTS}[name], Path(os.environ["REPORT"])))
