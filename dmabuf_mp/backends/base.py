"""What a backend is: the seam between the dialogue and what a kind of device can do.

`Paths` is a backend's static half: it needs no driver, and the schema, `check` and the planner are
built from it. `Backend` and `Device` are its live half, used by workers only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from dmabuf_mp.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dmabuf_mp.fds import Fd
    from dmabuf_mp.model import DeviceInfo, Json, Path
    from dmabuf_mp.patterns import Pattern


@dataclass(frozen=True, slots=True)
class Option:
    """A key of a role that only one backend's memories know; `type` is `str`, `int` or `bool`."""

    name: str
    type: type
    default: Json
    memories: tuple[str, ...]
    description: str


def resolve_by_name(selector: str, devices: tuple[DeviceInfo, ...]) -> DeviceInfo:
    """Return the device whose canonical selector this is; raises Unsupported with what is there."""
    for info in devices:
        if info.selector == selector:
            return info
    there = ", ".join(info.selector for info in devices) or "none"
    raise Unsupported(f"no device {selector!r} on this machine; there is {there}")


def always_qualifies(memory: str, producer: DeviceInfo, consumer: DeviceInfo) -> bool:
    """Say that any pair of devices may be tried."""
    return True


@dataclass(frozen=True, slots=True)
class Paths:
    """What a backend's devices can allocate, export and import, known without any driver.

    `exports` maps each memory to the handles it can be named by, best first, in order of preference;
    `imports` maps each importer to the (memory, handle) pairs it can read; `default_memory` is tried
    where the author named none; `by_name_only` paths are never entered on our own accord.
    `selector_error` says what is wrong with a device selector, or None. `resolve` picks the device that a
    selector names among those that are there, or raises Unsupported. `qualifies` says whether, by their
    attributes alone, a pair of devices can share a memory; it only orders the search. `start_driver` begins
    in a worker what takes the driver longest, while the live half is being imported; it reports nothing.
    """

    prefix: str
    default_memory: tuple[str, ...]
    exports: Mapping[str, tuple[str, ...]]
    imports: Mapping[str, tuple[tuple[str, str], ...]]
    selector_error: Callable[[str], str | None]
    selector_help: str
    resolve: Callable[[str, tuple[DeviceInfo, ...]], DeviceInfo] = resolve_by_name
    qualifies: Callable[[str, DeviceInfo, DeviceInfo], bool] = always_qualifies
    by_name_only: frozenset[Path] = frozenset()
    options: tuple[Option, ...] = ()
    start_driver: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Offer:
    """What a producer says of the fd it sends: sizes and offset in bytes, and where the memory lives.

    `writable` is the importer's own wish: a reader's mapping is read-only where the importer can do that.
    """

    size_bytes: int
    allocated_bytes: int
    offset_bytes: int
    memory: str
    handle: str
    device_uuid: str | None = None
    writable: bool = True


class CheckCounts(NamedTuple):
    """What a check found, in positions (words and tail bytes); no first offset without a mismatch."""

    matched: int
    mismatched: int
    first_offset_bytes: int | None = None


class Buffer(Protocol):
    """Memory as this process can touch it: `size_bytes` of shared range, from its first byte."""

    size_bytes: int

    @property
    def closed(self) -> bool:
        """Whether the allocation or the import has been undone."""

    def close(self) -> None:
        """Undo the allocation or the import; once is enough, twice does no harm."""


class Allocation(Buffer, Protocol):
    """A buffer that this process allocated, and can name by an fd.

    `notes` says what went otherwise than asked, or than the driver had announced.
    """

    allocated_bytes: int
    offset_bytes: int
    notes: list[str]

    def export(self, handle: str) -> Fd:
        """Return a new fd for it; the caller owns the fd. Raises Unsupported."""


_Given = TypeVar("_Given", bound=Buffer)


class Given:
    """What a device has given out: each buffer, with what it is, until it is closed."""

    def __init__(self) -> None:
        self._buffers: set[tuple[str, Buffer]] = set()

    def add(self, what: str, buffer: _Given) -> _Given:
        """Count a buffer, and return it; it is kept, so that to forget it is not to close it."""
        self._buffers -= {one for one in tuple(self._buffers) if one[1].closed}
        self._buffers.add((f"{what}, {buffer.size_bytes} bytes", buffer))
        return buffer

    def held(self) -> Mapping[str, int]:
        """Return how many buffers of which kind are not closed."""
        return Counter(what for what, buffer in self._buffers if not buffer.closed)


class Device(Protocol):
    """One device, opened in this process. Every call is finished when it returns."""

    info: DeviceInfo

    def allocate(self, memory: str, size_bytes: int, options: Mapping[str, Json]) -> Allocation:
        """Allocate, poisoned with 0xFF. Raises Unsupported where this machine cannot."""

    def import_fd(self, importer: str, fd: Fd, offer: Offer) -> Buffer:
        """Turn an fd into something readable; takes the fd. Raises Unsupported or WrongBuffer."""

    def fill(self, buffer: Buffer, pattern: Pattern, t: int) -> None:
        """Write every word and tail byte of the pattern's step t."""

    def check(self, buffer: Buffer, pattern: Pattern, t: int) -> CheckCounts:
        """Compare every word and tail byte with the pattern's step t."""

    def read(self, buffer: Buffer, offset_bytes: int, length: int) -> bytes:
        """Read a part, for looking closer at a mismatch."""

    def write(self, buffer: Buffer, offset_bytes: int, data: bytes) -> None:
        """Write a part."""

    def copy(self, source: Buffer, target: Buffer) -> None:
        """Copy the shared range of one buffer into another of the same size."""

    def held(self) -> Mapping[str, int]:
        """Return what `allocate` and `import_fd` gave out and was not closed: how many of which kind."""

    def free_bytes(self) -> int | None:
        """Return how much of the device's own memory is free, whoever uses the rest; None if it has none."""

    def close(self) -> None:
        """Give back what opening took."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """What one backend sees on this machine: its devices in order, or why it sees none."""

    devices: tuple[DeviceInfo, ...] = ()
    reason: str = ""
    host: Mapping[str, Json] = field(default_factory=dict)


class Backend(Protocol):
    """A backend's live half, made by `backends.load(prefix)` in a worker."""

    def inventory(self) -> Inventory:
        """Initialise the driver, once, and say what is there. A machine without one gets a reason."""

    def open(self, selector: str) -> Device:
        """Open one device by its canonical selector (`cpu`, `cuda:0`). Raises Unsupported."""
