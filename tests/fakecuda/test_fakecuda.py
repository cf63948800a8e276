"""The software CUDA driver keeps its rules, obeys its switches and has the real driver's interface."""

from __future__ import annotations

import ctypes
import json
import operator
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cuda.bindings import driver

from tests.fakecuda import runner
from tests.fakecuda.build import build, environment

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    """Yield a process that runs rules on the double."""
    command = [sys.executable, "-c", "from tests.fakecuda import runner; runner.serve()"]
    env = {**os.environ, **environment()}
    with subprocess.Popen(
        command, cwd=ROOT, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def ask(server: subprocess.Popen[str], name: str) -> tuple[int, str]:
    """Run one rule and return its exit status and output."""
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(f"{name}\n")
    server.stdin.flush()
    answer = json.loads(server.stdout.readline())
    return answer["status"], answer["output"]


@pytest.mark.parametrize("name", runner.load())
def test_rule(server: subprocess.Popen[str], name: str) -> None:
    status, output = ask(server, name)
    assert status == 0, output


def test_a_broken_rule_is_seen(server: subprocess.Popen[str]) -> None:
    status, output = ask(server, "no_such_rule")
    assert status == 1
    assert "KeyError" in output


class Number(ctypes.Structure):
    """A row of the table that abi.c exports."""

    _fields_ = (("owner", ctypes.c_char_p), ("name", ctypes.c_char_p), ("value", ctypes.c_uint64))


def rows() -> list[tuple[str, str, int]]:
    """Return owner, name and value of every constant and field offset that the double was compiled with."""
    library = ctypes.CDLL(str(build() / "libcuda.so.1"))
    found: list[tuple[str, str, int]] = []
    for row in (Number * 1000).in_dll(library, "fakecuda_abi"):
        if row.owner is None:
            return found
        found.append((row.owner.decode(), row.name.decode(), row.value))
    raise AssertionError("the table has no end")


def offset_in_bindings(owner: str, field: str) -> int:
    """Find where a field lies in a structure of cuda.bindings: set it, and see which byte changes."""
    structure: Any = getattr(driver, owner)()
    *parents, last = field.removeprefix(".").split(".")
    target = operator.attrgetter(".".join(parents))(structure) if parents else structure
    bytes_of = (ctypes.c_ubyte * SIZES[owner]).from_address(int(structure.getPtr()))
    before = bytes(bytes_of)
    enumerations = {
        "location.type": driver.CUmemLocationType(1),
        "requestedHandleTypes": driver.CUmemAllocationHandleType(1),
        "CUmemAllocationProp.type": driver.CUmemAllocationType(1),
        "CUmemLocation.type": driver.CUmemLocationType(1),
        "CUDA_EXTERNAL_MEMORY_HANDLE_DESC.type": driver.CUexternalMemoryHandleType(1),
        "CUmemAccessDesc.flags": driver.CUmemAccess_flags(1),
    }
    value = next((v for k, v in enumerations.items() if f"{owner}{field}".endswith(k)), 1)
    setattr(target, last, value)
    changed = [i for i, (old, new) in enumerate(zip(before, bytes(bytes_of), strict=True)) if old != new]
    assert len(changed) == 1, (owner, field, changed)
    return changed[0]


ROWS = rows()
SIZES = {owner: value for owner, name, value in ROWS if name == "sizeof"}


@pytest.mark.parametrize(("owner", "name", "value"), [row for row in ROWS if row[1] != "sizeof"])
def test_interface_is_that_of_cuda_bindings(owner: str, name: str, value: int) -> None:
    if name.startswith("."):
        assert value == offset_in_bindings(owner, name)
    else:
        assert value == int(getattr(getattr(driver, owner), name))


def test_every_result_has_its_name() -> None:
    library = ctypes.CDLL(str(build() / "libcuda.so.1"))
    for result in driver.CUresult:
        text = ctypes.c_char_p()
        assert library.cuGetErrorName(int(result), ctypes.byref(text)) == 0
        assert text.value == result.name.encode()
        assert library.cuGetErrorString(int(result), ctypes.byref(text)) == 0
        assert text.value
    assert library.cuGetErrorName(12345, ctypes.byref(text)) == 1


RAMP, RANDOM, ADDRESS = range(3)


@pytest.mark.parametrize(
    ("index", "t", "ramp", "address", "random"),
    [
        (0, 0, 0x00001000, 0x00000001, 0x54ACEA80),
        (0, 2, 0x3C6F0363, 0x3C6EF364, 0x8B03EA5D),
        (2**30 + 5, 0, 0x40001005, 0x00000016, 0x318C98AA),
        (2**33 + 1, 4, 0x78DDF6C9, 0x78DDE6D3, 0x58244B61),
    ],
)
def test_words_of_the_patterns(index: int, t: int, ramp: int, address: int, random: int) -> None:
    word = ctypes.CDLL(str(build() / "libcuda.so.1")).fakecuda_pattern_word
    word.argtypes = (*[ctypes.c_uint32] * 5, ctypes.c_uint64)
    word.restype = ctypes.c_uint32
    assert word(RAMP, 0x1000, 0, 0, t, index) == ramp
    assert word(ADDRESS, 0x1000, 0, 0, t, index) == address
    assert word(RANDOM, 0x1000, 7, 0, t, index) == random


def test_a_misspelt_switch_is_refused() -> None:
    command = [sys.executable, "-c", "from cuda.bindings import driver; print(int(driver.cuInit(0)[0]))"]
    env = {**os.environ, **environment(DEVICE=1)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    assert "no switch is called FAKECUDA_DEVICE" in done.stderr
