"""The `-k EXPR` of the command line: which scenarios to run, by words of their names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dmabuf_mp.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

# How tightly each operator binds; an open parenthesis waits below all of them.
_BINDS = {"(": 0, "or": 1, "and": 2, "not": 3}


def selector(expression: str) -> Callable[[str], bool]:
    """Compile words, `and`, `or`, `not` and parentheses into a test of a scenario's name.

    A word holds if the name contains it, in either case; everything but blanks and parentheses belongs to
    words. Raises UsageError, which says where the expression goes wrong.
    """
    postfix = _postfix(expression)

    def matches(name: str) -> bool:
        lowered = name.lower()
        stack: list[bool] = []
        for token in postfix:
            if token == "not":
                stack.append(not stack.pop())
            elif token in ("and", "or"):
                right, left = stack.pop(), stack.pop()
                stack.append((left and right) if token == "and" else (left or right))
            else:
                stack.append(token.lower() in lowered)
        return stack.pop()

    return matches


def _postfix(expression: str) -> list[str]:
    """Put the operators behind their operands; without recursion, so that no depth is too deep."""
    output: list[str] = []
    waiting: list[str] = []
    expect_operand = True

    def refuse(what: str) -> UsageError:
        return UsageError(f"-k {expression!r}: {what}; expected words, and, or, not and parentheses")

    for match in re.finditer(r"[()]|[^\s()]+", expression):
        token = match[0]
        starts_operand = token == "(" or token not in (")", "and", "or")
        column = match.start() + 1
        if starts_operand != expect_operand:
            due = "a word" if expect_operand else "and/or"
            raise refuse(f"column {column}: {token!r} where {due} belongs")
        if token in ("(", "not"):
            waiting.append(token)
        elif token == ")":
            while waiting and waiting[-1] != "(":
                output.append(waiting.pop())
            if not waiting:
                raise refuse(f"column {column}: ')' without '('")
            waiting.pop()
        elif token in _BINDS:
            while waiting and _BINDS[waiting[-1]] >= _BINDS[token]:
                output.append(waiting.pop())
            waiting.append(token)
            expect_operand = True
        else:
            output.append(token)
            expect_operand = False
    if expect_operand:
        raise refuse("it ends where a word belongs" if expression.strip() else "it is empty")
    if "(" in waiting:
        raise refuse("'(' without ')'")
    return output + waiting[::-1]
