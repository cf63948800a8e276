"""Builds the software CUDA driver, a test double, and says in which environment a process runs on it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
BUILD = SOURCES / "build"


def build() -> Path:
    """Compile what has changed, one process at a time, and return the folder with the libraries.

    Raises RuntimeError with what is missing, or with the compiler's words.
    """
    if missing := [tool for tool in ("gcc", "make") if not shutil.which(tool)]:
        raise RuntimeError(f"the software CUDA driver needs {' and '.join(missing)} to build")
    lock = os.open(SOURCES, os.O_RDONLY | os.O_CLOEXEC)  # the folder itself, which may be read-only
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = ["make", "-s", "-C", str(SOURCES)]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        os.close(lock)
    if made.returncode:
        raise RuntimeError(f"the software CUDA driver does not build:\n{made.stdout}{made.stderr}")
    return BUILD


def environment(**switches: str | int) -> dict[str, str]:
    """Return the variables to add for a process on the double: `environment(PRESET="h200", ATTR_146=1)`.

    README.md lists the switches. They work only in a process that is started with them: the loader reads
    its paths at exec.
    """
    folder = build()
    paths = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {
        "LD_LIBRARY_PATH": ":".join(paths),
        "LD_PRELOAD": "libfakecuda_preload.so",  # without its path, which may hold a space: that parts names
        **{f"FAKECUDA_{name}": str(value) for name, value in switches.items()},
    }
