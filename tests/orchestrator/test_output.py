"""What workers print, log and leave behind."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from dmabuf_mp.model import LogLine, Outcome, Silent
from dmabuf_mp.orchestrator.capture import CAP_BYTES, Capture
from tests.orchestrator.making import log_of, pair, run, same, with_role, worker

if TYPE_CHECKING:
    from pathlib import Path


class Listening(Silent):
    """An observer that keeps the lines that it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, LogLine]] = []

    def log(self, scenario: str, worker: str, line: LogLine) -> None:
        self.lines.append((scenario, worker, line))


def test_everything_that_a_worker_prints_is_in_its_log_and_nowhere_else(
    capfd: pytest.CaptureFixture[str],
) -> None:
    listening = Listening()
    report = run(
        with_role(pair("two"), "consumer[0]", "chatty_everywhere"),
        with_role(same("one"), "producer", "chatty_everywhere"),
        observer=listening,
    )
    assert report.exit_code == 0
    for one, label in zip(report.scenarios, ("consumer[0]", "producer"), strict=True):
        log = {(line.level, line.message) for line in worker(one, label).log}
        assert log == {
            ("stdout", "from C, buffered"),
            ("stdout", "from Python"),
            ("stdout", "in two pieces"),
            ("stdout", "\N{REPLACEMENT CHARACTER}" * 2 + " no utf-8"),
            ("stderr", "to stderr"),
            ("warning", "by log"),
            ("stdout", "without an end of line"),
        }
        assert [line for name, _, line in listening.lines if name == one.name] == list(worker(one, label).log)
        other = "producer" if label == "consumer[0]" else "consumer[0]"
        assert log_of(one, other) == []
    assert capfd.readouterr() == ("", "")


def test_of_megabytes_head_and_tail_are_kept_and_the_cut_is_marked() -> None:
    listening = Listening()
    (report,) = run(with_role(pair(), "producer", "chatty"), observer=listening).scenarios
    assert report.outcome is Outcome.PASSED
    lines = log_of(report, "producer")
    assert lines[0].startswith("line 0000000")
    assert lines[-1].startswith("line 0065535")
    assert sum(map(len, lines)) <= CAP_BYTES
    cut = next(index for index, line in enumerate(lines) if "lines cut here" in line)
    last, next_ = (int(lines[index].split()[1]) for index in (cut - 1, cut + 1))
    assert lines[cut] == f"… {next_ - last - 1} lines cut here …"
    assert [line.message for _, _, line in listening.lines] == lines


def test_a_role_that_closes_its_stdout_passes_all_the_same() -> None:
    report = run(with_role(pair(), "consumer[0]", "close_stdout"))
    assert report.exit_code == 0, report.scenarios[0].reason


def test_what_a_role_leaves_behind_fails_it_and_is_killed() -> None:
    names = ("leak_fd", "grandchild", "daemon")
    scenarios = [with_role(pair(name), "consumer[0]", name) for name in names]
    scenarios.append(with_role(same("same"), "producer", "leak_fd"))
    reports = run(*scenarios).scenarios
    for one in reports:
        assert (one.observed, one.reason_code) == (Outcome.FAILED, "ledger"), one.reason
    assert re.search(
        r"consumer\[0\]: left behind: fd \d+ \(/memfd:forgotten \(deleted\)\)", reports[0].reason
    )
    for one, count in ((reports[1], 1), (reports[2], 2)):
        pids = re.findall(r"process (\d+) ", " ".join(one.notes))
        assert len(pids) == count
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(int(pid), 0)


def test_who_left_a_process_behind_is_blamed_alone_where_its_worker_saw_it() -> None:
    innocent = with_role(pair(), "producer", "close_stdout")
    (one,) = run(with_role(innocent, "consumer[0]", "grandchild")).scenarios
    assert one.reason.startswith("consumer[0]: left behind: process ")
    assert worker(one, "producer").outcome is Outcome.PASSED


def test_processes_left_by_one_that_ended_do_not_hold_up_the_run() -> None:
    names = ("grandchild_then_exit", "flooding_grandchild_then_exit")
    reports = run(*(with_role(pair(name), "producer", name) for name in names)).scenarios
    for one in reports:
        assert (one.observed, one.reason_code) == (Outcome.CRASHED, "exited")
        assert "left behind: process" in one.notes[0]
        assert one.elapsed_s < 10


def test_children_that_were_there_before_are_left_alone() -> None:
    pid = os.fork()
    if pid == 0:
        os.execlp("sleep", "sleep", "60")
    try:
        assert run(pair()).exit_code == 0
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_files_left_open_by_one_scenario_are_not_held_against_the_next(tmp_path: Path) -> None:
    report = run(with_role(pair("leaks"), "producer", "leak_fd"), pair("next"))
    assert [one.outcome for one in report.scenarios] == [Outcome.FAILED, Outcome.PASSED]


# Capture by itself.


def captured(*chunks: bytes) -> tuple[list[str], list[LogLine]]:
    seen: list[LogLine] = []
    capture = Capture(lambda: 1.5, seen.append)
    for chunk in chunks:
        capture.feed("stdout", chunk)
    capture.end()
    assert list(capture.lines()) == seen
    return [line.message for line in seen], seen


def test_lines_are_joined_whatever_the_reads_cut() -> None:
    assert captured(b"a", b"", b"b\nc\n\n", b"d") == (
        ["ab", "c", "", "d"],
        [LogLine(1.5, "stdout", text) for text in ("ab", "c", "", "d")],
    )
    assert captured("é\n".encode()[:1], "é\n".encode()[1:])[0] == ["é"]


def test_a_line_without_an_end_is_cut_into_pieces_rather_than_held() -> None:
    lines, _ = captured(*[b"x" * 50_000] * 4)
    assert "".join(lines) == "x" * 200_000
    assert max(map(len, lines)) <= 16 * 1024


def test_streams_are_told_apart() -> None:
    seen: list[LogLine] = []
    capture = Capture(lambda: 0, seen.append)
    capture.feed("stdout", b"out")
    capture.feed("stderr", b"err\n")
    capture.feed("stdout", b"put\n")
    assert [(line.level, line.message) for line in seen] == [("stderr", "err"), ("stdout", "output")]


def test_lines_keep_their_order_where_head_and_tail_meet() -> None:
    numbers = [f"{number:06} {'x' * (number % 7 * 1000)}" for number in range(1000)]
    lines, _ = captured("\n".join(numbers).encode() + b"\n")
    kept = [line for line in lines if not line.startswith("…")]
    assert kept == sorted(kept)
    assert len(kept) < 1000


def test_of_a_flood_of_short_lines_the_last_are_kept_and_all_others_counted() -> None:
    count = 300_000
    text = "".join(f"{number}\n" for number in range(count)).encode()
    lines, _ = captured(*(text[start : start + 65_536] for start in range(0, len(text), 65_536)))
    assert (lines[0], lines[-1]) == ("0", str(count - 1))
    (cut,) = [line for line in lines if line.startswith("…")]
    assert cut == f"… {count - len(lines) + 1} lines cut here …"
