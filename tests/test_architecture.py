"""Imports point one way: down this list, and never across what must not know each other."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "dmabuf_mp"
# From the top down. A name is a module, or a folder with all that is in it; `.` is the package itself.
ORDER = (
    "__main__",
    "cli",
    "arguments",
    "hints",
    ".",
    "api",
    "embedded",
    "selftest",
    "inventory",
    "scenario",
    "select",
    "orchestrator",
    "reports",
    "plan",
    "worker",
    "player",
    "faults",
    "roles",
    "context",
    "dialogue",
    "assignment",
    "ledger",
    "findings",
    "evidence",
    "mismatch",
    "wire",
    "board",
    "backends.cuda",
    "backends.cpu",
    "backends",
    "backends.base",
    "linux",
    "fds",
    "patterns",
    "model",
    "sizes",
    "errors",
)
LEAVES = {"board", "fds", "model", "patterns", "sizes", "errors", "linux.ioctl", "linux.process"}
STRANGERS = [("scenario", "orchestrator"), ("orchestrator", "reports"), ("plan", "wire"), ("roles", "linux")]
MAX_LINES = 400

Graph = dict[str, set[str]]


def sources() -> dict[str, ast.Module]:
    """Return every module's syntax by its name below the package."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix("__init__").rstrip(".") or "."] = ast.parse(path.read_text())
    return found


def imported(tree: ast.Module) -> set[str]:
    """Return every full name that a module imports, wherever and for whatever it does so."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def graph() -> Graph:
    """Return which modules of the package each one imports."""
    modules = sources()
    result: Graph = {}
    for name, tree in modules.items():
        result[name] = set()
        for full in imported(tree):
            package, _, inner = full.partition(".")
            if package == "dmabuf_mp" and inner not in ("", "__version__"):
                result[name].add(inner if inner in modules else inner.rpartition(".")[0] or ".")
    return result


def unit(name: str) -> str:
    """Return the entry of ORDER that a module belongs to, the longest that fits."""
    fitting = [entry for entry in ORDER if name == entry or name.startswith(f"{entry}.")]
    return max(fitting, key=len, default=f"{name}, which is not in the list")


def upward(imports: Graph) -> list[str]:
    """Return the imports that do not point down."""
    ranks = {entry: rank for rank, entry in enumerate(ORDER)}
    return [
        f"{name} imports {target}"
        for name, targets in imports.items()
        for target in targets
        if unit(name) != unit(target) and ranks.get(unit(name), 99) >= ranks.get(unit(target), -1)
    ]


def acquainted(imports: Graph) -> list[str]:
    """Return the imports between two that must not know each other."""
    return [
        f"{name} imports {target}"
        for name, targets in imports.items()
        for target in targets
        for pair in STRANGERS
        if {unit(name), unit(target)} == set(pair)
    ]


def test_imports_point_down() -> None:
    assert upward(graph()) == []


def test_every_module_has_its_place() -> None:
    assert {unit(name) for name in graph()} <= set(ORDER)


def test_strangers_do_not_know_each_other() -> None:
    assert acquainted(graph()) == []


def test_leaves_import_nothing_of_the_package() -> None:
    imports = graph()
    assert {leaf: imports[leaf] for leaf in LEAVES} == {leaf: set() for leaf in LEAVES}


def test_only_the_cuda_backend_imports_cuda() -> None:
    importers = {
        name
        for name, tree in sources().items()
        if any(full.split(".")[0] in ("cuda", "pynvml") for full in imported(tree))
    }
    assert {unit(name) for name in importers} <= {"backends.cuda"}


def test_only_workers_load_the_live_half_of_a_backend() -> None:
    for name, targets in graph().items():
        live = {
            target
            for target in targets
            if unit(target) in ("backends.cpu", "backends.cuda") and not target.endswith(".paths")
        }
        # A worker imports `evidence`, after a mismatch: it takes the CPU's way to make a pattern.
        assert not live or name.startswith(("backends.", "evidence")), f"{name} imports {live}"
    loaded = {
        (unit(name), ast.unparse(node.args[0]))
        for name, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "backends.load"
    }
    # The orchestrator loads numpy for its workers, which is no driver.
    assert {argument for name, argument in loaded if name != "worker"} <= {"'cpu'"}
    assert "worker" in {name for name, _ in loaded}


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_can_be_read_in_one_go(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


def test_the_checks_can_fail() -> None:
    assert upward({"model": {"errors"}, "fds": {"wire"}}) == ["fds imports wire"]
    assert upward({"backends.cpu.device": {"backends.cuda.driver"}}) != []
    assert upward({"backends.cuda.driver": {"backends.cpu.device", "backends.cuda.device"}}) == []
    assert upward({"new": {"errors"}}) != []
    assert acquainted({"scenario.read": {"orchestrator.loop"}}) == ["scenario.read imports orchestrator.loop"]
    assert imported(ast.parse("def f():\n  if x:\n    from cuda.bindings import driver")) == {
        "cuda.bindings.driver"
    }
