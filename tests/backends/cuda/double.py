"""What the cases need that run on the software driver in tests/fakecuda, a test double."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dmabuf_mp import backends
from dmabuf_mp.backends.base import Offer
from dmabuf_mp.errors import DmabufMpError
from dmabuf_mp.patterns import Pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dmabuf_mp.fds import Fd

PATTERN = Pattern("random", seed=7, kappa=3)
SIZE = 2**16 + 7
CASES: dict[str, tuple[Callable[[], None], dict[str, str | int]]] = {}


def case(**switches: str | int) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function to run on the double with these switches."""

    def register(function: Callable[[], None]) -> Callable[[], None]:
        CASES[function.__name__] = function, switches
        return function

    return register


def backend() -> Any:
    return backends.load("cuda")


def exported(device: Any, memory: str, handle: str, **options: Any) -> tuple[Any, Fd, Offer]:
    allocation = device.allocate(memory, SIZE, options)
    device.fill(allocation, PATTERN, 0)
    offer = Offer(SIZE, allocation.allocated_bytes, 0, memory, handle, device.info.uuid)
    return allocation, allocation.export(handle), offer


@contextmanager
def raising(kind: type[DmabufMpError], *parts: str) -> Iterator[None]:
    """See that an error of this kind is raised, and that its text has these parts."""
    try:
        yield
    except DmabufMpError as error:
        assert isinstance(error, kind), repr(error)
        assert all(part in str(error) for part in parts), str(error)
        return
    raise AssertionError(f"no {kind.__name__} was raised")


def held(device: Any) -> tuple[list[str], int]:
    """Return what a leak would add to: this process's open fds, and the device's memory in use."""
    device.make_current()
    return sorted(fd.name for fd in Path("/proc/self/fd").iterdir()), device.cuda("cuMemGetInfo")[0]
