"""The `-k EXPR` of the command line."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmabuf_mp.errors import UsageError
from dmabuf_mp.select import selector


@pytest.mark.parametrize(
    ("expression", "matching", "other"),
    [
        ("memfd", ["cpu-memfd", "MEMFD"], ["cpu-udmabuf"]),
        ("cpu-memfd", ["cpu-memfd"], ["cpu_memfd", "cpu memfd"]),
        ("cpu_memfd", ["cpu_memfd"], ["cpu-memfd"]),
        ("not memfd", ["udmabuf"], ["memfd"]),
        ("not not memfd", ["memfd"], ["udmabuf"]),
        ("a and b", ["ab"], ["a", "b"]),
        ("a or b", ["a", "b"], ["c"]),
        ("a or b and c", ["a", "bc"], ["b", "c"]),
        ("(a or b) and c", ["ac", "bc"], ["a", "b", "c"]),
        ("not a and b", ["b"], ["ab", "c"]),
        ("not (a and b)", ["a", "b", "c"], ["ab"]),
        ("a and not b or c", ["a", "bc"], ["ab"]),
        ("size=16KiB", ["sizes[size=16KiB]"], ["sizes[size=4KiB]"]),
        ("#2", ["name#2"], ["name"]),
        ("and-or", ["and-or"], ["and"]),
        ("gerät", ["GERÄT"], ["gerat"]),
    ],
)
def test_selects(expression: str, matching: list[str], other: list[str]) -> None:
    matches = selector(expression)
    assert [name for name in matching + other if matches(name)] == matching


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("", "it is empty"),
        ("  ", "it is empty"),
        ("a b", "column 3: 'b' where and/or belongs"),
        ("and a", "column 1: 'and' where a word belongs"),
        ("a and", "it ends where a word belongs"),
        ("a or or b", "column 6: 'or' where a word belongs"),
        ("not", "it ends where a word belongs"),
        ("()", "column 2: ')' where a word belongs"),
        ("(a", "'(' without ')'"),
        ("a)", "column 2: ')' without '('"),
        ("a (b)", "column 3: '(' where and/or belongs"),
        ("a not b", "column 3: 'not' where and/or belongs"),
    ],
)
def test_refused(expression: str, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        selector(expression)


def test_no_depth_is_too_deep() -> None:
    depth = 20_000
    assert selector("(" * depth + "a" + ")" * depth)("a")
    assert selector("not " * depth + "a")("a")


@given(
    st.recursive(
        st.sampled_from("abc"),
        lambda part: st.one_of(
            st.tuples(st.just("not"), part), st.tuples(part, st.sampled_from(["and", "or"]), part)
        ),
    ),
    st.sampled_from(["", "a", "b", "c", "ab", "bc", "ac", "abc"]),
)
def test_agrees_with_python(tree: object, name: str) -> None:
    def text(part: object) -> str:
        return part if isinstance(part, str) else "(" + " ".join(text(inner) for inner in part) + ")"  # type: ignore[attr-defined]

    values = {word: word in name for word in "abc"}
    assert selector(text(tree))(name) == eval(text(tree), {}, values)
