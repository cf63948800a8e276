"""YAML 1.2 text → documents as trees whose every key and value knows where it stands.

Stricter than YAML: no tags, no merge keys, no key twice, no number that other readers take for another.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
)
from ruamel.yaml.reader import ReaderError

from dmabuf_mp.scenario.parser import events, in_plain_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dmabuf_mp.model import Json

MAX_DEPTH = 32
# Values of one file once aliases and matrices are expanded: well above what 1 MiB can spell out.
MAX_VALUES = 1_000_000
_MAX_SYNTAX_ERRORS = 20

_CONSTANTS: dict[str, Json] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_ODD_INTEGER = re.compile(r"\+?0o[0-7]+|[-+]?[0-9]+")
# The parser's time grows with the square of a tag's length.
_ENDLESS_TAG = re.compile(r"!\S{100000}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NEXT_DOCUMENT = re.compile(r"^---(?=\s|\Z)", re.MULTILINE)
_LINE_BREAK = re.compile(r"\r\n?|\n")


class Place(Protocol):
    """Somewhere in a file; lines and columns count from 1."""

    @property
    def line(self) -> int: ...
    @property
    def column(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Position:
    """A place and nothing else."""

    line: int = 1
    column: int = 1


@dataclass(slots=True, eq=False)
class Scalar:
    """One scalar: `value` as YAML 1.2 resolves it, `text` as it is written (without quotes)."""

    line: int
    column: int
    text: str
    value: Json
    values: int = 1
    depth: int = 0


@dataclass(slots=True, eq=False)
class Mapping:
    """Keys and values in order; `values` and `depth` measure the tree below, aliases expanded."""

    line: int
    column: int
    items: dict[str, tuple[Place, Node]] = field(default_factory=dict)
    values: int = 1
    depth: int = 1


@dataclass(slots=True, eq=False)
class Sequence:
    """Values in order, measured like a mapping's."""

    line: int
    column: int
    items: list[Node] = field(default_factory=list)
    values: int = 1
    depth: int = 1


Node = Scalar | Mapping | Sequence
Report = Callable[[Place, str], None]


class _Refused(Exception):
    """Something that makes the rest of the document unreadable."""

    def __init__(self, place: Place, message: str) -> None:
        super().__init__(message)
        self.place = place


def documents(text: str, report: Report) -> Iterator[Mapping]:
    """Yield each document's root; tell `report` of every problem, and go on at the next document."""
    if _ENDLESS_TAG.search(text):
        report(Position(), "not valid YAML: a tag (!…) of more than 100,000 characters")
        return
    first_line = 0
    for _ in range(_MAX_SYNTAX_ERRORS):
        composer = _Composer(text, first_line, report)
        try:
            yield from composer.roots()
            return
        except _Refused as refused:
            report(refused.place, str(refused))
        except YAMLError as error:
            report(composer.place_of(error), f"not valid YAML: {in_plain_words(error)}")
        # At least one character on, so that the same document is not read again.
        following = _NEXT_DOCUMENT.search(text, max(composer.index, 1))
        if following is None:
            return
        first_line += len(_LINE_BREAK.findall(text, 0, following.start()))
        text = text[following.start() :]
    report(
        Position(first_line + 1),
        f"{_MAX_SYNTAX_ERRORS} documents are unreadable: nothing from here on was read",
    )


