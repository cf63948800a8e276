"""What is left behind on purpose is seen and named: by a worker, by this process, in the kernel's lists."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import dmabuf_mp
from dmabuf_mp import Role
from dmabuf_mp.backends.base import Offer
from dmabuf_mp.backends.cpu import memories
from dmabuf_mp.linux import bufinfo, dmabuf, memfd
from dmabuf_mp.linux.dmabuf import Identity
from dmabuf_mp.model import LogLine, Outcome, Silent
from dmabuf_mp.orchestrator.loop import Loop
from dmabuf_mp.orchestrator.watch import Watch
from tests import dmabufs
from tests.fakecuda import build
from tests.linux.test_kmsg import write_to_kernel_log
from tests.orchestrator.making import fan_out, pair, run, same, with_role, worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dmabuf_mp import Context, Scenario, ScenarioReport
    from dmabuf_mp.backends.base import Buffer

PAGES_BYTES = 20_480  # what SIZE_BYTES is rounded up to


# What a role may leave behind: each does its work, and right.


def leave_fd(context: Context) -> None:
    os.memfd_create("forgotten")


def leave_child(context: Context) -> None:
    if os.fork() == 0:
        threading.Event().wait()


def leave_thread(context: Context) -> None:
    threading.Thread(target=threading.Event().wait, name="forgotten", daemon=True).start()


def leave_allocation(context: Context) -> None:
    context.device.allocate("memfd", 5000, {})


def leave_import(context: Context) -> None:
    allocation = context.device.allocate("memfd", 5000, {})
    offer = Offer(5000, allocation.allocated_bytes, 0, "memfd", "memfd")
    context.device.import_fd("mmap", allocation.export("memfd"), offer)
    allocation.close()


def leave_mapping(context: Context) -> None:
    """Map what an fd stands for, by C: Python's own mmap would keep an fd besides."""
    libc = ctypes.CDLL(None)
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    libc.mmap.restype = ctypes.c_void_p
    with memfd.create("dmabuf-mp:forgotten", 2 * mmap.PAGESIZE) as fd:
        assert libc.mmap(None, 2 * mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, fd.fileno(), 0) > 0


LEAKS = {
    leave_fd: r"left behind: fd \d+ \(/memfd:forgotten \(deleted\)\)",
    leave_child: r"left behind: process \d+ \(.*python.*\)",
    leave_thread: r"left behind: thread 'forgotten'",
    leave_allocation: r"left behind: fd .* a mapping of 8192 bytes \(/memfd:dmabuf-mp:memfd:\d+ \(deleted\), "
    r"inode \d+\), 1 × memfd memory, 5000 bytes, not closed",
    leave_import: r"left behind: fd .* a mapping of 8192 bytes .*, 1 × import of memfd memory, 5000 bytes, "
    r"not closed",
    leave_mapping: r"left behind: a mapping of 8192 bytes \(/memfd:dmabuf-mp:forgotten \(deleted\), "
    r"inode \d+\)",
}


def leaving(scenario: Scenario, label: str, leave: Callable[[Context], None]) -> Scenario:
    """Return the scenario with a role that does what it should, and leaves something behind."""

    def role(context: Context) -> None:
        context.share() if context.label == "producer" else context.receive()
        leave(context)

    return with_role(scenario, label, role)


def check_blamed(report: ScenarioReport, label: str, says: str) -> None:
    assert (report.outcome, report.reason_code) == (Outcome.FAILED, "ledger"), report.reason
    assert re.fullmatch(f"{re.escape(label)}: {says}", report.reason)
    for one in report.workers:
        assert (one.outcome is Outcome.FAILED) == (one is worker(report, label)), one.reason
    assert {link.mismatches for link in report.links} == {0}


@pytest.mark.parametrize("leave", LEAKS, ids=lambda leave: leave.__name__)
def test_what_a_role_leaves_behind_is_named_and_is_not_the_next_ones(leave: Callable[..., None]) -> None:
    scenarios = [
        pair("clean before"),
        leaving(pair("by a producer"), "producer", leave),
        leaving(fan_out("by one of three"), "consumer[1]", leave),
        pair("clean after"),
    ]
    before, by_producer, by_consumer, after = run(*scenarios).scenarios
    check_blamed(by_producer, "producer", LEAKS[leave])
    check_blamed(by_consumer, "consumer[1]", LEAKS[leave])
    assert before.outcome is after.outcome is Outcome.PASSED


