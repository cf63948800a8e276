"""The double imports dma-bufs of the kernel's own, as a real driver does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import dmabufs
from tests.fakecuda.build import environment

pytestmark = pytest.mark.dmabuf

# Built while the tests are collected, on the host: the guest cannot write.
ENVIRONMENT = environment()

IMPORT = """
import os
from dmabuf_mp.linux import memfd, udmabuf
from tests.fakecuda import cu

with memfd.create("pages", 16384) as pages, udmabuf.open_device() as device:
    buffer = udmabuf.create(device.fileno(), pages.fileno(), 16384)
cu.start()
pointer = cu.imported(buffer.fileno(), 16384)
assert cu.code("cuImportExternalMemory", cu.external(buffer.fileno(), 16385)) == 1
buffer.close()
cu.fill(pointer, 16384)
assert cu.check(pointer, 16384) == [4096, 0, 2**64 - 1]
"""


def test_a_udmabuf_is_imported() -> None:
    dmabufs.need("/dev/udmabuf")
    command = [sys.executable, "-c", IMPORT]
    env = {**os.environ, **ENVIRONMENT}
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
