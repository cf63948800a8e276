"""One path, tried for real.

`python -m tests.hardware.probe MEMORY HANDLE IMPORTER PRODUCER CONSUMER same|separate`

Prints one line of JSON: `{"outcome": …, "reason": …}`. Whoever starts it sets the time limit, and counts an
end by a signal as a result.
"""

from __future__ import annotations

import array
import json
import os
import socket
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dmabuf_mp import backends
from dmabuf_mp.backends.base import Offer
from dmabuf_mp.errors import DmabufMpError, Unsupported
from dmabuf_mp.fds import Fd
from dmabuf_mp.patterns import Pattern, positions

if TYPE_CHECKING:
    from dmabuf_mp.backends.base import Allocation, CheckCounts, Device

SIZE_BYTES = 2**20 + 7
PATTERN = Pattern("random", seed=7)


def opened(selector: str) -> Device:
    return backends.load(backends.prefix_of(selector)).open(selector)


def produced(device: Device, memory: str, handle: str) -> tuple[Allocation, Fd, Offer]:
    allocation = device.allocate(memory, SIZE_BYTES, {})
    device.fill(allocation, PATTERN, 0)
    sizes = SIZE_BYTES, allocation.allocated_bytes, allocation.offset_bytes
    return allocation, allocation.export(handle), Offer(*sizes, memory, handle, device.info.uuid)


def consumed(device: Device, importer: str, fd: Fd, offer: Offer) -> dict[str, str]:
    buffer = device.import_fd(importer, fd, offer)
    counts = device.check(buffer, PATTERN, 0)
    buffer.close()
    return judged(counts)


def judged(counts: CheckCounts) -> dict[str, str]:
    if counts.matched == positions(SIZE_BYTES) and not counts.mismatched:
        return {"outcome": "pass", "reason": ""}
    return {"outcome": "FAILED", "reason": str(counts)}


def refused(error: Exception) -> dict[str, str]:
    if isinstance(error, Unsupported):
        return {"outcome": "no", "reason": str(error)}
    return {"outcome": "error", "reason": f"{type(error).__name__}: {error}"}


def same(memory: str, handle: str, importer: str, producer: str, consumer: str) -> dict[str, str]:
    source, target = opened(producer), opened(consumer)
    allocation, fd, offer = produced(source, memory, handle)
    result = consumed(target, importer, fd, offer)
    allocation.close()
    source.close()
    target.close()
    return result


def produce(link: socket.socket, memory: str, handle: str, selector: str) -> None:
    try:
        device = opened(selector)
        allocation, fd, offer = produced(device, memory, handle)
    except DmabufMpError as error:
        link.send(json.dumps(refused(error)).encode())
        return
    with fd:
        fds = array.array("i", [fd.fileno()])
        link.sendmsg([json.dumps(asdict(offer)).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
    link.recv(1)  # the memory lives until the consumer has read it
    allocation.close()
    device.close()


def consume(link: socket.socket, importer: str, selector: str) -> dict[str, str]:
    device = opened(selector)
    text, control, _, _ = link.recvmsg(4096, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
    if not text:
        return {"outcome": "error", "reason": "the producer ended without a word"}
    said: dict[str, Any] = json.loads(text)
    if not control:
        return said  # the producer's refusal
    fd = Fd(int.from_bytes(control[0][2], sys.byteorder))
    result = consumed(device, importer, fd, Offer(**said))
    link.send(b"A")
    device.close()
    return result


def separate(memory: str, handle: str, importer: str, producer: str, consumer: str) -> dict[str, str]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()  # nothing of CUDA is loaded yet
    if not child:
        ours.close()
        produce(theirs, memory, handle, producer)
        os._exit(0)
    theirs.close()
    with ours:
        result = consume(ours, importer, consumer)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return result if status == 0 else {"outcome": "error", "reason": f"the producer ended with {status}"}


def main() -> None:
    *path, process = sys.argv[1:]
    try:
        result = (same if process == "same" else separate)(*path)
    except DmabufMpError as error:
        result = refused(error)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
