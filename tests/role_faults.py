"""Roles that go wrong on purpose, each in one way. `strike` plays a built-in role and goes wrong on the way.

Named in a scenario as `tests.role_faults:segv`; `params` of `strike`: `fault` names one of these, `at` is
`start`, `filled`, `checked`, `forwarded` or `end`, and `round` counts from 0.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING

from dmabuf_mp import roles
from dmabuf_mp.backends.base import Offer
from dmabuf_mp.linux import memfd, process
from dmabuf_mp.wire import Channel, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from dmabuf_mp.backends.base import Buffer
    from dmabuf_mp.context import Context

libc = ctypes.CDLL(None)
kept: list[object] = []


def kind_of(context: Context) -> str:
    return context.label.partition("[")[0]


def play(context: Context) -> None:
    """Do what the built-in role does."""
    roles.BUILT_IN[kind_of(context)](context)


def channels(context: Context) -> tuple[Channel, ...]:
    """Every link of a role: scripted peers write to them what no role of the package would."""
    up = (context._incoming.channel,) if context._incoming else ()
    return up + (context._outgoing.channels if context._outgoing else ())


# Ends of the process.


def segv(context: Context) -> None:
    ctypes.string_at(0)


def abort(context: Context) -> None:
    os.abort()


def kill(context: Context) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def exit_quietly(context: Context) -> None:
    os._exit(0)


def exit_3(*_: object, **__: object) -> None:
    os._exit(3)


def sys_exit(context: Context) -> None:
    sys.exit(0)


def sys_exit_with_a_text(context: Context) -> None:
    sys.exit("no more")


def segv_at_the_very_end(context: Context) -> None:
    """Pass, and crash while the worker ends, as a driver's library can."""
    play(context)
    os._exit = segv  # type: ignore[assignment]


def exit_after_the_result(context: Context) -> None:
    """Pass, and have the worker end as soon as it has said so."""
    play(context)
    Channel.receive = exit_3  # type: ignore[method-assign,assignment]


# No end.


def hang(context: Context) -> None:
    threading.Event().wait()


def hang_ignoring_term(context: Context) -> None:
    libc.signal(signal.SIGTERM, ctypes.c_void_p(1))  # SIG_IGN; by libc, since this may not be the main thread
    while True:
        libc.pause()


def stop_itself(context: Context) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def stop_the_consumer(context: Context) -> None:
    """A producer that stops its consumer while that waits for the offer, and then makes it."""
    outgoing = context._outgoing
    assert outgoing is not None
    outgoing.wait_for_go()
    (consumer,) = process.children(os.getppid()) - {os.getpid()}
    os.kill(consumer, signal.SIGSTOP)
    while process.state(consumer) != "T":
        os.sched_yield()
    with memfd.create("offered", context.size_bytes) as fd:
        outgoing.offer(0, Offer(context.size_bytes, context.size_bytes, 0, "memfd", "memfd"), fd.fileno(), ())


def flood_stdout(context: Context) -> None:
    while True:
        os.write(1, b"y\n" * 4096)


def flood_log(context: Context) -> None:
    while True:
        context.log("again")


# Exceptions, and what looks like success.


def raise_(context: Context) -> None:
    raise RuntimeError("it broke")


def raise_with_a_huge_message(context: Context) -> None:
    raise RuntimeError("x" * 300_000)


def out_of_memory(context: Context) -> None:
    raise MemoryError("none left")


def recurse(context: Context) -> None:
    recurse(context)


def nothing(context: Context) -> None:
    """Return at once, with nothing shared and nothing checked."""


def receive_without_check(context: Context) -> None:
    context.receive(lambda buffer, round_: None)


def check_first_round_only(context: Context) -> None:
    context.receive(lambda buffer, round_: context.check(buffer, 0))


# Wrong data.


def one_bit(context: Context) -> None:
    def fill(buffer: Buffer, round_: int) -> None:
        context.fill(buffer, round_)
        wrong = context.device.read(buffer, 4096, 1)[0] ^ 8
        context.device.write(buffer, 4096, bytes([wrong]))

    context.share(fill)


def last_byte(context: Context) -> None:
    def fill(buffer: Buffer, round_: int) -> None:
        context.fill(buffer, round_)
        context.device.write(buffer, context.size_bytes - 1, b"\0")

    context.share(fill)