def test_in_a_worker_with_both_roles_it_is_neithers_pass() -> None:
    (report,) = run(leaving(same(), "consumer[0]", leave_thread)).scenarios
    assert [one.reason for one in report.workers] == ["left behind: thread 'forgotten'"] * 2


def test_it_is_seen_in_a_fresh_interpreter_too() -> None:
    report = dmabuf_mp.run(leaving(pair(), "consumer[0]", leave_allocation), seed=1)
    check_blamed(report.scenarios[0], "consumer[0]", LEAKS[leave_allocation])
    assert report.exit_code == 1


def test_a_refusal_does_not_excuse_what_is_left_behind() -> None:
    def role(context: Context) -> None:
        leave_fd(context)
        context.receive()

    too_large = with_role(pair(size_bytes=2**60), "consumer[0]", role)
    (report,) = run(too_large).scenarios
    assert (report.outcome, report.reason_code) == (Outcome.FAILED, "ledger")


def test_what_a_view_keeps_mapped_is_named_though_its_buffer_is_closed() -> None:
    kept = []

    def role(context: Context) -> None:
        def each(buffer: Buffer, round_: int) -> None:
            context.check(buffer, round_)
            with buffer.access(write=False) as view:  # type: ignore[attr-defined]
                kept.append(view)

        context.receive(each)

    (report,) = run(
        with_role(pair(producer=Role("producer", memory=("memfd",))), "consumer[0]", role)
    ).scenarios
    pid = worker(report, "producer").pid
    assert f"a mapping of {PAGES_BYTES} bytes (/memfd:dmabuf-mp:memfd:{pid} (deleted)" in report.reason


def leave_device_memory(context: Context) -> None:
    context.device.allocate("device", 5000, {})


def leave_device_import(context: Context) -> None:
    allocation = context.device.allocate("device", 5000, {})
    uuid = context.device.info.uuid
    offer = Offer(5000, allocation.allocated_bytes, 0, "device", "posix_fd", uuid)
    context.device.import_fd("vmm", allocation.export("posix_fd"), offer)
    allocation.close()


def run_on_gpu() -> None:
    """Print what came of leaks of a GPU's memory, an import and a mapping, beside clean runs."""
    device = pair(producer=Role("producer", device="cuda:0"), consumers=(Role("consumer", device="cuda:1"),))
    leaks = (leave_device_memory, leave_device_import)
    scenarios = device, device, *(leaving(device, "consumer[0]", leave) for leave in leaks), device
    for report in run(*scenarios).scenarios:
        noted = worker(report, "consumer[0]").noted
        print(report.outcome, worker(report, "producer").pid, dict(noted), report.reason)


def test_device_memory_is_counted_on_the_software_driver() -> None:
    """On the test double in tests/fakecuda, in a process that is started with it."""
    command = [sys.executable, "-c", "from tests.orchestrator.test_ledger_runs import *; run_on_gpu()"]
    environment = {**os.environ, **build.environment()}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    first, again, memory, imported, after = ran.stdout.splitlines()
    # A context's first use, the second scenario in the same workers, and those after a leak: no alarm.
    assert re.fullmatch(r"passed \d+ \{\} ", first)
    assert again == first
    assert re.fullmatch(r"passed \d+ \{\} ", after)
    leaked = r"failed \d+ %s consumer\[0\]: left behind: .*, 1 × %s on cuda:1, 5000 bytes, not closed"
    assert re.fullmatch(leaked % (r"\{'cuda:1 free': -2097152\}", "device memory"), memory), memory
    assert re.fullmatch(leaked % (r"\{\}", "import of device memory"), imported), imported


# This process.


class Leaking(Silent):
    """An observer that takes something, in the orchestrator's process, when a role logs a line."""

    def __init__(self, take: Callable[[], object]) -> None:
        self._take = take

    def log(self, scenario: str, worker: str, line: LogLine) -> None:
        self._take()


