"""Roles that do what the built-in ones do, and take their time: so that a kill finds them at it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dmabuf_mp import Context
    from dmabuf_mp.backends.base import Buffer

STEP_S = 0.04


def produce(context: Context) -> None:
    def fill(buffer: Buffer, round_: int) -> None:
        time.sleep(STEP_S)
        context.fill(buffer, round_)

    context.share(fill)


def consume(context: Context) -> None:
    def check(buffer: Buffer, round_: int) -> None:
        context.check(buffer, round_)
        time.sleep(STEP_S)

    context.receive(check)


def relay(context: Context) -> None:
    def check_and_forward(buffer: Buffer, round_: int) -> None:
        context.check(buffer, round_)
        time.sleep(STEP_S)
        context.forward(buffer, round_)

    context.receive(check_and_forward)


def start_late(context: Context) -> None:
    time.sleep(3 * STEP_S)
    context.share()
