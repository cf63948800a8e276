"""Fd: one owner, which closes once."""

from __future__ import annotations

import os

import pytest

from dmabuf_mp.fds import Fd
from tests.forked import in_child


def open_fd() -> Fd:
    return Fd(os.memfd_create("test"))


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def test_close_closes_once_and_never_a_later_fd_of_the_same_number() -> None:
    fd = open_fd()
    number = fd.fileno()
    fd.close()
    assert fd.closed
    assert not is_open(number)
    with open_fd() as later:
        assert later.fileno() == number
        fd.close()
        assert is_open(number)


def test_take_hands_the_number_on() -> None:
    fd = open_fd()
    number = fd.take()
    fd.close()
    assert is_open(number)
    os.close(number)
    for use in (fd.fileno, fd.take, fd.duplicate):
        with pytest.raises(ValueError, match="closed or was handed on"):
            use()


def test_a_duplicate_has_a_life_of_its_own_and_closes_on_exec() -> None:
    fd = open_fd()
    with fd.duplicate() as second:
        fd.close()
        assert is_open(second.fileno())
        assert not os.get_inheritable(second.fileno())


def test_whoever_forgets_it_leaks_nothing() -> None:
    fd = open_fd()
    number = fd.fileno()
    del fd
    assert not is_open(number)


def test_leaving_the_with_block_closes() -> None:
    with pytest.raises(KeyError), open_fd() as fd:
        number = fd.fileno()
        raise KeyError
    assert not is_open(number)


def test_minus_one_is_refused_and_zero_is_an_fd() -> None:
    with pytest.raises(ValueError, match="never negative"):
        Fd(-1)

    def owns_zero() -> bool:
        os.dup2(open_fd().take(), 0)
        fd = Fd(0)
        assert not fd.closed and repr(fd) == "<Fd 0>"
        fd.close()
        return fd.closed and not is_open(0)

    assert in_child(owns_zero) == "True"


def test_repr_is_a_status_line() -> None:
    fd = open_fd()
    assert repr(fd) == f"<Fd {fd.fileno()}>"
    fd.close()
    assert repr(fd) == "<Fd closed>"
