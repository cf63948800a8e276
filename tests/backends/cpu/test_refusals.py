"""Error numbers become the error of whoever is at fault, with what would help."""

from __future__ import annotations

import errno
import grp
import os
from typing import TYPE_CHECKING

import pytest

from dmabuf_mp.backends.cpu.refusals import opening, translated
from dmabuf_mp.errors import DriverError, ResourceRefused, Unsupported

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("number", "kind", "said"),
    [
        (524, Unsupported, "call: not supported (errno 524)"),
        (errno.ENOTTY, Unsupported, "call: Inappropriate ioctl for device (errno ENOTTY)"),
        (errno.ENODEV, Unsupported, "call: No such device (errno ENODEV)"),
        (errno.ENOSYS, Unsupported, "call: Function not implemented (errno ENOSYS)"),
        (errno.EMFILE, ResourceRefused, "call: the limit of open files ("),
        (errno.ENFILE, ResourceRefused, "/proc/sys/fs/file-max"),
        (errno.ENOMEM, ResourceRefused, "call: no memory, or beyond the limit of address space ("),
        (errno.ENOSPC, ResourceRefused, "call: no space left"),
        (errno.EINVAL, DriverError, "call: Invalid argument (errno EINVAL)"),
        (errno.EACCES, DriverError, "call: Permission denied (errno EACCES)"),
    ],
)
def test_error_numbers(number: int, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind) as raised, translated("call"):
        raise OSError(number, os.strerror(number))
    assert type(raised.value) is kind
    assert said in str(raised.value)
    assert isinstance(raised.value.__cause__, OSError)


def test_other_errors_pass_untouched() -> None:
    with pytest.raises(KeyError), translated("call"):
        raise KeyError
    with pytest.raises(Unsupported, match=r"^mine$"), opening("/dev/x", "CONFIG_X"):
        raise Unsupported("mine")


def test_an_absent_node_names_the_kernels_option(tmp_path: Path) -> None:
    node = str(tmp_path / "node")
    with (
        pytest.raises(Unsupported, match=f"no {node}: it needs a kernel with CONFIG_X"),
        opening(node, "CONFIG_X"),
    ):
        os.open(node, os.O_RDWR)


def refusal(node: Path, mode: int, gid: int) -> str:
    """Return what is said of a file of that mode and group that the kernel has refused to open."""
    node.touch()
    os.chown(node, 0, gid)
    node.chmod(mode)
    with pytest.raises(Unsupported) as refused, opening(str(node), "CONFIG_X"):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return str(refused.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hand a file to another group")
def test_a_closed_node_names_its_group_or_the_udev_rule(tmp_path: Path) -> None:
    group = next(entry for entry in grp.getgrall() if entry.gr_gid not in (0, 65534))
    said = refusal(tmp_path / "udmabuf", 0o600, 0)
    assert "(mode 0600, group root)" in said
    assert 'udev rule in /etc/udev/rules.d: KERNEL=="udmabuf", GROUP="video", MODE="0660"' in said
    said = refusal(tmp_path / "udmabuf", 0o660, group.gr_gid)
    assert said.endswith(f"(mode 0660, group {group.gr_name}): join the group {group.gr_name}")
    assert "group 54321" in refusal(tmp_path / "udmabuf", 0o660, 54321)
