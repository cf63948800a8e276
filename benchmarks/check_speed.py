#!/usr/bin/env python3
"""Fills and checks of the CPU against a copy of the same memory, on one core, in one run.

A check must reach half of a single-threaded copy's rate for `ramp`, and 0.3 of it for `random`; exits 1
where one does not. The memory is what a scenario uses: a sealed memfd, mapped.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dmabuf_mp.backends.cpu.device import CpuDevice
from dmabuf_mp.patterns import KINDS, Pattern

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 2**20
SIZES = (64 * MIB, 256 * MIB)
ROUNDS = 9
WANTED = {"check ramp": 0.5, "check random": 0.3}  # of the copy's rate


def measure(size_bytes: int) -> dict[str, float]:
    """Return the rates in GB/s of the copy and of each fill and check: the best of several turns.

    Everything takes its turn in every round, and the processor's time is what counts, so that the
    machine's other work disturbs all alike.
    """
    cpu = CpuDevice()
    buffer = cpu.allocate("memfd", size_bytes, {})
    private = np.ones(size_bytes, np.uint8)

    def copy() -> None:
        with buffer.access(write=False) as view:
            np.copyto(private, view)

    def check(pattern: Pattern) -> None:
        if cpu.check(buffer, pattern, 0).mismatched:
            raise SystemExit(f"{pattern.kind}: the data is wrong, and its speed means nothing")

    works: dict[str, Callable[[], None]] = {"copy": copy}
    for kind in KINDS:
        pattern = Pattern(kind, seed=7)
        works[f"fill {kind}"] = partial(cpu.fill, buffer, pattern, 0)
        works[f"check {kind}"] = partial(check, pattern)
    best_s = dict.fromkeys(works, float("inf"))
    for _ in range(ROUNDS):
        for what, work in works.items():
            started = time.thread_time()
            work()
            best_s[what] = min(best_s[what], time.thread_time() - started)
    buffer.close()
    return {what: size_bytes / seconds / 1e9 for what, seconds in best_s.items()}


def main() -> int:
    """Print the table; return 1 if a check is too slow."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    slow = False
    print(f"{'size':>8} {'what':14} {'GB/s':>7} {'of copy':>8}  wanted")
    for size_bytes in SIZES:
        rates = measure(size_bytes)
        for what, reached in rates.items():
            ratio = reached / rates["copy"]
            wanted = WANTED.get(what)
            slow |= wanted is not None and ratio < wanted
            verdict = "" if wanted is None else f"{wanted:g}: {'met' if ratio >= wanted else 'TOO SLOW'}"
            print(f"{size_bytes // MIB:>4} MiB {what:14} {reached:7.2f} {ratio:8.2f}  {verdict}".rstrip())
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
