"""What CUDA devices can do, known without a driver; what a driver then really does is found by doing."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re

from dmabuf_mp.backends.base import Option, Paths
from dmabuf_mp.backends.cpu.paths import LINUX_EXPORTS, LINUX_OPTIONS
from dmabuf_mp.backends.cuda import selectors
from dmabuf_mp.model import Path

SELECTOR = re.compile(
    r"cuda:(any|other|\*|0|[1-9][0-9]{0,3}|GPU-[0-9a-fA-F][0-9a-fA-F-]{0,35}|MIG-[0-9a-zA-Z/-]+"
    r"|([0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(\.[0-7])?)"
)
SELECTOR_HELP = "cuda:N, cuda:GPU-<uuid>, cuda:MIG-<uuid>, cuda:<PCI id>, cuda:any, cuda:other or cuda:*"


def selector_error(selector: str) -> str | None:
    """Say what is wrong with a device selector that starts with `cuda`, or None."""
    if SELECTOR.fullmatch(selector):
        return None
    return f"unknown device {selector!r}: expected {SELECTOR_HELP}"


def start_driver() -> None:
    """Call cuInit, which takes as long as importing the bindings; they call it again, and report."""
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuInit(0)


PATHS = Paths(
    prefix="cuda",
    default_memory=("pinned",),
    exports={
        "pinned": ("dmabuf",),
        "device": ("dmabuf", "posix_fd"),
        "host_numa": ("posix_fd",),
        **LINUX_EXPORTS,
    },
    imports={
        "vmm": (("device", "posix_fd"), ("host_numa", "posix_fd")),
        "external_memory": (
            ("pinned", "dmabuf"),
            ("device", "dmabuf"),
            ("device", "posix_fd"),
            ("host_numa", "posix_fd"),
            ("udmabuf", "dmabuf"),
            ("dma_heap", "dmabuf"),
        ),
        "host_register": (("memfd", "memfd"), ("udmabuf", "dmabuf"), ("dma_heap", "dmabuf")),
    },
    selector_error=selector_error,
    selector_help=SELECTOR_HELP,
    resolve=selectors.resolve,
    qualifies=selectors.qualifies,
    # Measured to kill the importing process, or never to return: entered only when asked for by name.
    by_name_only=frozenset({Path("device", "posix_fd", "external_memory")}),
    options=(
        *LINUX_OPTIONS,
        Option(
            "pcie",
            bool,
            False,
            ("pinned", "device"),
            "Ask for a dma-buf that is mapped over PCIe (GPUDirect), where the driver can.",
        ),
    ),
    start_driver=start_driver,
)