def talkative() -> Scenario:
    def role(context: Context) -> None:
        context.log("a line")
        context.share()

    return with_role(pair("talkative"), "producer", role)


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def leaks_of_this_process(undo: ExitStack) -> dict[str, Callable[[], object]]:
    def fd() -> None:
        undo.callback(os.close, os.eventfd(0))

    def pipe() -> None:
        for number in os.pipe():
            undo.callback(os.close, number)

    def sockets() -> None:
        for sock in socket.socketpair():
            undo.callback(sock.close)

    def thread() -> None:
        end = threading.Event()
        started = threading.Thread(target=end.wait, name="forgotten")
        started.start()
        undo.callback(started.join)
        undo.callback(end.set)

    def mapping() -> None:
        with memfd.create("dmabuf-mp:forgotten", mmap.PAGESIZE) as fd:
            undo.enter_context(mmap.mmap(fd.fileno(), mmap.PAGESIZE))

    return {
        r"fd \d+ \(anon_inode:\[eventfd\]\)": fd,
        r"fd \d+ \(pipe:\[\d+\]\), fd \d+ \(pipe:\[\d+\]\)": pipe,
        r"fd \d+ \(socket:\[\d+\]\), fd \d+ \(socket:\[\d+\]\)": sockets,
        r"thread 'forgotten'": thread,
        r"fd .*, a mapping of 4096 bytes \(/memfd:dmabuf-mp:forgotten \(deleted\), inode \d+\)": mapping,
    }


@pytest.mark.parametrize("says", leaks_of_this_process(ExitStack()))
def test_what_the_orchestrator_keeps_is_named_once(says: str, undo: ExitStack) -> None:
    observer = Leaking(leaks_of_this_process(undo)[says])
    leaked, after = run(talkative(), same("after"), observer=observer).scenarios
    assert (leaked.outcome, leaked.reason_code) == (Outcome.FAILED, "ledger"), leaked.reason
    assert re.fullmatch(f"orchestrator: left behind: {says}", leaked.reason)
    assert {one.outcome for one in leaked.workers} == {Outcome.PASSED}
    if "thread" not in says:  # with a thread here, no further worker can be forked
        assert after.outcome is Outcome.PASSED, after.reason


def test_files_that_an_observer_opens_are_its_own(undo: ExitStack) -> None:
    def open_file() -> None:
        undo.enter_context(open(os.devnull))  # noqa: PTH123, SIM115

    (report,) = run(talkative(), observer=Leaking(open_file)).scenarios
    assert report.outcome is Outcome.PASSED, report.reason


# The kernel's list of dma-bufs. First by a list that is made up, then by the kernel's own.


def watching(*lists: tuple[Identity, ...]) -> Watch:
    """Return a watch that is shown these lists, one after the other, the last one for ever."""
    left = list(lists)
    watch = Watch(Loop(), lambda: left.pop(0) if len(left) > 1 else left[0])
    watch.begin()
    return watch


def test_only_new_buffers_of_these_workers_count_and_only_if_they_stay() -> None:
    ours = Identity(7, 8192, "udmabuf", "dmabuf-mp:udmabuf:412")
    second = Identity(8, 4096, "system", "dmabuf-mp:dma_heap:412")
    strangers = (
        Identity(1, 8192, "drm", ""),
        Identity(2, 8192, "udmabuf", "dmabuf-mp:udmabuf:99"),
        Identity(3, 8192, "udmabuf", "udmabuf:412"),
        Identity(4, 8192, "udmabuf", "dmabuf-mp-2:udmabuf:412"),
        Identity(5, 8192, "udmabuf", None),
    )
    cases = {
        "strangers": ((), strangers),
        "old": ((ours,), (ours,)),
        "late": ((), (ours, *strangers), (ours,), ()),
        "stays": ((), (*strangers, ours, second)),
    }
    found = {}
    for name, lists in cases.items():
        watch = watching(*lists)
        found[name] = watch.outlived([412, 413])
        watch.close()
    stays = (
        "dma-buf dmabuf-mp:udmabuf:412 (inode 7, 8192 bytes), "
        "dma-buf dmabuf-mp:dma_heap:412 (inode 8, 4096 bytes)"
    )
    assert found == {"strangers": {}, "old": {}, "late": {}, "stays": {412: stays}}


