"""The CUDA backend on a software driver, a test double in tests/fakecuda, through the real cuda.bindings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.backends.cuda import device_cases, memory_cases  # noqa: F401  (they register their cases)
from tests.backends.cuda.double import CASES
from tests.fakecuda.build import environment


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module in a process that loads the double."""
    command = [sys.executable, "-m", *arguments]
    variables = os.environ | environment()
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    ended = run("tests.backends.cuda.runner")
    said = {result["name"]: result for result in map(json.loads, ended.stdout.splitlines())}
    assert ended.returncode == 0, ended.stderr
    return said


@pytest.mark.parametrize("name", CASES)
def test_case(results: dict[str, dict[str, Any]], name: str) -> None:
    assert results[name]["status"] == 0, results[name]["output"]


def test_without_a_driver_there_is_a_reason() -> None:
    ask = 'from dmabuf_mp import backends; print(backends.load("cuda").inventory())'
    without = {
        key: value for key, value in os.environ.items() if key not in ("LD_LIBRARY_PATH", "LD_PRELOAD")
    }
    command = [sys.executable, "-c", ask]
    ended = subprocess.run(command, env=without, capture_output=True, text=True, timeout=60, check=True)
    if "devices=()" not in ended.stdout:
        pytest.skip("this machine has a CUDA driver")
    assert "no CUDA driver on this machine" in ended.stdout


def test_the_hardware_script_runs_on_the_double() -> None:
    ended = run("tests.hardware.run", "--software", "--only", "speed")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "a software driver, a test double: no GPU" in ended.stdout
    assert "memory of cuda:1" in ended.stdout
    assert "0 bad" in ended.stdout
