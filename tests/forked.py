"""Runs a part of a test in a forked child: what would change this process for good (limits, filters, roots)."""

from __future__ import annotations

import os
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def in_child(function: Callable[[], object]) -> str:
    """Return str() of what a function returns in a child; AssertionError with its traceback if it raises."""
    receiver, sender = os.pipe()
    pid = os.fork()
    if not pid:
        code, said = 1, ""
        try:
            code, said = 0, str(function())
        except BaseException:
            said = traceback.format_exc()
        finally:
            os.write(sender, said.encode())
            os._exit(code)
    os.close(sender)
    with os.fdopen(receiver, encoding="utf-8") as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the child ended with {os.waitstatus_to_exitcode(status)}: {said}"
    return said