@pytest.mark.dmabuf
@pytest.mark.parametrize("memory", dmabufs.MEMORIES)
def test_a_buffer_that_outlives_its_scenario_fails_it_by_name(
    memory: str, undo: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    dmabufs.need(*dmabufs.NODES, str(bufinfo.BUFINFO))
    monkeypatch.setenv("DMABUF_MP_TIME_SCALE", "1")  # a buffer that stays is waited for
    keeper = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    keeper.bind(b"\0" + secrets.token_bytes(8))
    address = keeper.getsockname()
    others = undo.enter_context(memories.allocate(memory, 4096, {}).export("dmabuf"))

    def give_away(context: Context) -> None:
        def fill(buffer: Buffer, round_: int) -> None:
            context.fill(buffer, round_)
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.connect(address)
                with buffer.export("dmabuf") as fd:  # type: ignore[attr-defined]
                    socket.send_fds(sock, [b"keep it"], [fd.fileno()])

        context.share(fill)

    producer = Role("producer", memory=(memory,))
    clean = pair("clean", producer=producer)
    leaking = with_role(replace(clean, name="leaking"), "producer", give_away)
    before, leaked, after = run(clean, leaking, replace(clean, name="after")).scenarios
    assert before.outcome is after.outcome is Outcome.PASSED, (before.reason, after.reason)
    assert leaked.outcome is Outcome.FAILED, leaked.reason
    _, (number,), _, _ = socket.recv_fds(keeper, 16, 1)
    undo.callback(os.close, number)
    kept = dmabuf.identity(number)
    assert kept.name == f"dmabuf-mp:{memory}:{worker(leaked, 'producer').pid}"
    name = f"dma-buf {kept.name} (inode {kept.inode}, {PAGES_BYTES} bytes)"
    check_blamed(leaked, "producer", f"left behind: {re.escape(name)}")
    assert {kept, dmabuf.identity(others.fileno())} <= set(bufinfo.buffers())


# The kernel's log.


def logging(message: str) -> Scenario:
    def role(context: Context) -> None:
        context.share()
        write_to_kernel_log(message)

    return with_role(pair("logging"), "producer", role)


def test_what_the_kernel_logs_meanwhile_is_attached_and_a_fault_noted_beside_a_pass() -> None:
    token = secrets.token_hex(8)
    harmless, fault = f"dmabuf-mp test {token}", f"dmabuf-mp test {token}: NVRM: Xid 31"
    write_to_kernel_log(f"<4>{harmless}: before")
    if os.access("/dev/kmsg", os.R_OK) is False:
        pytest.skip("/dev/kmsg may not be read")
    reports = run(logging(f"<4>{harmless}"), logging(f"<3>{fault}"), pair("quiet")).scenarios
    ours = [[line for line in report.kernel_log if token in line.message] for report in reports]
    assert [[(line.level, line.message) for line in lines] for lines in ours] == [
        [("warning", harmless)],
        [("error", fault)],
        [],
    ]
    for report in reports[:2]:
        assert report.outcome is Outcome.PASSED, report.reason
        assert all(0 <= line.t_s <= report.elapsed_s for line in report.kernel_log)
    noted = [[note for note in report.notes if token in note] for report in reports]
    assert noted == [[], [f"the kernel logged: {fault}"], []]


def test_what_was_logged_between_two_scenarios_is_neithers() -> None:
    token = secrets.token_hex(8)

    class Between(Silent):
        def scenario_started(self, index: int, total: int, name: str) -> None:
            write_to_kernel_log(f"dmabuf-mp test {token}")

    reports = run(pair("one"), pair("two"), observer=Between()).scenarios
    assert not [line for report in reports for line in report.kernel_log if token in line.message]


def test_the_kernels_lines_reach_a_caller_by_way_of_the_fresh_interpreter() -> None:
    token = f"dmabuf-mp test {secrets.token_hex(8)}"
    write_to_kernel_log(f"<6>{token}: may it be written?")
    (report,) = dmabuf_mp.run(logging(f"<6>{token}"), seed=1).scenarios
    assert [line.level for line in report.kernel_log if line.message == token] == ["info"]
