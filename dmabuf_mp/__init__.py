"""Share one buffer between processes and devices through a file descriptor, and check the data."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dmabuf_mp.api import load, run
    from dmabuf_mp.context import Context
    from dmabuf_mp.errors import DmabufMpError, ScenarioError, Unsupported, UsageError
    from dmabuf_mp.model import (
        Fault,
        LinkReport,
        LogLine,
        Mismatch,
        Observer,
        Outcome,
        PassedOver,
        Path,
        PatternChoice,
        Report,
        Role,
        Scenario,
        ScenarioReport,
        Silent,
        WorkerReport,
    )

__version__ = "0.1.0"

# Where each public name lives: imported on first use, so that `--version` costs no more than Python.
_HOME = {
    "Silent": "model",
    "PassedOver": "model",
    "Observer": "model",
    "LogLine": "model",
    "Fault": "model",
    "load": "api",
    "run": "api",
    "Context": "context",
    "DmabufMpError": "errors",
    "ScenarioError": "errors",
    "Unsupported": "errors",
    "UsageError": "errors",
    "LinkReport": "model",
    "Mismatch": "model",
    "Outcome": "model",
    "Path": "model",
    "PatternChoice": "model",
    "Report": "model",
    "Role": "model",
    "Scenario": "model",
    "ScenarioReport": "model",
    "WorkerReport": "model",
}

__all__ = [
    "Context",
    "DmabufMpError",
    "Fault",
    "LinkReport",
    "LogLine",
    "Mismatch",
    "Observer",
    "Outcome",
    "PassedOver",
    "Path",
    "PatternChoice",
    "Report",
    "Role",
    "Scenario",
    "ScenarioError",
    "ScenarioReport",
    "Silent",
    "Unsupported",
    "UsageError",
    "WorkerReport",
    "load",
    "run",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
