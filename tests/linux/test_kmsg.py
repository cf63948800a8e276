"""The kernel's log: its records, and which of them tell of a fault."""

from __future__ import annotations

import errno
import os
import secrets

import pytest

from dmabuf_mp.linux import kmsg
from dmabuf_mp.linux.kmsg import Record


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (
            b"6,401,2626507964,-;python[7298]: segfault at 0 ip 0 sp 0 error 4\n",
            Record(2626.507964, "info", "python[7298]: segfault at 0 ip 0 sp 0 error 4"),
        ),
        (
            b"3,12,5,-,caller=T1;usb 1-1: a, b; c\n SUBSYSTEM=usb\n DEVICE=+usb:1-1\n",
            Record(5e-6, "error", "usb 1-1: a, b; c"),
        ),
        (b"12,1,7000000,c;from a program \xff\n", Record(7.0, "warning", "from a program �")),
        (b"15,1,0,-;\n", Record(0.0, "debug", "")),
    ],
)
def test_a_record_is_taken_apart(raw: bytes, expected: Record) -> None:
    assert kmsg.parse(raw) == expected


FAULTS = (
    "DMAR: [DMA Read NO_PASID] Request device [3b:00.0] fault addr 0xffff0000 [fault reason 0x06]",
    "nvidia 0000:41:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x000a address=0x10 flags=0x0030]",
    "arm-smmu-v3 arm-smmu-v3.0.auto: Unhandled context fault: fsr=0x402",
    "NVRM: Xid (PCI:0000:0f:00): 31, pid=4217, name=python, Ch 00000008, MMU Fault",
    "Out of memory: Killed process 412 (python) total-vm:8389984kB",
    "python invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0",
    "Memory cgroup out of memory: Killed process 412 (python)",
    "BUG: unable to handle page fault for address: ffffa0",
    "Oops: 0002 [#1] PREEMPT SMP NOPTI",
    "traps: python[7] general protection fault ip:7f sp:7f error:0 in libcuda.so.1",
    "watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [python:412]",
    "INFO: task python:412 blocked for more than 120 seconds.",
    "mce: [Hardware Error]: Machine check events logged",
)
NO_FAULTS = (
    "DMAR: IOMMU enabled",
    "AMD-Vi: Interrupt remapping enabled",
    "iommu: Default domain type: Translated",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04",
    "[drm] Initialized vgem 1.0.0 for vgem on minor 0",
    "python[7298]: segfault at 0 ip 0 sp 0 error 4",
)


def test_faults_are_told_from_the_rest() -> None:
    def found(messages: tuple[str, ...]) -> list[str]:
        return [message for message in messages if Record(0.0, "info", message).is_fault]

    assert found(FAULTS) == list(FAULTS)
    assert found(NO_FAULTS) == []


def test_records_that_were_overwritten_are_passed_over_and_the_end_is_the_end() -> None:
    answers = [
        b"6,1,0,-;one\n",
        OSError(errno.EPIPE, ""),
        b"6,9,0,-;two\n",
        BlockingIOError(errno.EAGAIN, ""),
    ]

    def read(fd: int, length: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    assert [record.message for record in kmsg.records(-1, read)] == ["one", "two"]
    assert answers == []


def write_to_kernel_log(message: str) -> None:
    """Have the kernel log a line, or skip the test where this process may not."""
    try:
        fd = os.open(kmsg.KMSG, os.O_WRONLY)
    except OSError as error:
        pytest.skip(f"{kmsg.KMSG} may not be written: {error.strerror}")
    with os.fdopen(fd, "wb", buffering=0) as file:
        file.write(message.encode() + b"\n")


def test_what_is_logged_after_opening_or_skipping_is_read_once_and_in_order() -> None:
    one, two, skipped, last = (f"dmabuf-mp test {secrets.token_hex(8)}" for _ in range(4))
    write_to_kernel_log("<6>before")
    log = kmsg.open_at_end()
    if log is None:
        pytest.skip(f"{kmsg.KMSG} may not be read")
    with log:
        write_to_kernel_log(f"<4>{one}")
        write_to_kernel_log(f"<6>{two}")
        # Others may log too.
        ours = [r for r in kmsg.records(log.fileno()) if r.message in ("before", one, two)]
        assert [(r.level, r.message) for r in ours] == [("warning", one), ("info", two)]
        assert ours[0].since_boot_s <= ours[1].since_boot_s
        write_to_kernel_log(skipped)
        kmsg.skip(log.fileno())
        write_to_kernel_log(last)
        messages = [record.message for record in kmsg.records(log.fileno())]
        assert last in messages
        assert skipped not in messages
