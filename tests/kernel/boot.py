#!/usr/bin/env python3
"""Runs a command on a real Linux kernel, under QEMU's software emulation.

The guest sees this machine's files, read-only over virtiofs, so nothing is installed and no
image is built; /tmp, /run and /dev/shm are fresh, and --keep makes one folder writable.  The
command runs as root in the current folder, which is there wherever it lies, with PATH and what
--env sets.  Its output comes through as it is written, and its exit code is the exit code, but for

  124  the time was up, and the guest was ended,
  125  the guest ended without an exit code (a panic, a restart), or could not be started;

both print the last lines of the guest's console.  Needs root.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import prepare

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

TIMED_OUT = 124
NO_STATUS = 125
CONSOLE_LINES = 40

# One processor: with two, emulated by two threads, about 1 boot in 50 panicked.
# Without erms and fsrm the kernel copies in loops, which emulate faster than `rep movsb`.
MACHINE = (
    *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
    *("-machine", "q35,memory-backend=memory", "-accel", "tcg", "-cpu", "max,-erms,-fsrm", "-smp", "1"),
)
# It can only chroot to /, not make it the root of a new namespace; read_only_namespace() is in place of that.
SHARE_ALL_FILES = (prepare.VIRTIOFSD, "-f", "-o", "source=/,cache=always,sandbox=chroot,log_level=err")
KERNEL_PARAMETERS = (
    "console=ttyS0 quiet panic=-1 reboot=t mitigations=off nokaslr tsc=reliable init_on_alloc=0"
    " apparmor=0 audit=0 cryptomgr.notests"
)

# From linux/prctl.h, linux/sched.h, linux/mount.h, linux/fcntl.h and asm/unistd_64.h.
PR_SET_PDEATHSIG = 1
CLONE_NEWNS = 0x00020000
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18
MOUNT_ATTR_RDONLY = 1
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
SYS_MOUNT_SETATTR = 442

IN_GUEST = "/root"  # where the guest has this machine's files while it mounts what belongs over them
FRESH = [Path(name) for name in ("/", "/tmp", "/run", "/dev/shm")]  # what it has of its own

libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to run in which guest."""

    command: tuple[str, ...]
    release: str = "6.12"
    keep: Path | None = None  # a folder that is writable in the guest
    environment: tuple[str, ...] = ()  # each NAME=VALUE
    timeout_s: float = 600.0
    memory: str = "2G"

    def script(self) -> str:
        """The job as shell commands, for the guest's first program."""
        variables = [f"PATH={os.environ['PATH']}", *self.environment]
        return f"cd {shlex.quote(str(Path.cwd()))} && exec env {shlex.join([*variables, *self.command])}\n"


class MemoryFile:
    """A file without a name, for a program that wants a path; gone with its last user."""

    def __init__(self, stack: ExitStack, content: bytes = b"") -> None:
        self.fd = os.memfd_create("guest")
        stack.callback(os.close, self.fd)
        self.path = f"/proc/self/fd/{self.fd}"  # in a child that was given the fd
        self._read = 0
        with open(self.fd, "wb", closefd=False) as file:
            file.write(content)

    def read(self) -> bytes:
        """What was written since the last call."""
        content = os.pread(self.fd, os.fstat(self.fd).st_size - self._read, self._read)
        self._read += len(content)
        return content


def boot(job: Job) -> int:
    """Boots a guest, runs the job in it, and returns the job's exit code, 124 or 125.

    The guest's processes end with this call, and with the calling thread, however that ends.
    Nothing of them is on disk.  Raises CannotBoot where the kernel cannot be had.
    """
    if os.geteuid() != 0:
        raise prepare.CannotBoot("sharing this machine's files with the guest needs root: run it with sudo")
    folder = prepare.prepare(job.release)
    files: dict[str, bytes | None] = {"job": job.script().encode()}
    here = Path.cwd()
    if here not in FRESH:
        files["show"] = f"{IN_GUEST}{here}".encode()
    if job.keep:
        files["keep"] = f"{IN_GUEST}{job.keep}".encode()
    with ExitStack() as stack:
        initramfs = MemoryFile(stack, (folder / "initramfs").read_bytes() + prepare.pack(files))
        output, status, console, log = (MemoryFile(stack) for _ in range(4))
        share = share_files(stack, job.keep, log)
        devices = {
            # Shared memory: virtiofsd reads and writes the guest's pages.
            "-object": [f"memory-backend-memfd,id=memory,size={job.memory},share=on"],
            "-chardev": [
                f"file,id=output,path={output.path}",
                f"file,id=status,path={status.path}",
                f"file,id=console,path={console.path}",
                f"socket,id=share,fd={share.fileno()}",
            ],
            "-device": [
                "virtio-serial-pci",  # first: in the guest its ports are /dev/vport0p1 and /dev/vport0p2
                "virtserialport,nr=1,chardev=output",
                "virtserialport,nr=2,chardev=status",
                "vhost-user-fs-pci,queue-size=1024,chardev=share,tag=host",
            ],
            "-serial": ["chardev:console"],
            "-m": [job.memory],
            "-kernel": [str(folder / "vmlinux")],
            "-initrd": [initramfs.path],
            "-append": [KERNEL_PARAMETERS],
        }
        options = [word for option, values in devices.items() for value in values for word in (option, value)]
        qemu = start(
            stack,
            ["qemu-system-x86_64", *MACHINE, *options],
            pass_fds=(share.fileno(), initramfs.fd, output.fd, status.fd, console.fd),
        )
        share.close()
        in_time = copy_until_exit(qemu, output, time.monotonic() + job.timeout_s)
        if code := status.read():
            return int(code)
        if in_time:
            say(f"the guest ended without an exit code (QEMU's: {qemu.returncode})")
        else:
            say(f"the guest was ended after {job.timeout_s:g} s")
        lines = (log.read() + console.read()).decode(errors="replace").splitlines()
        say("\n  ".join(["the end of the guest's console:", *lines[-CONSOLE_LINES:]]))
        return NO_STATUS if in_time else TIMED_OUT


