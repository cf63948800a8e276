"""The board: one process writes what it does, another reads it at any time."""

from __future__ import annotations

import os

from dmabuf_mp.board import Board


def test_the_other_process_reads_what_was_written_last_even_after_the_writers_end() -> None:
    board = Board()
    assert (board.phase, board.peer, board.due, board.last_frame) == ("", None, "", "")
    pid = os.fork()
    if pid == 0:
        board.enter("import")
        board.got("producer", "offer")
        board.waiting("producer", "filled")
        os._exit(0)
    os.waitpid(pid, 0)
    assert (board.phase, board.peer, board.due) == ("import", "producer", "filled")
    assert board.last_frame == "'offer' from producer"


def test_who_enters_a_phase_or_gets_a_frame_waits_for_nobody() -> None:
    board = Board()
    for go_on in (lambda: board.enter("check"), lambda: board.got("producer", "offer"), board.clear):
        board.waiting("producer", "offer")
        assert board.peer == "producer"
        go_on()
        assert board.peer is None
    assert (board.phase, board.last_frame) == ("", "")


def test_a_shorter_text_leaves_nothing_of_a_longer_one_and_a_long_one_is_cut() -> None:
    board = Board()
    board.enter("é" * 200)
    board.enter("x")
    assert board.phase == "x"
    board.enter("y" * 500)
    assert board.phase == "y" * 128
    board.waiting("consumer[0]", "ack")
    assert (board.peer, board.due) == ("consumer[0]", "ack")


def test_what_struck_and_which_path_was_taken_is_kept_until_it_is_cleared() -> None:
    board = Board()
    board.strike(1)
    board.trying("memfd/memfd/mmap")
    board.enter("check")
    assert [board.has_struck(number) for number in range(3)] == [False, True, False]
    assert board.path == "memfd/memfd/mmap"
    board.clear()
    assert (board.has_struck(1), board.path) == (False, "")
