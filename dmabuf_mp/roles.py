"""The built-in roles, and how a role of the user's own is found.

A role is a function of one `Context`; these use nothing that a role of the user's own does not have.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from typing import TYPE_CHECKING

from dmabuf_mp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dmabuf_mp.assignment import Part
    from dmabuf_mp.backends.base import Buffer
    from dmabuf_mp.context import Context
    from dmabuf_mp.model import RoleFunction


def produce(context: Context) -> None:
    """Share a buffer with the scenario's pattern in it."""
    context.share()


def consume(context: Context) -> None:
    """Receive a buffer, check every round, and write back where the scenario says so."""
    context.receive()


def relay(context: Context) -> None:
    """Receive a buffer, check every round, and pass it on."""

    def check_and_forward(buffer: Buffer, round_: int) -> None:
        context.check(buffer, round_)
        context.forward(buffer, round_)

    context.receive(check_and_forward)


BUILT_IN = {"producer": produce, "consumer": consume, "relay": relay}


def extend_path(search_path: Sequence[str]) -> None:
    """Add folders in which a user's role may lie to the end of this process's search path."""
    sys.path.extend(folder for folder in search_path if folder not in sys.path)


def resolve(function: str) -> RoleFunction:
    """Import `package.module:function` and return it; raises UsageError that says what is missing.

    Importing runs the user's code: it is done in workers only, never in the orchestrator.
    """
    module_name, _, name = function.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(f"role {function!r}: {error}; looked in {', '.join(sys.path)}") from error
    found = getattr(module, name, None)
    if found is None:
        raise UsageError(f"role {function!r}: {module_name} at {module.__file__} has no function {name!r}")
    if not callable(found):
        raise UsageError(f"role {function!r}: {name!r} is a {type(found).__name__}, not a function")
    role: RoleFunction = found
    return role


def function_of(part: Part) -> RoleFunction:
    """Return the function that plays a part: the user's, or the built-in one."""
    if part.function is None:
        return BUILT_IN[part.role]
    extend_path(part.search_path)
    if isinstance(part.function, str):
        return resolve(part.function)
    try:
        role: RoleFunction = pickle.loads(part.function)
    except Exception as error:
        raise UsageError(f"the role function cannot be received: {type(error).__name__}: {error}") from error
    return role
