"""The ledger: what a process holds now and did not hold before."""

from __future__ import annotations

import os

from dmabuf_mp import ledger
from dmabuf_mp.ledger import Ledger, growth


def test_what_is_opened_and_kept_is_named_and_what_is_closed_is_not() -> None:
    before = ledger.take()
    kept, closed = os.memfd_create("kept"), os.memfd_create("closed")
    os.close(closed)
    after = ledger.take()
    os.close(kept)
    assert growth(before, after) == f"fd {kept} (/memfd:kept (deleted))"
    assert growth(before, ledger.take()) == ""


def test_another_file_under_an_old_number_is_growth() -> None:
    assert growth(Ledger({5: "/a"}, frozenset()), Ledger({5: "/b"}, frozenset())) == "fd 5 (/b)"


def test_children_are_named_by_their_command() -> None:
    pid = os.getpid()
    text = growth(Ledger({}, frozenset({1})), Ledger({}, frozenset({1, pid})))
    assert text.startswith(f"process {pid} (")
    assert "python" in text
