"""The examples of the documentation: what stands after a `$` is run, and must print what stands below it."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = [
    pytest.param(command, expected, id=f"{page.name}: {command}")
    for page in PAGES
    for block in re.findall(r"^```console\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
]


def test_there_are_examples() -> None:
    assert any("command_line.md" in str(example.id) for example in EXAMPLES)


@pytest.mark.parametrize(("command", "expected"), EXAMPLES)
def test_example(command: str, expected: str, tmp_path: Path) -> None:
    for name, module in (("dmabuf-mp", "-m dmabuf_mp"), ("python", "")):
        (tmp_path / name).write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
        (tmp_path / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "NO_COLOR": "1",
        "COLUMNS": "160",
    }
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    checker, flags = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert checker.check_output(expected, result.stdout, flags), f"{result.stdout}\n{result.stderr}"
