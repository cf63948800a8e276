"""Roles of your own, for own_role.yaml: a role is a function of one context."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dmabuf_mp import Context


def slow_producer(context: Context) -> None:
    """Share a buffer, and log how each round was filled."""

    def fill(buffer, round_):  # type: ignore[no-untyped-def]
        context.fill(buffer, round_)
        context.log(f"round {round_} of {context.params['greeting']} is filled")

    context.share(fill)


def counting_consumer(context: Context) -> None:
    """Check every round, and log the first word that came."""

    def each(buffer, round_):  # type: ignore[no-untyped-def]
        first = int.from_bytes(context.device.read(buffer, 0, 4), "little")
        counts = context.check(buffer, round_)  # a consumer passes only through check()
        context.log(f"round {round_}: {counts.matched} positions match, the first word is {first:#010x}")

    context.receive(each)
