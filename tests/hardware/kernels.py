"""Fill and check on a GPU against the same on the CPU: `python -m tests.hardware.kernels SELECTOR BIG_BYTES`.

Prints one line of JSON for each case: `{"case": …, "ok": …, "got": …}`.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from dmabuf_mp import backends
from dmabuf_mp.backends.base import CheckCounts, Offer
from dmabuf_mp.patterns import Pattern, positions, split

if TYPE_CHECKING:
    from dmabuf_mp.backends.base import Device

PATTERNS = (
    Pattern("ramp", kappa=0xFFFFFFFF),
    Pattern("ramp", base=0xFFFFFFFF - 1000),
    Pattern("address", kappa=12345),
    Pattern("random", seed=7, kappa=99),
)
SIZES = (*range(1, 37), 4095, 16384, 16385, 2**20 + 2**14 + 30, 2**24 + 13)


def say(case: str, got: object, expected: object) -> None:
    text = "" if got == expected else f"got {got}, expected {expected}"
    print(json.dumps({"case": case, "ok": got == expected, "got": text}), flush=True)


def compare(gpu: Device, cpu: Device, size_bytes: int, pattern: Pattern, t: int) -> None:
    """One memfd buffer, which both touch: each checks what the other wrote, then one byte is changed."""
    allocation = gpu.allocate("memfd", size_bytes, {})
    offer = Offer(size_bytes, allocation.allocated_bytes, 0, "memfd", "memfd")
    mapped = cpu.import_fd("mmap", allocation.export("memfd"), offer)
    whole = CheckCounts(positions(size_bytes), 0)

    case = f"{pattern.kind} {size_bytes} bytes"
    gpu.fill(allocation, pattern, t)
    say(f"{case}: CPU checks GPU", cpu.check(mapped, pattern, t), whole)
    cpu.fill(mapped, pattern, t + 1)
    say(f"{case}: GPU checks CPU", gpu.check(allocation, pattern, t + 1), whole)
    for offset in {0, size_bytes // 2, size_bytes - 1}:
        byte = cpu.read(mapped, offset, 1)
        cpu.write(mapped, offset, bytes([byte[0] ^ 1]))
        first = offset if offset >= 4 * split(size_bytes)[0] else offset // 4 * 4
        expected = CheckCounts(whole.matched - 1, 1, first)
        say(f"{case}: GPU finds byte {offset}", gpu.check(allocation, pattern, t + 1), expected)
        cpu.write(mapped, offset, byte)
    mapped.close()
    allocation.close()


def own_memory(gpu: Device, size_bytes: int, pattern: Pattern) -> None:
    """The GPU's own memory, too large for a 32-bit index: filled, checked, one byte changed near the end."""
    allocation = gpu.allocate("device", size_bytes, {})
    whole = CheckCounts(positions(size_bytes), 0)
    case = f"{pattern.kind} {size_bytes} bytes of its own"
    say(f"{case}: poisoned", gpu.check(allocation, pattern, 0).matched, 0)
    gpu.fill(allocation, pattern, 0)
    say(f"{case}: checked", gpu.check(allocation, pattern, 0), whole)
    offset = size_bytes - 2
    gpu.write(allocation, offset, bytes([gpu.read(allocation, offset, 1)[0] ^ 0x80]))
    expected = CheckCounts(whole.matched - 1, 1, offset)
    say(f"{case}: byte {offset} found", gpu.check(allocation, pattern, 0), expected)
    allocation.close()


def main() -> None:
    selector, big = sys.argv[1], int(sys.argv[2])
    gpu = backends.load("cuda").open(selector)
    cpu = backends.load("cpu").open("cpu")
    for t, pattern in enumerate(PATTERNS):
        for size_bytes in SIZES:
            compare(gpu, cpu, size_bytes, pattern, 2 * t)
    for pattern in (PATTERNS[0], PATTERNS[3]):
        compare(gpu, cpu, big, pattern, 6)
        own_memory(gpu, big, pattern)
    gpu.close()


if __name__ == "__main__":
    main()
