"""`--log`: every line of every worker's log as one JSON object a line, as it comes."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from dmabuf_mp.reports.files import STDOUT, stdout_fd
from dmabuf_mp.reports.outlet import Outlet

if TYPE_CHECKING:
    from dmabuf_mp.model import LogLine


class LogFile:
    """The target of `--log`, emptied when opened; raises OSError where it cannot be."""

    def __init__(self, target: str) -> None:
        self.target = target
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOCTTY
        self._fd = os.dup(stdout_fd()) if target == STDOUT else os.open(target, flags, 0o666)
        self._outlet = Outlet(self._fd, missing=lambda count: json.dumps({"missing_lines": count}) + "\n")

    def add(self, scenario: str, worker: str, line: LogLine) -> None:
        """Write one line: scenario, worker, t_s, level, message."""
        entry = {
            "scenario": scenario,
            "worker": worker,
            "t_s": line.t_s,
            "level": line.level,
            "message": line.message,
        }
        self._outlet.write(json.dumps(entry) + "\n")

    def close(self) -> str | None:
        """Write what waits and close; return what went wrong at any time, for people, or None."""
        if self._fd >= 0:
            self._outlet.finish()
            os.close(self._fd)
            self._fd = -1
        if (error := self._outlet.error) is None:
            return None
        return f"--log {self.target}: the log could not be written: {error.strerror}"
