"""The kinds of device: every folder here with a `paths.py` is one backend, known by its prefix."""

from __future__ import annotations

import importlib
import pkgutil
import threading
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dmabuf_mp.backends.base import Backend, Paths


@cache
def paths() -> Mapping[str, Paths]:
    """Return each backend's static half by its prefix (`cpu`, `cuda`); imports no driver."""
    found: dict[str, Paths] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.ispkg:
            static: Paths = importlib.import_module(f"{__name__}.{module.name}.paths").PATHS
            found[static.prefix] = static
    return found


def prefix_of(selector: str) -> str:
    """Return the backend's prefix of a device selector: `cuda` of `cuda:1`."""
    return selector.partition(":")[0]


def of(selector: str) -> Paths:
    """Return the static half of the backend that a device selector belongs to."""
    return paths()[prefix_of(selector)]


def load(prefix: str) -> Backend:
    """Import a backend's live half (a worker's business) and return it."""
    start = paths()[prefix].start_driver
    starting = threading.Thread(target=start, name=f"{prefix} driver")
    if start is not None:
        starting.start()
    backend: Backend = importlib.import_module(f"{__name__}.{prefix}.backend").BACKEND
    if start is not None:
        starting.join()
    return backend
