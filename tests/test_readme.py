"""The pages that a newcomer reads tell the truth: their examples of YAML and Python do what they say.

A page is followed from top to bottom, in one folder. A block that begins with `# name.yaml` or `# name.py` is
a file of that name. Every YAML block is loaded, and run unless it has a name; every Python block is run, by
pytest where it holds tests. Output that is shown has to come, but for times and random data. What stands
after a `$` is run by test_documentation. What the reference pages list is held against the program.
"""

from __future__ import annotations

import ast
import doctest
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from dmabuf_mp import api, backends, mismatch, player
from dmabuf_mp.errors import ScenarioError
from dmabuf_mp.faults import CATALOGUE, PHASES
from dmabuf_mp.reports import json_report
from dmabuf_mp.scenario import loads
from tests.reports.sample import PASSED, report
from tests.test_architecture import ORDER, sources

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = (README, DOCS / "faults.md", DOCS / "python.md", DOCS / "roles.md")
OUTPUT = "text"
# What differs from run to run: times, and words of data, which the seed shifts.
VARYING = re.compile(r"\b\d+(\.\d+)? ?m?s\b|\b0x[0-9a-f]{8}\b")


class Block(NamedTuple):
    """A fenced block of a page, and the text that stands below it as what comes of it."""

    line: int
    language: str
    text: str
    shown: str | None

    @property
    def file(self) -> str | None:
        """The name that the block gives itself."""
        named = re.match(r"# (\S+\.(?:yaml|py))\n", self.text)
        return named[1] if named else None


def blocks(page: Path) -> list[Block]:
    """Return a page's blocks in order; a block of output belongs to the one above it."""
    text = page.read_text()
    found: list[Block] = []
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if match[1] == OUTPUT and found:
            found[-1] = found[-1]._replace(shown=match[2])
        else:
            found.append(Block(text.count("\n", 0, match.start()) + 1, match[1], match[2], None))
    return found


def masked(text: str) -> str:
    """Return output with what differs from run to run taken out."""
    return VARYING.sub("…", text)


def agree(shown: str, came: str) -> bool:
    """Tell whether output is what a page shows; `...` there stands for anything."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(masked(shown), masked(came), flags)


class Reader:
    """Someone who follows a page, with the program on the path, beside the shipped scenarios."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "scenarios").symlink_to(ROOT / "scenarios")
        (folder / "own_roles.py").symlink_to(ROOT / "scenarios" / "own_roles.py")
        (folder / "bin").mkdir()
        for name, module in (("dmabuf-mp", "-m dmabuf_mp"), ("python", "")):
            (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
            (folder / "bin" / name).chmod(0o755)

    def call(self, *command: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "NO_COLOR": "1",
            "COLUMNS": "160",
        }
        return subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def follow(self, block: Block) -> None:
        """Do what a block says, and fail where something else comes of it."""
        if block.file:
            (self.folder / block.file).write_text(block.text)
        if block.language == "yaml":
            self.yaml(block)
        elif block.language == "python":
            self.python(block)
        elif block.language != "console":
            _must_be_make(block)

    def yaml(self, block: Block) -> None:
        if block.shown is not None:
            with pytest.raises(ScenarioError) as caught:
                loads(block.text, "scenario.yaml")
            assert str(caught.value) == block.shown.rstrip("\n")
            return
        assert loads(block.text)
        if not block.file:
            (self.folder / "example.yaml").write_text(block.text)
            result = self.call("dmabuf-mp", "run", "--quiet", "example.yaml")
            assert result.returncode == 0, result.stdout + result.stderr

    def python(self, block: Block) -> None:
        file = block.file or "example.py"
        (self.folder / file).write_text(block.text)
        tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider") if "\ndef test_" in block.text else ()
        result = self.call("python", "-W", "error", *tests, file)
        assert result.returncode == 0, result.stdout + result.stderr
        assert block.shown is None or agree(block.shown, result.stdout), result.stdout


def _must_be_make(block: Block) -> None:
    """Make's targets are run by whoever runs this; nothing else may stand here unchecked."""
    assert block.language == "sh"
    for line in block.text.splitlines():
        target = re.match(r"make ([a-z-]+)", line)
        assert target, line
        assert re.search(rf"^{target[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_can_be_followed(page: Path, tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    found = blocks(page)
    assert {block.language for block in found} & {"python", "yaml"}
    for block in found:
        try:
            reader.follow(block)
        except AssertionError as error:
            raise AssertionError(f"{page.name}:{block.line}: {error}") from error


def test_the_comparison_can_fail() -> None:
    assert agree("1 failed in 0.3 s: 0x0000000a ...\n", "1 failed in 12 ms: 0xffffffff x\n")
    assert not agree("1 failed in 0.3 s\n", "1 passed in 0.3 s\n")
    assert not agree("at byte 0x2000\n", "at byte 0x3000\n")


def test_every_link_leads_somewhere() -> None:
    for page in (README, *DOCS.glob("*.md")):
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text()):
            there = (page.parent / target) if target else page
            assert there.exists(), f"{page.name}: {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", there.read_text(), re.MULTILINE)
                slugs = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
                assert anchor in slugs, f"{page.name}: {target}#{anchor}"


