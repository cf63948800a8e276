"""The ledger: what this process holds, before and after, and what grew in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dmabuf_mp.linux import process

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Ledger:
    """Open fds by number with what each stands for, and the pids of children."""

    fds: Mapping[int, str]
    children: frozenset[int]


def take() -> Ledger:
    """Look at what this process holds now."""
    return Ledger(process.open_fds(), process.children())


def growth(before: Ledger, after: Ledger) -> str:
    """Name what is held now and was not before; an empty text when nothing is."""
    # By what it stands for, too: a number may have been closed and given out again.
    grown = [f"fd {number} ({what})" for number, what in after.fds.items() if before.fds.get(number) != what]
    grown += [f"process {pid} ({process.command(pid)})" for pid in sorted(after.children - before.children)]
    return ", ".join(grown)