def no_fill(context: Context) -> None:
    context.share(lambda buffer, round_: None)


def last_rounds_data(context: Context) -> None:
    context.share(lambda buffer, round_: context.fill(buffer, 0))


# Wrong frames and fds.


def wrong_fd_count(context: Context) -> None:
    for channel in channels(context):
        channel.expect(Kind.GO)
        channel.send(Kind.OFFER, b"", (0, 0))
    hear_of_it(context)


def garbage(context: Context) -> None:
    for channel in channels(context):
        with socket.socket(fileno=os.dup(channel.fileno())) as sock:
            sock.send(b"garbage, and more of it")
    hear_of_it(context)


def hear_of_it(context: Context) -> None:
    """Wait for a peer's answer to what it should not have got."""
    for channel in channels(context):
        while True:
            channel.expect(*Kind).close()


def garbage_to_the_orchestrator(context: Context) -> None:
    for number in range(3, 64):
        try:
            sock = socket.socket(fileno=os.dup(number))
        except OSError:
            continue
        with sock:
            if (
                sock.fileno()
                and sock.type is socket.SOCK_SEQPACKET
                and number not in map(fd_of, channels(context))
            ):
                sock.send(b"garbage")
    threading.Event().wait()


def fd_of(channel: Channel) -> int:
    return channel.fileno()


def close_links(context: Context) -> None:
    """Close every link and live on."""
    for channel in channels(context):
        channel.close()
    threading.Event().wait()


# Things left behind.


def leak_fd(context: Context) -> None:
    play(context)
    kept.append(os.memfd_create("forgotten"))


def grandchild(context: Context) -> None:
    """Leave a child that holds the worker's pipes open and ignores SIGTERM."""
    play(context)
    _leave_process(context)


def grandchild_then_exit(context: Context) -> None:
    _leave_process(context)
    os._exit(0)


def flooding_grandchild_then_exit(context: Context) -> None:
    if os.fork() == 0:
        flood_stdout(context)
    os._exit(0)


def daemon(context: Context) -> None:
    """Leave a grandchild by a double fork, in a session of its own, with a child of its own."""
    play(context)
    started, start = os.pipe()
    if (child := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            os.fork()
            os.write(start, b".")
            _sleep()
        os._exit(0)
    os.waitpid(child, 0)
    os.close(start)
    for _ in range(2):  # both are there before the worker is looked at
        os.read(started, 1)
    os.close(started)


def _leave_process(context: Context) -> None:
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _sleep()


def _sleep() -> None:
    while True:
        libc.pause()


# Output.


def chatty(context: Context) -> None:
    """Print 4 MiB, in lines that are numbered."""
    for number in range(65_536):
        print(f"line {number:07} {'.' * 50}")
    play(context)


def chatty_everywhere(context: Context) -> None:
    """Print by Python, by C, without an end of line, in pieces, in bytes that are no UTF-8, and to stderr."""
    libc.printf(b"from C, buffered\n")
    print("from Python")
    sys.stdout.write("in two ")
    sys.stdout.flush()
    sys.stdout.write("pieces\n")
    os.write(1, b"\xff\xfe no utf-8\n")
    print("to stderr", file=sys.stderr)
    context.log("by log", "warning")
    play(context)
    sys.stdout.write("without an end of line")


def close_stdout(context: Context) -> None:
    sys.stdout.close()
    sys.stderr.close()
    os.closerange(1, 3)
    play(context)


# The catalogue, and how to strike on the way.


def strike(context: Context) -> None:
    """Play the built-in role, and commit a fault at one point of it."""
    fault: Callable[[Context], None] = globals()[str(context.params["fault"])]
    due = (context.params.get("at", "start"), context.params.get("round", 0))

    def point(name: str, round_: int = 0) -> None:
        if (name, round_) == due:
            fault(context)

    def fill(buffer: Buffer, round_: int) -> None:
        context.fill(buffer, round_)
        point("filled", round_)

    def each(buffer: Buffer, round_: int) -> None:
        context.check_and_write_back(buffer, round_)
        point("checked", round_)
        if kind_of(context) == "relay":
            context.forward(buffer, round_)
            point("forwarded", round_)

    point("start")
    if kind_of(context) == "producer":
        context.share(fill)
    else:
        context.receive(each)
    point("end")
