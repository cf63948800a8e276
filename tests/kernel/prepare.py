#!/usr/bin/env python3
"""Fetches the Debian kernels that the tests boot, and packs an initramfs for each.

Everything lands in build/, beside this file: `build/RELEASE/vmlinux`, `initramfs` and
`package` (the name of the Debian package it came from).  What is already there is kept;
remove build/ to take the newest kernels again.
"""

from __future__ import annotations

import argparse
import lzma
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Result = TypeVar("Result")

HERE = Path(__file__).resolve().parent
BUILD = HERE / "build"
RETRY_S = 10
VIRTIOFSD = "/usr/lib/qemu/virtiofsd"

# What must be there, and the Debian package that brings it.
NEEDED = {
    "/usr/bin/qemu-system-x86_64": "qemu-system-x86",
    VIRTIOFSD: "qemu-system-x86",
    "/usr/bin/zstd": "zstd",
    "/usr/bin/gcc": "gcc",
    "/usr/lib/x86_64-linux-gnu/libc.a": "libc6-dev",
}


class CannotBoot(Exception):
    """This machine cannot make or boot the test kernels; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel to boot: which package it is, what it must be, what to load at its start."""

    package: str  # a pattern for the whole name
    config: tuple[str, ...]  # lines that its configuration must have
    modules: tuple[str, ...]  # loaded in this order, each after what it depends on

    def __repr__(self) -> str:
        return f"<Kernel {self.package}>"


KERNELS = {
    "6.12": Kernel(
        package=r"linux-image-6\.12\.\d+\+deb12-amd64-unsigned",
        config=(
            "CONFIG_UDMABUF=y",
            "CONFIG_DMABUF_HEAPS_SYSTEM=y",
            "CONFIG_SYNC_FILE=y",
            "CONFIG_VIRTIO_FS=y",
        ),
        modules=("vgem",),
    ),
    "6.1": Kernel(
        package=r"linux-image-6\.1\.0-\d+-amd64-unsigned",
        config=("# CONFIG_UDMABUF is not set", "# CONFIG_DMABUF_HEAPS is not set", "CONFIG_SYNC_FILE=y"),
        modules=("virtio_pci", "virtio_console", "virtiofs", "vgem"),
    ),
}


def prepare(release: str) -> Path:
    """Makes what is missing of one kernel, and returns its folder.

    Raises CannotBoot, or CalledProcessError where a tool that it ran failed.
    """
    folder = BUILD / release
    folder.mkdir(parents=True, exist_ok=True)
    install_needed()
    if not (folder / "package").exists():
        fetch(KERNELS[release], folder)
    initramfs = folder / "initramfs"
    sources = (HERE / "init.c", Path(__file__), folder / "package")
    newest = max(source.stat().st_mtime for source in sources)
    if not initramfs.exists() or initramfs.stat().st_mtime < newest:
        write(initramfs, pack_initramfs(folder / "modules"))
    return folder


def install_needed() -> None:
    """Installs the Debian packages that are missing; only root can."""
    missing = sorted({package for path, package in NEEDED.items() if not Path(path).exists()})
    if not missing:
        return
    install = ["apt-get", "install", "--no-install-recommends", *missing]
    if os.geteuid() != 0:
        raise CannotBoot(f"packages are missing; run: sudo {' '.join(install)}")
    say(f"installing {' '.join(missing)}")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}

    def attempt() -> None:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        subprocess.run([*install, "-qq"], check=True, stdout=subprocess.DEVNULL, env=environment)

    twice(attempt)


def twice(attempt: Callable[[], Result]) -> Result:
    """Tries a second time, a little later, what failed: a mirror may be changing at the moment."""
    try:
        return attempt()
    except subprocess.CalledProcessError as error:
        say(f"{error}; once more in {RETRY_S} s")
        time.sleep(RETRY_S)
        return attempt()


def fetch(kernel: Kernel, folder: Path) -> None:
    """Downloads the newest package of a kernel and takes vmlinux and the modules out of it."""
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=BUILD) as name:
        scratch = Path(name)
        package = twice(lambda: download_newest(kernel.package, scratch))
        (archive,) = scratch.glob("*.deb")
        subprocess.run(["dpkg-deb", "--extract", archive.name, "."], check=True, cwd=scratch)
        check_config(kernel, next(scratch.glob("boot/config-*")), package)
        write(folder / "vmlinux", unpack_kernel(next(scratch.glob("boot/vmlinuz-*")).read_bytes()))
        shutil.rmtree(folder / "modules", ignore_errors=True)
        save_modules(kernel, scratch / "lib/modules", folder / "modules")
    write(folder / "package", f"{package}\n".encode())  # last: it says that the rest is complete


def download_newest(pattern: str, folder: Path) -> str:
    """Downloads the newest package that matches, and returns its name."""
    package = newest_package(pattern)
    say(f"fetching {package}")
    # As this user: apt's own, unprivileged one cannot write here.
    download = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", package]
    subprocess.run(download, check=True, cwd=folder)
    return package


