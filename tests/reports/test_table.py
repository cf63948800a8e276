from __future__ import annotations

import io

import pytest
from rich.console import Console

from dmabuf_mp.model import Outcome, PassedOver
from dmabuf_mp.reports.table import devices, show, verdict_line
from tests.reports.sample import ALL, MEMFD, PASSED, UDMABUF, LinkReport, report, scenario, worker


def shown(*, width: int, quiet: bool = False, terminal: bool = False, **fields: object) -> str:
    """Return what a console of that width gets to see."""
    text = io.StringIO()
    console = Console(
        file=text, width=width, force_terminal=terminal, highlight=False, markup=False, **fields
    )  # type: ignore[arg-type]
    show(ALL, console, quiet=quiet)
    return text.getvalue()


def test_wide() -> None:
    text = shown(width=140)
    heading, *rows = text.splitlines()[:5]
    assert heading == (
        "Scenario    Devices       Path              Bytes (allocated)   Time  Outcome  Reason"
    )
    assert rows[0] == "memfd       cpu → cpu     memfd/memfd/mmap              16384  12 ms  passed"
    assert "16384 (20480)" in rows[1]
    assert "wrong data: failed: 3 mismatches (scenarios/memfd.yaml:1)\n" in text
    assert (
        "    producer -> consumer[0]: 3 mismatches by way of memfd/memfd/mmap; the first at byte 0x1004 "
        "(page 1) in round 0: expected 0x00001401, got 0x00000000 (zeros)\n"
    ) in text
    assert "cross-gpu: skipped: no CUDA driver\n" in text
    assert "\npassed over udmabuf/dmabuf/mmap: /dev/udmabuf: not there [memfd]\n" in text
    assert "mapped: cuda:0=cpu [memfd]\n" in text
    assert text.endswith("1 passed, 1 failed, 1 skipped, 1 crashed in 2.1 s: exit code 1\n")


@pytest.mark.parametrize("width", [20, 40, 79])
def test_narrow(width: int) -> None:
    text = shown(width=width)
    assert "16384 (20480)" in " ".join(text.split())
    for line in text.split("\n\n", maxsplit=1)[0].splitlines():
        assert len(line) <= width
    assert "exit code 1\n" in text


def test_colour_only_on_a_terminal_that_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[1;31m" in shown(width=140, terminal=True)
    assert "\x1b" not in shown(width=140)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1;31m" not in shown(width=140, terminal=True)


def test_quiet_leaves_only_what_went_wrong_and_the_verdict() -> None:
    text = shown(width=140, quiet=True)
    assert "wrong data: failed" in text
    assert "cross-gpu" not in text
    assert "Scenario" not in text
    assert text.endswith("exit code 1\n")


def test_no_control_character_and_no_markup_gets_through() -> None:
    odd = scenario("[red]x[/red]\x1b[2J\r", Outcome.FAILED, reason="[bold]\x07", file="\x1b.yaml")
    text = io.StringIO()
    show(report(odd), Console(file=text, width=140, highlight=False, markup=False))
    assert "[red]x[/red]\\x1b[2J\\r" in text.getvalue()
    assert not set(text.getvalue()) & set("\x1b\r\x07")


def test_devices() -> None:
    def chain(*workers: tuple[str, str]) -> str:
        return devices(scenario("a", workers=tuple(worker(role, device=device) for role, device in workers)))

    assert chain(("producer", "cuda:0"), ("consumer", "cuda:1")) == "cuda:0 → cuda:1"
    assert chain(("producer", "cpu"), *[("consumer", "cpu")] * 64) == "cpu → cpu ×64"
    assert (
        chain(("producer", "cpu"), ("consumer", "cuda:0"), ("consumer", "cuda:1")) == "cpu → cuda:0, cuda:1"
    )
    assert chain(("producer", "a"), ("relay", "b"), ("relay", "b"), ("consumer", "c")) == "a → b → b → c"
    assert chain() == "none"


def test_an_expected_fault_shows_what_was_observed() -> None:
    text = io.StringIO()
    case = scenario("a", Outcome.PASSED, observed=Outcome.CRASHED)
    show(report(case), Console(file=text, width=140))
    assert "passed (crashed, as expected)" in text.getvalue()


def test_a_reason_that_many_share_is_told_once() -> None:
    text = io.StringIO()
    skipped = [scenario(f"s{i}", Outcome.SKIPPED, reason="no driver", links=()) for i in range(20)]
    link = LinkReport("producer", "consumer[0]", MEMFD, (PassedOver(UDMABUF, "gone"),), 0)
    passed = [scenario(f"p{i}", links=(link,)) for i in range(3)]
    show(report(*skipped, *passed), Console(file=text, width=140))
    assert "s0, s1, s2, s3, s4 and 15 more: skipped: no driver\n" in text.getvalue()
    assert "passed over udmabuf/dmabuf/mmap: gone [p0, p1, p2]\n" in text.getvalue()


def test_verdict_lines() -> None:
    assert verdict_line(report(PASSED)).plain == "1 passed in 2.1 s: exit code 0"
    assert verdict_line(report(exit_code=77)).plain == "nothing ran in 2.1 s: exit code 77"
    slow = scenario("a", Outcome.TIMED_OUT)
    assert verdict_line(report(slow, exit_code=1)).plain == "1 timed out in 2.1 s: exit code 1"


def test_a_thousand_scenarios_take_no_second_each() -> None:
    many = report(*(scenario(f"s{i}") for i in range(1000)))
    text = io.StringIO()
    show(many, Console(file=text, width=140))
    assert text.getvalue().count("passed") == 1001