def share_files(stack: ExitStack, keep: Path | None, log: MemoryFile) -> socket.socket:
    """Starts virtiofsd on this machine's files; returns the connection for QEMU."""
    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind("")  # a free name outside the file system
    listener.listen(1)
    start(
        stack,
        [*SHARE_ALL_FILES, f"--fd={listener.fileno()}"],
        pass_fds=(listener.fileno(),),
        stderr=log.fd,
        before_exec=lambda: read_only_namespace(keep),
    )
    connection = stack.enter_context(socket.socket(socket.AF_UNIX))
    connection.connect(listener.getsockname())
    return connection


def start(
    stack: ExitStack,
    command: list[str],
    *,
    pass_fds: tuple[int, ...] = (),
    stdout: int | None = None,
    stderr: int | None = None,
    before_exec: Callable[[], None] = lambda: None,
) -> subprocess.Popen[bytes]:
    """Starts a program that ends with the stack, and with this thread."""
    parent = os.getpid()

    def prepare_child() -> None:
        check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
        if os.getppid() != parent:  # it ended before the call
            os._exit(1)
        before_exec()

    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        pass_fds=pass_fds,
        preexec_fn=prepare_child,
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def read_only_namespace(keep: Path | None) -> None:
    """Makes all files read-only for this process and its children, but for one folder.

    Read-only mounts in the guest would not do: root in the guest can mount them again.
    """

    class MountAttr(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint64) for name in ("attr_set", "attr_clr", "propagation", "userns_fd")]

    def set_attributes(path: bytes, flags: int, attributes: MountAttr) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(attributes))
        check(libc.syscall(SYS_MOUNT_SETATTR, AT_FDCWD, path, flags, ctypes.byref(attributes), size))

    check(libc.unshare(CLONE_NEWNS))
    check(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None))
    if keep:
        check(libc.mount(bytes(keep), bytes(keep), None, MS_BIND, None))
    set_attributes(b"/", AT_RECURSIVE, MountAttr(attr_set=MOUNT_ATTR_RDONLY))
    if keep:
        set_attributes(bytes(keep), 0, MountAttr(attr_clr=MOUNT_ATTR_RDONLY))


def check(result: int) -> None:
    """Raises the OSError of a C call that failed."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def copy_until_exit(qemu: subprocess.Popen[bytes], output: MemoryFile, deadline: float) -> bool:
    """Passes the guest's output on until QEMU ends; False if it had to be ended at the deadline."""
    in_time = True
    while qemu.returncode is None:
        with suppress(subprocess.TimeoutExpired):
            qemu.wait(0.05)
        if qemu.returncode is None and time.monotonic() > deadline:
            in_time = False
            qemu.kill()
        sys.stdout.buffer.write(output.read())
        sys.stdout.buffer.flush()
    return in_time


def say(text: str) -> None:
    """Something about the guest, on standard error."""
    print(f"boot: {text}", file=sys.stderr, flush=True)


def unwind_on_signals() -> None:
    """Makes the signals that end a program unwind it, so that its guest is ended too."""

    def unwind(number: int, _frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, unwind)


def main() -> int:
    """Boots one guest for the command line's command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--kernel-release", choices=prepare.KERNELS, default="6.12", help="default: %(default)s")
    option("--keep", type=Path, metavar="DIR", help="a folder that is writable in the guest")
    option("--env", action="append", default=[], metavar="NAME=VALUE", help="a variable for the guest")
    option("--timeout", type=float, default=600.0, metavar="SECONDS", help="default: %(default)s")
    option("--memory", default="2G", help="the guest's memory (default: %(default)s)")
    option("command", nargs="+", help="after --")
    arguments = parser.parse_args()
    unwind_on_signals()
    try:
        return boot(
            Job(
                command=tuple(arguments.command),
                release=arguments.kernel_release,
                keep=arguments.keep and arguments.keep.resolve(strict=True),
                environment=tuple(arguments.env),
                timeout_s=arguments.timeout,
                memory=arguments.memory,
            )
        )
    except (prepare.CannotBoot, OSError, subprocess.SubprocessError) as error:
        say(str(error))
        return NO_STATUS


if __name__ == "__main__":
    sys.exit(main())
