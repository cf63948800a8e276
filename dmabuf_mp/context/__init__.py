"""Context: what a role function gets, and everything that it can do with a buffer."""

from __future__ import annotations

from dmabuf_mp.context.consuming import Consuming

__all__ = ["Context"]


class Context(Consuming):
    """What a role function gets: its device, its peers, the scenario's pattern, a log, a deadline.

    `share` is a producer's whole part, `receive` a consumer's; a relay calls `forward` within `receive`.
    Lengths and offsets are in bytes; a round counts from 0.
    """