def to_data(node: Node) -> Json:
    """Return a tree's plain data, fresh each time."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Mapping):
        return {key: to_data(value) for key, (_, value) in node.items.items()}
    return [to_data(value) for value in node.items]


class _Composer:
    """Builds trees from the parser's events; `place` and `index` are the furthest it has come."""

    def __init__(self, text: str, first_line: int, report: Report) -> None:
        self.text = text
        self.first_line = first_line
        self.report = report
        self.events = events(text)
        self.anchors: dict[str, Node | None] = {}
        self.place: Place = Position(first_line + 1)
        self.index = 0

    def at(self, mark: object) -> Position:
        """Return the place of a parser's mark, and remember it as the furthest seen."""
        self.index = mark.index  # type: ignore[attr-defined]
        self.place = Position(self.first_line + mark.line + 1, mark.column + 1)  # type: ignore[attr-defined]
        return self.place

    def place_of(self, error: YAMLError) -> Place:
        if isinstance(error, ReaderError):
            before = self.text[: error.position]
            breaks = [match.end() for match in _LINE_BREAK.finditer(before)]
            self.index = len(self.text)
            return Position(self.first_line + len(breaks) + 1, len(before) - (breaks or [0])[-1] + 1)
        mark = error.problem_mark or error.context_mark if isinstance(error, MarkedYAMLError) else None
        return self.at(mark) if mark is not None else self.place

    def roots(self) -> Iterator[Mapping]:
        for event in self.events:
            if not isinstance(event, DocumentStartEvent):
                continue
            self.anchors.clear()
            start = self.at(event.start_mark)
            if event.version not in (None, (1, 2)):
                self.report(start, f"YAML {event.version[0]}.{event.version[1]}: scenario files are YAML 1.2")
            root = next(self.events)
            if isinstance(root, MappingStartEvent):
                node = self.node(root, 1)
                if isinstance(node, Mapping):
                    yield node
            elif isinstance(root, ScalarEvent) and not root.value:
                self.report(start, "this document is empty: remove its `---`, or write a scenario")
            else:
                # Not read any further, whatever its size.
                place = self.at(root.start_mark)
                raise _Refused(place, "a scenario is a mapping of keys to values, such as `size: 16KiB`")

    def node(self, event: object, depth: int) -> Node:
        mark = event.start_mark  # type: ignore[attr-defined]
        if isinstance(event, AliasEvent):
            return self.alias(event.anchor, self.at(mark), depth)
        line, column = self.first_line + mark.line + 1, mark.column + 1
        if event.ctag is not None:  # type: ignore[attr-defined]
            self.report(self.at(mark), "tags (!…) are not allowed: write the value alone")
        anchor: str | None = event.anchor  # type: ignore[attr-defined]
        if anchor is not None:
            self.anchors[anchor] = None
        node: Node
        if isinstance(event, ScalarEvent):
            node = self.scalar(event, line, column)
        else:
            if depth > MAX_DEPTH:
                raise _Refused(self.at(mark), f"nested deeper than {MAX_DEPTH} levels")
            if isinstance(event, MappingStartEvent):
                node = self.mapping(Mapping(line, column), depth)
            else:
                node = self.sequence(Sequence(line, column), depth)
        if anchor is not None:
            self.anchors[anchor] = node
        return node

    def scalar(self, event: ScalarEvent, line: int, column: int) -> Scalar:
        text: str = event.value
        if _SURROGATE.search(text):
            self.report(self.at(event.start_mark), "half of a surrogate pair is no character")
            return Scalar(line, column, "", "")
        if not event.implicit[0]:
            return Scalar(line, column, text, text)
        if text and text[0] in "-+.0123456789":
            return Scalar(line, column, text, self.number(text, event.start_mark))
        return Scalar(line, column, text, _CONSTANTS.get(text, text))

    def number(self, text: str, mark: object) -> Json:
        """Resolve what looks like a number; one that readers of YAML disagree on is refused."""
        if len(text) > 400:
            return text
        if _INTEGER.fullmatch(text):
            return int(text)
        if _HEX.fullmatch(text):
            return int(text, 16)
        if _ODD_INTEGER.fullmatch(text):
            value = int(text, 8 if "o" in text else 10)
            self.report(self.at(mark), f"readers of YAML disagree on {text}: write {value}, or use quotes")
            return value
        if not _FLOAT.fullmatch(text):
            return text
        number = math.inf if text[-1] in "fFnN" else float(text)
        if math.isfinite(number):
            return number
        self.report(self.at(mark), f"{text} is not a finite number")
        return 0.0

    def mapping(self, node: Mapping, depth: int) -> Mapping:
        while not isinstance(event := next(self.events), MappingEndEvent):
            key = self.node(event, depth + 1)
            value = self.node(next(self.events), depth + 1)
            if isinstance(value, Scalar) and value.value is None and not value.text:
                # A parser finds an absent value where the next thing starts.
                value.line, value.column = key.line, key.column
            self.measure(node, value)
            if not isinstance(key, Scalar):
                self.report(key, "a key is one word of text, not a list or a mapping")
            elif key.text == "<<":
                self.report(key, "merge keys (<<) are not in YAML 1.2: write the keys out")
            elif not isinstance(key.value, str):
                self.report(key, f"a key is text: put {key.text or 'an empty key'} in quotes")
            elif key.text in node.items:
                first = node.items[key.text][0]
                self.report(key, f"key {key.text!r} is here twice: the first is on line {first.line}")
            else:
                node.items[key.text] = (key, value)
        return node

    def sequence(self, node: Sequence, depth: int) -> Sequence:
        while not isinstance(event := next(self.events), SequenceEndEvent):
            value = self.node(event, depth + 1)
            self.measure(node, value)
            node.items.append(value)
        return node

    def alias(self, anchor: str, place: Position, depth: int) -> Node:
        if anchor not in self.anchors:
            raise _Refused(place, f"alias *{anchor} has no anchor &{anchor} before it in this document")
        node = self.anchors[anchor]
        if node is None:
            raise _Refused(place, f"alias *{anchor} is inside what it stands for")
        if depth + node.depth - 1 > MAX_DEPTH:
            raise _Refused(place, f"alias *{anchor} nests deeper than {MAX_DEPTH} levels")
        return node

    def measure(self, node: Mapping | Sequence, value: Node) -> None:
        node.values += value.values
        node.depth = max(node.depth, value.depth + 1)
        if node.values > MAX_VALUES:
            raise _Refused(value, f"more than {MAX_VALUES:,} values once aliases are expanded")
