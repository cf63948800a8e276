"""What the tests of real dma-bufs need; without it they skip, or fail where a machine must have it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

MEMORIES = ("udmabuf", "dma_heap")
NODES = ("/dev/udmabuf", "/dev/dma_heap/system")


def need(*paths: str) -> None:
    """Skip the test if a path is absent; with DMABUF_MP_REQUIRE_DMABUF=1 in the environment, fail it."""
    if absent := [path for path in paths if not Path(path).exists()]:
        refuse = pytest.fail if os.environ.get("DMABUF_MP_REQUIRE_DMABUF") == "1" else pytest.skip
        refuse(f"this kernel has no {', '.join(absent)}")
