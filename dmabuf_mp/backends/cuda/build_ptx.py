"""Build kernels.ptx from kernels.cu: `python -m dmabuf_mp.backends.cuda.build_ptx [--check]`.

The compiler is NVRTC 12.0 (`pip install nvidia-cuda-nvrtc-cu12==12.0.140`), not the newest: PTX names the
version of its language, a driver refuses one newer than itself, and 12.0 writes PTX 8.0, which every
driver since 525 loads. The target is the least compute capability that we serve, 7.5.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import sys
from importlib.metadata import distribution
from pathlib import Path

from dmabuf_mp.errors import Unsupported

COMPILER = ("nvidia-cuda-nvrtc-cu12", "12.0.140")
OPTIONS = (b"--gpu-architecture=compute_75",)
SOURCE = Path(__file__).with_name("kernels.cu")
TARGET = Path(__file__).with_name("kernels.ptx")


def header(source: bytes) -> str:
    """Return the first lines of the PTX: what it was made of, and by what."""
    return (
        "// Made of kernels.cu by build_ptx.py; do not edit.\n"
        f"// kernels.cu sha256 {hashlib.sha256(source).hexdigest()}\n"
        f"// {COMPILER[0]} {COMPILER[1]}, {' '.join(option.decode() for option in OPTIONS)}\n"
    )


def _compiler() -> ctypes.CDLL:
    """Load the pinned NVRTC. Raises Unsupported where it is not installed."""
    name, version = COMPILER
    try:
        found = distribution(name)
    except ModuleNotFoundError as error:
        raise Unsupported(f"the compiler is missing: pip install {name}=={version}") from error
    if found.version != version:
        raise Unsupported(f"expected {name} {version}, found {found.version}: the PTX would differ")
    return ctypes.CDLL(str(found.locate_file("nvidia/cuda_nvrtc/lib/libnvrtc.so.12")))


def build(source: bytes) -> str:
    """Compile CUDA C++ to PTX text. Raises RuntimeError with the compiler's log."""
    nvrtc = _compiler()
    program = ctypes.c_void_p()
    options = (ctypes.c_char_p * len(OPTIONS))(*OPTIONS)
    if nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"kernels.cu", 0, None, None):
        raise RuntimeError("NVRTC could not create a program")

    def text(what: str) -> str:
        size = ctypes.c_size_t()
        getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
        return buffer.value.decode()

    try:
        if nvrtc.nvrtcCompileProgram(program, len(OPTIONS), options):
            raise RuntimeError(text("ProgramLog"))
        return header(source) + text("PTX").strip() + "\n"
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def main() -> int:
    """Write kernels.ptx, or with `--check` say whether it is what kernels.cu gives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the two differ")
    check = parser.parse_args().check
    ptx = build(SOURCE.read_bytes())
    if not check:
        TARGET.write_text(ptx)
    elif TARGET.read_text() != ptx:
        print(f"{TARGET} is not what {SOURCE.name} gives: build it anew", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
