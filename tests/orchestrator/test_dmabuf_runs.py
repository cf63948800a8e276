"""Whole scenarios on real dma-bufs: passed on by relays, and refused to a user without permission."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import dmabuf_mp
from dmabuf_mp import Role, backends
from dmabuf_mp.linux import dmabuf
from dmabuf_mp.model import Outcome
from tests import dmabufs
from tests.forked import in_child
from tests.orchestrator.making import log_of, pair, run, with_role

if TYPE_CHECKING:
    from dmabuf_mp import Context
    from dmabuf_mp.backends.base import Buffer

pytestmark = pytest.mark.dmabuf
SCENARIOS = Path(__file__).parents[2] / "scenarios"
NOBODY = 65534


def log_identity(context: Context) -> None:
    """Do what the built-in relay and consumer do, and log which buffer it was."""

    def each(buffer: Buffer, round_: int) -> None:
        context.check(buffer, round_)
        with buffer.export("dmabuf") as fd:  # type: ignore[attr-defined]
            context.log(str(dmabuf.identity(fd.fileno())))
        if context.label.startswith("relay"):
            context.forward(buffer, round_)

    context.receive(each)


@pytest.mark.parametrize("memory", dmabufs.MEMORIES)
def test_a_relay_passes_the_kernels_buffer_on_and_a_copy_is_another_one(memory: str) -> None:
    dmabufs.need(*dmabufs.NODES)
    relays = (
        Role("relay", 0, forward="fd"),
        Role("relay", 1, forward="copy", memory=(memory,)),
    )
    scenario = pair("relayed", producer=Role("producer", memory=(memory,)), relays=relays, rounds=2)
    for label in ("relay[0]", "relay[1]", "consumer[0]"):
        scenario = with_role(scenario, label, log_identity)
    (report,) = run(scenario).scenarios
    assert report.outcome is Outcome.PASSED, report.reason
    assert [str(link.path) for link in report.links] == [f"{memory}/dmabuf/mmap"] * 3
    first, second, copied = (set(log_of(report, label)) for label in ("relay[0]", "relay[1]", "consumer[0]"))
    assert first == second
    assert len(first) == len(copied) == 1  # the same in both rounds
    assert first != copied


def test_a_user_without_permission_gets_a_skip_with_the_udev_rule_and_the_next_path() -> None:
    dmabufs.need(*dmabufs.NODES)
    names = ("cpu_udmabuf", "cpu_dma_heap", "cpu_fan_out")
    backends.load("cpu")  # the package need not lie where that user may read
    scenarios = dmabuf_mp.load(*(SCENARIOS / f"{name}.yaml" for name in names))

    def as_nobody() -> str:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        report = run(*scenarios)
        said = [f"exit code {report.exit_code}"]
        for one in report.scenarios:
            said += [f"{one.name}: {one.outcome}: {one.links[0].path} {one.reason}"]
            said += [f"{passed.path}: {passed.reason}" for link in one.links for passed in link.passed_over]
        return "\n".join(said)

    said = in_child(as_nobody)
    assert "exit code 0" in said
    assert "cpu_fan_out: passed: memfd/memfd/mmap" in said
    for name, node in (("cpu_udmabuf", "/dev/udmabuf"), ("cpu_dma_heap", "/dev/dma_heap/system")):
        refused = (
            f"no permission to open {node} (mode 0600, group root): be root, or give a group access by a"
            f' udev rule in /etc/udev/rules.d: KERNEL=="{Path(node).name}", GROUP="video", MODE="0660"'
        )
        assert f"{name}: skipped: None producer: {name[4:]}/dmabuf: {refused}" in said
        assert f"{name[4:]}/dmabuf/mmap: producer: {refused}" in said
