"""What this machine's own memory can do, known without looking at the machine."""

from __future__ import annotations

from dmabuf_mp.backends.base import Option, Paths

LINUX_EXPORTS = {"udmabuf": ("dmabuf",), "dma_heap": ("dmabuf",), "memfd": ("memfd",)}
LINUX_OPTIONS = (
    Option("heap", str, "system", ("dma_heap",), "The heap's name: the file's in /dev/dma_heap."),
)


def selector_error(selector: str) -> str | None:
    """Say what is wrong with a device selector that starts with `cpu`, or None."""
    return None if selector == "cpu" else f"unknown device {selector!r}: the CPU is 'cpu', without a number"


PATHS = Paths(
    prefix="cpu",
    default_memory=("udmabuf", "dma_heap", "memfd"),
    exports=LINUX_EXPORTS,
    imports={
        "mmap": (
            ("udmabuf", "dmabuf"),
            ("dma_heap", "dmabuf"),
            ("memfd", "memfd"),
            ("pinned", "dmabuf"),
            ("device", "dmabuf"),
        ),
    },
    selector_error=selector_error,
    selector_help="cpu",
    options=LINUX_OPTIONS,
)