# What the reference pages list.

REPORT = json.loads(json_report.render(report(PASSED)))
SCENARIO = REPORT["scenarios"][0]


def table(page: str, heading: str) -> list[list[str]]:
    """Return the rows of the first table below a heading, without its head."""
    section = re.split(rf"^#+ {re.escape(heading)}$", (DOCS / page).read_text(), flags=re.MULTILINE)[1]
    rows = re.search(r"^\|.*\n\|[-|]+\n((?:\|.*\n)+)", section, re.MULTILINE)
    assert rows
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1].splitlines()]


def first_cells(page: str, heading: str) -> list[str]:
    """Return the names in the first column of a table."""
    return [name for row in table(page, heading) for name in re.findall(r"`([^`]+)`", row[0])]


def test_the_catalogue_of_faults_is_the_programs() -> None:
    def phases(given: tuple[str, ...]) -> str:
        if set(given) == set(PHASES):
            return f"`{given[0]}`, `{given[1]}`, or any other"
        return ", ".join(f"`{phase}`" for phase in given)

    assert table("faults.md", "Catalogue") == [
        [f"`{kind.name}`", kind.description, ", ".join(kind.roles), phases(kind.phases), f"`{kind.outcome}`"]
        for kind in CATALOGUE.values()
    ]


@pytest.mark.parametrize(
    ("heading", "keys"),
    [
        ("The whole", REPORT),
        ("A scenario", SCENARIO),
        ("A link", SCENARIO["links"][0]),
        ("A worker", SCENARIO["workers"][0]),
    ],
)
def test_every_field_of_the_report_is_described(heading: str, keys: dict[str, object]) -> None:
    assert sorted(first_cells("report.md", heading)) == sorted(keys)


def codes() -> set[str]:
    """Return the reason codes that the program's source names: in `MEANING`, in ends, in refusals."""
    found = {code for _, _, code in player.MEANING}
    for tree in sources().values():
        for node in ast.walk(tree):
            values: list[ast.expr] = []
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "End":
                values = node.args[2:3]
            elif isinstance(node, ast.keyword) and node.arg in ("code", "refusal_code", "reason_code"):
                values = [node.value]
            found |= {str(value.value) for value in values if isinstance(value, ast.Constant)}
    return found


def test_every_reason_code_is_described() -> None:
    described = first_cells("report.md", "Reason codes")
    assert len(described) == len(set(described))
    assert codes() <= set(described)
    text = "\n".join(path.read_text() for path in (ROOT / "dmabuf_mp").rglob("*.py"))
    assert [code for code in described if f'"{code}"' not in text] == []


def test_every_class_of_mismatch_is_described() -> None:
    named = re.findall(r"`([^`]+)`", (inspect.getdoc(mismatch.explain) or "").split("The kinds are")[1])
    assert set(named) == set(first_cells("report.md", "Classes of mismatch"))


def test_the_house_is_whole() -> None:
    described = first_cells("how_it_works.md", "The house")
    there = {entry.partition(".")[0] for entry in ORDER if entry != "."}
    assert set(described) == {
        name if not (ROOT / "dmabuf_mp" / name).is_dir() else f"{name}/" for name in there
    }


def test_every_argument_of_run_is_described() -> None:
    arguments = inspect.signature(api.run).parameters
    assert set(first_cells("python.md", "From Python")) == set(arguments) - {"scenarios"}


def test_the_readme_knows_every_memory_and_importer() -> None:
    text = README.read_text()
    for static in backends.paths().values():
        for name in (*static.exports, *static.imports):
            assert f"`{name}`" in text
