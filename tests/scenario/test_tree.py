"""YAML, strictly: what is refused, where, and what is read on from there."""

from __future__ import annotations

import pytest

from dmabuf_mp.scenario.tree import MAX_DEPTH, Place, documents, to_data


def read(text: str) -> tuple[list[object], list[str]]:
    """Return the documents' data and the problems."""
    problems: list[str] = []

    def report(place: Place, message: str) -> None:
        problems.append(f"{place.line}:{place.column}: {message}")

    return [to_data(root) for root in documents(text, report)], problems


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NO", "NO"),
        ("on", "on"),
        ("yes", "yes"),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("2026-11-30", "2026-11-30"),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("'null'", "null"),
        ('"5"', "5"),
        ("5", 5),
        ("-5", -5),
        ("0", 0),
        ("0x1F", 31),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("-", None),
        ("cuda:0", "cuda:0"),
        ("cuda:*", "cuda:*"),
        ("1" * 500, "1" * 500),
    ],
)
def test_scalars_are_yaml_1_2(text: str, value: object) -> None:
    if text == "-":
        assert read("a: [-1, '-']") == ([{"a": [-1, "-"]}], [])
        return
    assert read(f"a: {text}\n") == ([{"a": value}], [])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("010", "1:4: readers of YAML disagree on 010: write 10, or use quotes"),
        ("08", "1:4: readers of YAML disagree on 08: write 8, or use quotes"),
        ("0o17", "1:4: readers of YAML disagree on 0o17: write 15, or use quotes"),
        ("+5", "1:4: readers of YAML disagree on +5: write 5, or use quotes"),
        (".inf", "1:4: .inf is not a finite number"),
        (".NaN", "1:4: .NaN is not a finite number"),
        ("1e999", "1:4: 1e999 is not a finite number"),
        ("!!str 5", "1:4: tags (!…) are not allowed: write the value alone"),
        ("! 5", "1:4: tags (!…) are not allowed: write the value alone"),
        ("!x {b: c}", "1:4: tags (!…) are not allowed: write the value alone"),
        ('"\\ud800"', "1:4: half of a surrogate pair is no character"),
        ("*x", "1:4: alias *x has no anchor &x before it in this document"),
        ("&x [*x]", "1:8: alias *x is inside what it stands for"),
        ("b: c", "1:5: not valid YAML: no ': ' is allowed here: check the indentation, or use quotes"),
        ("[b", "1:6: not valid YAML: expected ',' or ']', but got '<stream end>'"),
        ("@", "1:4: not valid YAML: found character '@' that cannot start any token"),
        ("\x00", "1:4: not valid YAML: character U+0000 is not allowed; is this a text file?"),
        ("\x1b[0m", "1:4: not valid YAML: character U+001B is not allowed; is this a text file?"),
        ('"\\UFFFFFFFF"', "1:1: not valid YAML: Python int too large to convert to C int"),
        ("\n\t- b", "2:1: not valid YAML: a tab: indent with spaces"),
        ("\n<<: {c: d}", "2:1: merge keys (<<) are not in YAML 1.2: write the keys out"),
        ("\n1: c", "2:1: a key is text: put 1 in quotes"),
        ("\n? [b]\n: c", "2:3: a key is one word of text, not a list or a mapping"),
        ("\nb: c\na: d", "3:1: key 'a' is here twice: the first is on line 1"),
    ],
)
def test_refused(text: str, problem: str) -> None:
    assert read(f"a: {text}")[1] == [problem]


def test_an_absent_value_stands_at_its_key() -> None:
    roots: list[object] = []
    for root in documents("a:\n\n\nb: 1\n", lambda *_: None):
        place = root.items["a"][1]
        roots.append((place.line, place.column))
    assert roots == [(1, 1)]


def test_several_documents_and_their_lines() -> None:
    problems: list[str] = []
    roots = list(documents("# first\na: 1\n---\n{b: 2}\n...\nc: 3\n", lambda *_: problems.append("")))
    assert [(root.line, to_data(root)) for root in roots] == [(2, {"a": 1}), (4, {"b": 2}), (6, {"c": 3})]
    assert not problems


def test_an_empty_document_is_told_where_it_starts() -> None:
    empty = "this document is empty: remove its `---`, or write a scenario"
    assert read("---\n---\na: 1\n---\n# nothing\n") == ([{"a": 1}], [f"1:1: {empty}", f"4:1: {empty}"])


@pytest.mark.parametrize("text", ["- a", "text", "'text'", "[", "[" * 2000, "5"])
def test_a_document_that_is_no_mapping(text: str) -> None:
    assert read(text) == ([], ["1:1: a scenario is a mapping of keys to values, such as `size: 16KiB`"])


def test_reading_goes_on_after_a_broken_document() -> None:
    data, problems = read("a: [1\n---\nb: 2\n---\n c: d: e\n---\n- x\n---\nf: 010\n")
    assert data == [{"b": 2}, {"f": 10}]
    assert [problem.split(" ")[0] for problem in problems] == ["2:1:", "5:6:", "7:1:", "9:4:"]


def test_a_file_of_nothing_but_broken_documents_is_given_up() -> None:
    problems = read("---\n{\n" * 1000)[1]
    assert len(problems) < 30
    assert "nothing from here on was read" in problems[-1]


def test_other_versions_of_yaml() -> None:
    assert read("%YAML 1.2\n---\na: b\n") == ([{"a": "b"}], [])
    assert read("%YAML 1.1\n---\na: NO\n") == (
        [{"a": "NO"}],
        ["2:1: YAML 1.1: scenario files are YAML 1.2"],
    )


def test_nesting_is_bounded() -> None:
    assert not read("a: " + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1))[1]
    assert read("a: " + "[" * 2000)[1] == [f"1:{3 + MAX_DEPTH}: nested deeper than {MAX_DEPTH} levels"]
    half = "[" * (MAX_DEPTH // 2) + "]" * (MAX_DEPTH // 2)
    nested = "[" * (MAX_DEPTH // 2) + "*x" + "]" * (MAX_DEPTH // 2)
    assert "alias *x nests deeper" in read(f"a: &x {half}\nb: {nested}")[1][0]


def test_aliases_within_a_document() -> None:
    assert read("a: &x {b: [1, 2]}\nc: *x\n") == ([{"a": {"b": [1, 2]}, "c": {"b": [1, 2]}}], [])
    assert "has no anchor" in read("a: &x 1\n---\nb: *x\n")[1][0]


def test_an_alias_bomb_is_refused_before_it_is_expanded() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    data, problems = read("\n".join(lines))
    assert data == []
    assert len(problems) == 1
    assert "more than 1,000,000 values once aliases are expanded" in problems[0]


def test_an_endless_tag() -> None:
    assert "tag (!…) of more than 100,000 characters" in read("a: " + "!" * 200_000)[1][0]
