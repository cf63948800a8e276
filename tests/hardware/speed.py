"""Fill, check and copy, timed by the device's own events.

`python -m tests.hardware.speed BYTES REPEATS [BLOCKS…]`

Prints one line of JSON for each row: where the memory is, GB/s of each, medians. A sweep times the ramp's
check with that many blocks a multiprocessor.
"""

from __future__ import annotations

import json
import statistics
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

from dmabuf_mp import backends
from dmabuf_mp.backends.base import Offer
from dmabuf_mp.backends.cuda import driver
from dmabuf_mp.errors import DmabufMpError
from dmabuf_mp.patterns import Pattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from dmabuf_mp.backends.cuda.device import CudaDevice
    from dmabuf_mp.backends.cuda.memories import CudaBuffer

MEMORY_CLOCK_KHZ = 36
MEMORY_BUS_BITS = 37
WARM_UP = 3


class Timer:
    """Medians of what a device does, in GB/s."""

    def __init__(self, device: CudaDevice, size_bytes: int, repeats: int) -> None:
        self._device = device
        self._bytes = size_bytes
        self._repeats = repeats
        device.make_current()
        self._events = device.cuda("cuEventCreate", 0), device.cuda("cuEventCreate", 0)

    def rate(self, start: Callable[[], object]) -> float:
        times_ms: list[float] = []
        cuda, (before, after) = self._device.cuda, self._events
        self._device.make_current()
        for _ in range(WARM_UP + self._repeats):
            cuda("cuEventRecord", before, self._device.stream)
            start()
            cuda("cuEventRecord", after, self._device.stream)
            cuda("cuEventSynchronize", after)
            times_ms.append(cuda("cuEventElapsedTime", before, after))
        return self._bytes / max(statistics.median(times_ms[WARM_UP:]), 1e-6) / 1e6

    def close(self) -> None:
        for event in self._events:
            self._device.cuda("cuEventDestroy", event)


def measure(device: CudaDevice, where: str, buffer: CudaBuffer, copy: CudaBuffer, repeats: int) -> None:
    """Time one buffer: a copy of it into the device's own memory, fills, checks."""
    timer = Timer(device, buffer.size_bytes, repeats)
    row: dict[str, Any] = {"where": where, "bytes": buffer.size_bytes}
    ends = copy.pointer, buffer.pointer
    row["copy"] = timer.rate(partial(device.cuda, "cuMemcpyAsync", *ends, buffer.size_bytes, device.stream))
    for kind in ("ramp", "address", "random"):
        pattern = Pattern(kind)
        row[f"fill {kind}"] = timer.rate(partial(device.launch_fill, buffer, pattern, 0))
        row[f"check {kind}"] = timer.rate(partial(device.launch_check, buffer, pattern, 0))
        row[f"right {kind}"] = device.check(buffer, pattern, 0).mismatched == 0
    sweep = [int(blocks) for blocks in sys.argv[3:]]
    usual = device.blocks
    device.fill(buffer, Pattern(), 0)
    multiprocessors = device.attribute(driver.MULTIPROCESSOR_COUNT) or 1
    for blocks in sweep:
        device.blocks = blocks * multiprocessors
        row[f"x{blocks}"] = timer.rate(partial(device.launch_check, buffer, Pattern(), 0))
    device.blocks = usual
    timer.close()
    print(json.dumps(row), flush=True)


def peak(device: CudaDevice) -> float | None:
    """Return the memory's own rate in GB/s: two transfers a clock, over the whole bus."""
    clock, bits = device.attribute(MEMORY_CLOCK_KHZ), device.attribute(MEMORY_BUS_BITS)
    return 2 * clock * 1e3 * bits / 8 / 1e9 if clock and bits else None


def main() -> None:
    size_bytes, repeats = int(sys.argv[1]), int(sys.argv[2])
    backend: Any = backends.load("cuda")
    devices = backend.inventory().devices
    device = backend.open(devices[0].selector)
    copy = device.allocate("device", size_bytes, {})
    own = device.allocate("device", size_bytes, {})
    print(json.dumps({"peak": peak(device)}))
    measure(device, "its own memory", own, copy, repeats)
    own.close()
    for memory in ("pinned", "host_numa", "memfd"):
        try:
            host = device.allocate(memory, size_bytes // 4, {})
        except DmabufMpError as error:
            print(json.dumps({"where": f"{memory} (host)", "error": str(error)}))
            continue
        measure(device, f"{memory} (host)", host, copy, repeats)
        host.close()
    if len(devices) > 1:
        other = backend.open(devices[1].selector)
        far = other.allocate("device", size_bytes, {})
        offer = Offer(size_bytes, far.allocated_bytes, 0, "device", "posix_fd", devices[1].uuid)
        try:
            near = device.import_fd("vmm", far.export("posix_fd"), offer)
            measure(device, f"memory of {devices[1].selector}", near, copy, repeats)
            near.close()
        except DmabufMpError as error:
            print(json.dumps({"where": f"memory of {devices[1].selector}", "error": str(error)}))
        far.close()
        other.close()
    copy.close()
    device.close()


if __name__ == "__main__":
    main()
