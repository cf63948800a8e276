"""The soak: repetitions until a time or a failure, and whether anything grew from one to the next."""

from __future__ import annotations

import mmap
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

from dmabuf_mp.linux import process

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dmabuf_mp.plan import Planned

_ENOUGH = 4  # repetitions; the first ones warm up


def shuffled(planned: Sequence[Planned], seed: int, repeat: int) -> list[Planned]:
    """Return a repetition in another order, the same for the same seed; files with `needs` stay whole."""
    units: list[list[Planned]] = []
    with_needs = {one.scenario.file for one in planned if one.scenario.needs}
    of_file: dict[str, list[Planned]] = {}
    for one in planned:
        if one.scenario.file not in with_needs:
            units.append([one])
        elif one.scenario.file in of_file:
            of_file[one.scenario.file].append(one)
        else:
            units.append(of_file.setdefault(one.scenario.file, [one]))
    random.Random(f"{seed}:{repeat}").shuffle(units)
    return [one for unit in units for one in unit]


class Growth:
    """What is held after each repetition: the workers' memory, and the fds of all.

    The orchestrator's own memory grows with the report, and says nothing.
    """

    def __init__(self) -> None:
        self._memory_bytes: list[int] = []
        self._fds: list[int] = []

    def sample(self, workers: Iterable[int]) -> None:
        """Look at the orchestrator and at these pids now."""
        pids = list(workers)
        self._memory_bytes.append(sum(_memory_bytes(pid) for pid in pids))
        self._fds.append(sum(process.fd_count(pid) or 0 for pid in [*pids, os.getpid()]))

    def notes(self) -> tuple[str, ...]:
        """Say how much a repetition adds, by a straight line through the second half of the samples."""
        if len(self._memory_bytes) < _ENOUGH:
            return ()
        memory, fds = slope(self._memory_bytes) / 1024, slope(self._fds)
        return (
            f"{len(self._fds)} repetitions: each adds {memory:+.1f} KiB to the workers' memory, "
            f"and {fds:+.2f} open fds",
        )


def slope(samples: Sequence[int]) -> float:
    """Return the least-squares slope of the second half of the samples, a sample being one step."""
    late = samples[len(samples) // 2 :]
    middle = (len(late) - 1) / 2
    mean = sum(late) / len(late)
    spread = sum((i - middle) ** 2 for i in range(len(late)))
    return sum((i - middle) * (value - mean) for i, value in enumerate(late)) / spread if spread else 0.0


def _memory_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * mmap.PAGESIZE
    except (OSError, IndexError, ValueError):
        return 0