def newest_package(pattern: str) -> str:
    """The newest package that matches; versions leave the archive with each security update."""
    if os.geteuid() == 0:
        subprocess.run(["apt-get", "update", "-qq"], check=True)
    known = subprocess.run(["apt-cache", "pkgnames", "linux-image-"], check=True, stdout=subprocess.PIPE)
    names = [name for name in known.stdout.decode().split() if re.fullmatch(pattern, name)]
    if not names:
        raise CannotBoot(
            f"no package {pattern}: this needs Debian 12 on amd64, and apt-get update to have run"
        )
    return max(names, key=lambda name: [int(digits) for digits in re.findall(r"\d+", name)])


def check_config(kernel: Kernel, config: Path, package: str) -> None:
    """Refuses a kernel that is not configured as the tests need it."""
    lines = config.read_text().splitlines()
    if absent := [line for line in kernel.config if line not in lines]:
        raise CannotBoot(f"{package}: its configuration lacks {', '.join(absent)}")


def unpack_kernel(image: bytes) -> bytes:
    """The ELF inside a bzImage: it starts sooner under emulation than one that unpacks itself."""
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)  # payload_offset, payload_length
    start = (setup_sectors + 1) * 512 + offset
    payload = image[start : start + length - 4]  # its last 4 bytes are the unpacked size
    kernel = decompress(payload)
    if not kernel.startswith(b"\x7fELF"):
        raise CannotBoot(f"the kernel image unpacks to {kernel[:4]!r}, not to an ELF")
    return kernel


def decompress(data: bytes) -> bytes:
    """What an xz or zstd stream holds; anything else as it is."""
    if data.startswith(b"\xfd7zXZ"):
        return lzma.decompress(data)
    if data.startswith(b"\x28\xb5\x2f\xfd"):
        return subprocess.run(["zstd", "-dcq"], input=data, check=True, stdout=subprocess.PIPE).stdout
    return data


def save_modules(kernel: Kernel, tree: Path, target: Path) -> None:
    """Copies a kernel's modules, dependencies first, with names that sort in the order of loading."""
    files = {path.name.split(".")[0].replace("-", "_"): path for path in tree.rglob("*.ko*")}
    ordered: dict[str, bytes] = {}

    def add(name: str) -> None:
        if name in ordered or name not in files:  # what is no file is built in
            return
        module = decompress(files[name].read_bytes())
        depends = re.search(rb"\0depends=([^\0]*)\0", module)
        for dependency in depends[1].decode().split(",") if depends else ():
            add(dependency.replace("-", "_"))
        ordered[name] = module

    for name in kernel.modules:
        add(name)
    if lost := set(kernel.modules) - set(ordered):
        raise CannotBoot(f"{kernel!r}: no module {', '.join(sorted(lost))}")
    target.mkdir(parents=True)
    for number, (name, module) in enumerate(ordered.items()):
        write(target / f"{number:02}-{name}.ko", module)


def pack_initramfs(modules: Path) -> bytes:
    """The guest's first program and the kernel's modules, as an initramfs."""
    with tempfile.TemporaryDirectory(prefix="init-", dir=BUILD) as scratch:
        init = Path(scratch) / "init"
        subprocess.run(["gcc", "-O2", "-Wall", "-static", "-o", init, HERE / "init.c"], check=True)
        files = {"init": init.read_bytes(), "modules": None}
    files |= {f"modules/{path.name}": path.read_bytes() for path in sorted(modules.iterdir())}
    return pack(files)


def pack(files: dict[str, bytes | None]) -> bytes:
    """A cpio archive in the kernel's "newc" form; a name without content is a folder."""

    def entry(name: str, mode: int, content: bytes) -> bytes:
        # inode, mode, uid, gid, links, mtime, size, 4 device numbers, size of the name, checksum
        numbers = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        header = b"070701" + b"".join(b"%08X" % number for number in numbers)
        return padded(header + name.encode() + b"\0") + padded(content)

    def padded(data: bytes) -> bytes:
        return data + bytes(-len(data) % 4)

    entries = [
        entry(name, 0o040755, b"") if content is None else entry(name, 0o100755, content)
        for name, content in files.items()
    ]
    return b"".join(entries) + entry("TRAILER!!!", 0, b"")


def write(path: Path, content: bytes) -> None:
    """Writes a file that is never seen half written."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    partial.rename(path)


def say(text: str) -> None:
    """Progress, on standard error."""
    print(f"prepare: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Prepares the named kernels (all of them, where none is named)."""
    parser = argparse.ArgumentParser(description="Fetch the kernels that the tests boot.")
    parser.add_argument(
        "releases", nargs="*", metavar="RELEASE", help=f"{' or '.join(KERNELS)}; default: all"
    )
    releases = parser.parse_args().releases or list(KERNELS)
    if unknown := set(releases) - set(KERNELS):
        parser.error(f"no kernel {', '.join(sorted(unknown))}; there are {', '.join(KERNELS)}")
    try:
        for release in releases:
            folder = prepare(release)
            say(f"{release}: {(folder / 'package').read_text().strip()} in {folder}")
    except (CannotBoot, subprocess.CalledProcessError) as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
