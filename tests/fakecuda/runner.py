"""Runs the rules that the software CUDA driver keeps, each in a process of its own forked from one server."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

MODULES = (
    "rules_calls",
    "rules_memory",
    "rules_vmm",
    "rules_sharing",
    "rules_descriptors",
    "rules_refusals",
)
DEADLINE_S = 30

RULES: dict[str, tuple[Callable[[], None], dict[str, str]]] = {}


def rule(**switches: str | int) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function that runs on the double with these switches, and asserts."""

    def register(function: Callable[[], None]) -> Callable[[], None]:
        variables = {
            key if key.startswith("CUDA_") else f"FAKECUDA_{key}": str(value)
            for key, value in switches.items()
        }
        RULES[function.__name__] = (function, variables)
        return function

    return register


def load() -> dict[str, tuple[Callable[[], None], dict[str, str]]]:
    """Import every module of rules and return the rules by name."""
    for module in MODULES:
        importlib.import_module(f"tests.fakecuda.{module}")
    return RULES


def _run(name: str, output: int) -> None:
    """Run one rule in this forked process, which ends here."""
    status = 1
    try:
        os.dup2(output, 1)
        os.dup2(output, 2)
        signal.alarm(DEADLINE_S)
        function, variables = RULES[name]
        os.environ.update(variables)
        function()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def serve() -> None:
    """Answer each rule's name on a line with its exit status and output as a line of JSON."""
    load()
    for line in sys.stdin:
        with tempfile.TemporaryFile() as output:
            pid = os.fork()
            if pid == 0:
                _run(line.strip(), output.fileno())
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            output.seek(0)
            print(json.dumps({"status": status, "output": output.read().decode()}), flush=True)
