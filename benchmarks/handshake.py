"""The fd handshake, offer → ack, beside a C program that does the same over the same kind of socket.

Both are pinned to the same two cores, and take turns in one run. Prints medians and their ratio.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dmabuf_mp import dialogue, wire
from dmabuf_mp.assignment import Attempt
from dmabuf_mp.backends.base import CheckCounts, Offer
from dmabuf_mp.wire import Channel, Kind

ROUNDS = 4000
TURNS = 5
LIMIT = 1.75


def python_ns(cores: tuple[int, int]) -> float:
    """Return the median round trip of this package's own frames, in nanoseconds."""
    ours, theirs = wire.pair()
    pid = os.fork()
    if pid == 0:
        os.sched_setaffinity(0, {cores[1]})
        ours.close()
        consume(Channel(theirs, "producer"))
        os._exit(0)
    theirs.close()
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cores[0]})
    channel = Channel(ours, "consumer")
    memory = os.memfd_create("handshake")
    offer = Offer(16384, 16384, 0, "memfd", "memfd", "GPU-00000000-0000-0000-0000-000000000000")
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        channel.send(Kind.OFFER, dialogue.pack_offer(0, offer, ()), (memory,))
        dialogue.unpack_ack(channel.expect(Kind.ACK, Kind.UNSUPPORTED), 0)
        times.append(time.perf_counter_ns() - began)
    channel.close()
    os.close(memory)
    os.waitpid(pid, 0)
    os.sched_setaffinity(0, before)
    return statistics.median(times)


def consume(channel: Channel) -> None:
    """Answer offers until the end."""
    attempts = (Attempt("memfd", "memfd"),)
    ack = dialogue.pack_ack(dialogue.Ack(0, CheckCounts(4096, 0)))
    while (frame := channel.receive(Kind.OFFER, Kind.NONE, end_is_due=True)) is not None:
        dialogue.unpack_offer(frame, attempts)
        frame.close()
        channel.send(Kind.ACK, ack)


def main() -> int:
    """Print the table; the exit code says whether the ratio is within its limit."""
    cores = sorted(os.sched_getaffinity(0))
    pair = (cores[0], cores[min(1, len(cores) - 1)])
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "handshake"
        source = Path(__file__).with_suffix(".c")
        subprocess.run(["gcc", "-O2", "-o", program, source], check=True)
        command = [program, str(ROUNDS), *map(str, pair)]
        rows = []
        for _ in range(TURNS):
            c_ns = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            rows.append((c_ns, python_ns(pair)))
    ratios = [python / c for c, python in rows]
    ratio = statistics.median(ratios)
    print(f"fd handshake (offer with fd → ack), cores {pair[0]} and {pair[1]}, medians of {ROUNDS}:")
    print(f"  C       {statistics.median(c for c, _ in rows) / 1000:8.1f} µs")
    print(f"  Python  {statistics.median(p for _, p in rows) / 1000:8.1f} µs")
    print(f"  ratio   {ratio:8.2f} (each pair: {', '.join(f'{r:.2f}' for r in ratios)}; limit {LIMIT})")
    return ratio > LIMIT


if __name__ == "__main__":
    sys.exit(main())
