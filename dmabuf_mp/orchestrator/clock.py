"""The clock of deadlines: it does not count the time during which the orchestrator itself was stopped."""

from __future__ import annotations

import math
import os
import time

_STALL_S = 0.5


def time_scale() -> float:
    """Return what every deadline is multiplied by: DMABUF_MP_TIME_SCALE, for slow or emulated machines."""
    try:
        scale = float(os.environ.get("DMABUF_MP_TIME_SCALE", "1"))
    except ValueError:
        return 1.0
    return scale if 0 < scale < math.inf else 1.0


class Clock:
    """Seconds on CLOCK_MONOTONIC less what was credited."""

    def __init__(self) -> None:
        self._credit_s = 0.0
        self._last = time.monotonic()
        self._last_busy = time.process_time()

    def now(self) -> float:
        """Return the time that counts."""
        return time.monotonic() - self._credit_s

    def slept(self, at_most_s: float) -> None:
        """Say that up to `at_most_s` may have passed since the last call; what is far over it is credited."""
        now, busy = time.monotonic(), time.process_time()
        # A process that works is not stopped: it must not put off the deadline of what keeps it busy.
        stalled = now - self._last - at_most_s - (busy - self._last_busy)
        if stalled > _STALL_S:
            self._credit_s += stalled
        self._last, self._last_busy = now, busy
