"""Put mistakes into a copy of the program, one at a time: the tests have to find each.

    python -m tests.mutants.run [-k TEXT]

Prints which test killed which mutant. Exits with 1 where one survives, or is not there any more to be made.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.long.kill import MARK, marked
from tests.mutants import others, table

if TYPE_CHECKING:
    from tests.mutants.table import Mutant

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 180.0
MUTANTS = (*table.MUTANTS, *others.MUTANTS)


def run_tests(root: Path, arguments: str) -> tuple[int | None, str]:
    """Return the exit status of the tests in a copy, None past the limit, and the first that failed."""
    command = [sys.executable, "-m", "pytest", "-x", "-v", "-p", "no:cacheprovider", *shlex.split(arguments)]
    with subprocess.Popen(
        command,
        cwd=root,
        env={
            **os.environ,
            "PYTHONPATH": str(root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            MARK: root.name,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as child:
        try:
            output, _ = child.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired as error:
            child.kill()
            begun = (error.output or b"").decode().rpartition("/")[2].strip()
            return None, f"{begun}: no end within {LIMIT_S:g} s"
        finally:
            for pid in marked(root.name):  # what a mutant that ends no worker has left
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    found = re.search(r"^(?:FAILED|ERROR) (?:\S+/)?(\S+)", output, re.MULTILINE)
    return child.returncode, found[1] if found else output.strip()[-300:]


def kill(mutant: Mutant, root: Path) -> tuple[bool, str]:
    """Make a mutant in a copy, run its tests, and take it back; True where a test has found it."""
    path = root / "dmabuf_mp" / mutant.file
    source = path.read_text()
    if (count := source.count(mutant.old)) != 1:
        return False, f"its text is {count} times in {mutant.file}, not once"
    path.write_text(source.replace(mutant.old, mutant.new))
    try:
        status, found = run_tests(root, mutant.tests)
    finally:
        path.write_text(source)
    # 1 is pytest's status for tests that failed; any other says that the tests themselves could not be run.
    return status in (1, None), "SURVIVED" if status == 0 else found


def main() -> int:
    """Kill every mutant, and print by what."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("-k", default="", metavar="TEXT", help="only those whose name or file holds it")
    chosen = parser.parse_args().k
    wanted = [mutant for mutant in MUTANTS if chosen in mutant.name or chosen in mutant.file]
    failed = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        root = Path(name)
        for part in ("dmabuf_mp", "tests", "scenarios"):
            ignored = shutil.ignore_patterns("__pycache__", "build")
            shutil.copytree(ROOT / part, root / part, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", root)
        for tests in dict.fromkeys(mutant.tests for mutant in wanted):
            status, found = run_tests(root, tests)
            if status != 0:
                print(f"without any mutant, {tests} fails: {found}")
                return 1
        print(f"{len(wanted)} mutants; without them the tests pass", flush=True)
        for mutant in wanted:
            began = time.monotonic()
            good, by = kill(mutant, root)
            failed += not good
            said = "killed" if good else "WRONG "
            print(f"{said}  {time.monotonic() - began:5.1f} s  {mutant.name}  ←  {by}", flush=True)
    print(f"{len(wanted) - failed} of {len(wanted)} killed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
