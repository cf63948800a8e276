"""What one worker is told to do in one scenario: everything it needs, resolved and frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dmabuf_mp.model import Fault, Json, RoleName
    from dmabuf_mp.patterns import Pattern


@dataclass(frozen=True, slots=True)
class Attempt:
    """One (memory, handle) to try; `importers` is what this part's role may import it with, in order."""

    memory: str
    handle: str
    importers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a link: its label, and whether it writes its own pattern back."""

    label: str
    writes: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """One role's part in one scenario.

    `receives` are the attempts of the buffer that comes from `upstream`; `offers` are those of the
    buffer that goes to `downstream` (the same buffer for a relay that forwards the fd, so empty there).
    `function` is `package.module:function` or a serialised callable, None for the built-in role.
    `patience_s` is how long it waits for a peer as the last resort.
    """

    label: str
    role: RoleName
    index: int
    device: str
    size_bytes: int
    pattern: Pattern
    rounds: int
    patience_s: float
    upstream: str | None = None
    downstream: tuple[Peer, ...] = ()
    receives: tuple[Attempt, ...] = ()
    offers: tuple[Attempt, ...] = ()
    access: Literal["read", "readwrite"] = "read"
    forward: Literal["fd", "copy"] = "fd"
    function: str | bytes | None = None
    params: Mapping[str, Json] = field(default_factory=dict)
    options: Mapping[str, Json] = field(default_factory=dict)
    search_path: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()
