"""The request numbers, computed from the structs' layouts, are those of the kernel's headers."""

from __future__ import annotations

import fcntl
from typing import TYPE_CHECKING

import pytest

from dmabuf_mp.linux import dma_heap, dmabuf, ioctl, memfd, udmabuf

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize(
    ("computed", "header"),
    [
        (dmabuf.DMA_BUF_IOCTL_SYNC, 0x40086200),
        (dmabuf.DMA_BUF_SET_NAME_B, 0x40086201),
        (dmabuf.DMA_BUF_IOCTL_EXPORT_SYNC_FILE, 0xC0086202),
        (dmabuf.DMA_BUF_IOCTL_IMPORT_SYNC_FILE, 0x40086203),
        (dma_heap.DMA_HEAP_IOCTL_ALLOC, 0xC0184800),
        (udmabuf.UDMABUF_CREATE, 0x40187542),
    ],
)
def test_request_numbers(computed: int, header: int) -> None:
    assert f"{computed:#x}" == f"{header:#x}"


def test_seals_have_the_numbers_that_python_knows() -> None:
    for name in ("F_ADD_SEALS", "F_GET_SEALS", "F_SEAL_SEAL", "F_SEAL_SHRINK", "F_SEAL_GROW"):
        assert getattr(memfd, name) == getattr(fcntl, name, getattr(memfd, name))


def test_an_interrupted_call_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: Iterator[int | OSError] = iter([InterruptedError(), BlockingIOError(), 7])

    def scripted_ioctl(*_: object) -> int:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(fcntl, "ioctl", scripted_ioctl)
    assert ioctl.call(0, 0, bytearray()) == 7
