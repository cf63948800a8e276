#!/usr/bin/env python3
"""How long the command line takes beside Python itself, and how many scenarios a second it runs.

Each figure is the median of runs that take turns with what it is compared with, in one go.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

TURNS = 7
SMALL = "producer: cpu\nconsumer: cpu\nsize: 16KiB\n"
NEEDED = "import numpy, click, pydantic, ruamel.yaml, rich.console, rich.table, multiprocess"
FAN_OUT = "producer: cpu\nconsumers: [{}]\nsize: 16KiB\n".format(", ".join(["cpu"] * 64))


def seconds(command: list[str]) -> float:
    """Return how long a command takes; raises where it fails."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - began


def side_by_side(*measures: Callable[[], float]) -> list[float]:
    """Return each measure's median, from turns."""
    turns = [[measure() for measure in measures] for _ in range(TURNS)]
    return [statistics.median(column) for column in zip(*turns, strict=True)]


def forks(count: int) -> float:
    """Return how long forking and reaping that many children takes, from a process with numpy in it."""
    began = time.perf_counter()
    pids = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)
    return time.perf_counter() - began


def row(what: str, value: float, beside: str, other: float, limit: float, *, or_less_s: float = 0.0) -> bool:
    """Print one comparison; return whether it is within its limit."""
    fine = value <= limit * other or value <= or_less_s
    alternative = f" or {or_less_s:g} s" if or_less_s else ""
    print(
        f"{what:44} {value:8.3f} s  {value / other:6.2f} × {beside} ({other:.3f} s); "
        f"limit {limit:g} ×{alternative}{'' if fine else '  TOO SLOW'}"
    )
    return fine


def main() -> int:
    """Print the table; the exit code says whether all is within its limits."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    program = [sys.executable, "-m", "dmabuf_mp"]
    with tempfile.TemporaryDirectory() as folder:
        small, many, wide = (Path(folder) / name for name in ("small.yaml", "many.yaml", "wide.yaml"))
        small.write_text(SMALL)
        many.write_text("---\n".join([SMALL] * 1000))
        wide.write_text(FAN_OUT)
        version, nothing, one, imports = side_by_side(
            lambda: seconds([*program, "--version"]),
            lambda: seconds([sys.executable, "-c", "pass"]),
            lambda: seconds([*program, "run", "-q", str(small)]),
            lambda: seconds([sys.executable, "-c", NEEDED]),
        )
        fine = row("--version", version, "python -c pass", nothing, 4, or_less_s=0.08)
        fine &= row(
            "run of one scenario of 16 KiB", one, "importing what it needs", imports, 2, or_less_s=0.6
        )
        fan_out, pair, children = side_by_side(
            lambda: seconds([*program, "run", "-q", str(wide)]),
            lambda: seconds([*program, "run", "-q", str(small)]),
            lambda: forks(64),
        )
        extra = fan_out - pair
        print(
            f"{'63 more consumers':40} {extra:8.3f} s  {extra / children:6.2f} × 64 forks ({children:.3f} s)"
        )
        began = time.perf_counter()
        seconds([*program, "run", "-q", str(many)])
        took = time.perf_counter() - began
    rate = 1000 / took
    fine &= rate >= 150
    print(f"{'1,000 scenarios of 16 KiB in one file':44} {took:8.3f} s  {rate:6.0f} a second; limit 150")
    return not fine


if __name__ == "__main__":
    import numpy as np  # so that the forks carry what a worker carries

    del np
    sys.exit(main())
