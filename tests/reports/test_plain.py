from __future__ import annotations

from dmabuf_mp.reports.plain import rows, tree, value

LONG = "a reason that is longer than what fits into a row of a table on anybody's terminal"


def test_rows_are_aligned_under_every_field_that_has_a_value() -> None:
    assert rows([{"a": 1, "b": None}, {"a": "wide", "c": ["x", "y"]}]) == ("a     c\n1\nwide  x, y")
    assert rows([]) == ""


def test_wide_characters_take_two_columns_and_combining_ones_none() -> None:
    assert rows([{"a": "漢字", "b": 1}, {"a": "e\u0301", "b": 2}]) == "a     b\n漢字  1\ne\u0301     2"


def test_long_values_stand_below_their_row_one_by_one() -> None:
    assert rows([{"name": "a", "why": [LONG, "b"], "end": 1}, {"name": "b", "why": None, "end": 2}]) == (
        f"name  end\na     1\n    why: {LONG}\n    why: b\nb     2"
    )


def test_trees_nest() -> None:
    found = {"host": {"kernel": "6.12", "gpu": None}, "devices": [{"a": 1}], "none": [], "list": [1, 2]}
    assert tree(found) == "host:\n  kernel: 6.12\n  gpu: \ndevices:\n  a\n  1\nnone: none\nlist: 1, 2"


def test_values() -> None:
    assert [value(v) for v in (None, True, False, 0, 1.5, "x\x1b", {"a": {"b": 1}})] == [
        "", "yes", "no", "0", "1.5", "x\\x1b", "a=b=1",
    ]  # fmt: skip
