"""The examples of the documentation: what stands after a `$` is run, and must print what stands below it."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dmabuf_mp.cli import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(console|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
# What differs from one run to the next.
VARYING = re.compile(r"\b\d+(\.\d+)? (ms|s)\b|0x[0-9a-f]+|(?<=pid )\d+|(?<=page )\d+|(?<=--seed )\d+")


def examples() -> list[object]:
    """Return each command with what it prints, and the files that its page has shown by then.

    A file is a block of YAML whose first line is a comment with its name: `# first.yaml`.
    """
    found: list[object] = []
    for page in PAGES:
        files: dict[str, str] = {}
        for kind, text in BLOCK.findall(page.read_text()):
            if kind == "yaml" and (name := re.match(r"# (\S+\.yaml)\n", text)):
                files[name[1]] = text
            elif kind == "console":
                shown = dict(files)
                found += [
                    pytest.param(command, expected, shown, id=f"{page.name}: {command}")
                    for command, expected in COMMAND.findall(text)
                    if "selftest" not in command  # takes a minute, and has tests of its own
                ]
    return found


def test_there_are_examples() -> None:
    assert len(examples()) > 10


@pytest.mark.parametrize("name", sorted(main.commands))
def test_every_command_and_flag_is_documented(name: str) -> None:
    page = (ROOT / "docs" / "command_line.md").read_text()
    section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert section, f"no section on {name}"
    flags = {flag for option in main.commands[name].params for flag in option.opts if flag.startswith("-")}
    assert {flag for flag in flags - {"-h", "--help"} if f"`{flag}" not in section} == set()


@pytest.mark.parametrize(("command", "expected", "files"), examples())
def test_example(command: str, expected: str, files: dict[str, str], tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, module in (("dmabuf-mp", "-m dmabuf_mp"), ("python", "")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
        (programs / name).chmod(0o755)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "scenarios").symlink_to(ROOT / "scenarios")
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "NO_COLOR": "1",
        "COLUMNS": "160",
    }
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    checker, flags = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    wanted, got = (VARYING.sub("VARIES", text) for text in (expected, result.stdout))
    assert checker.check_output(wanted, got, flags), f"{result.stdout}\n{result.stderr}"
