"""`matrix:` expands one document into many, as trees: every value keeps its place in the file."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dmabuf_mp.scenario.tree import Mapping, Scalar, Sequence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dmabuf_mp.scenario.tree import Node, Place, Report

MAX_AXES = 64
# What a name shows of one value; two of one name are numbered in the report.
_SHOWN = 64


@dataclass(frozen=True, slots=True)
class Axis:
    """One field of a matrix: its dotted name, where that stands, and the values it takes in turn."""

    name: str
    place: Place
    values: tuple[Node, ...]


def axes(root: Mapping, report: Report) -> tuple[Axis, ...]:
    """Return a document's axes in order, none where it has no (usable) matrix; tell of every mistake."""
    if "matrix" not in root.items:
        return ()
    place, node = root.items["matrix"]
    if not isinstance(node, Mapping) or not node.items:
        report(node, "expected a mapping of fields to lists of values, such as `size: [4KiB, 1MiB]`")
        return ()
    if len(node.items) > MAX_AXES:
        report(node, f"at most {MAX_AXES} fields can vary, here are {len(node.items)}")
        return ()
    found: list[Axis] = []
    for name, (place, values) in node.items.items():
        above = next((axis.name for axis in found if _overlap(axis.name, name)), None)
        if name.partition(".")[0] == "matrix" or "" in name.split("."):
            report(place, f"{name!r} names no field: expected a dotted name such as producer.device")
        elif above is not None:
            report(place, f"{name!r} and {above!r} set the same field: use one of them")
        elif not isinstance(values, Sequence) or not values.items:
            report(values, "expected a list of values, such as [4KiB, 1MiB]")
        else:
            found.append(Axis(name, place, tuple(values.items)))
    return tuple(found)


def values(root: Mapping, axes_: tuple[Axis, ...]) -> int:
    """Return how many values all those scenarios hold together."""
    times = count(axes_)
    bare = root.values - (root.items["matrix"][1].values if "matrix" in root.items else 0)
    varying = sum(times // len(axis.values) * sum(node.values for node in axis.values) for axis in axes_)
    return times * bare + varying


def count(axes_: tuple[Axis, ...]) -> int:
    """Return how many scenarios the axes make, without making them."""
    return math.prod(len(axis.values) for axis in axes_)


def expand(
    root: Mapping, axes_: tuple[Axis, ...], report: Report
) -> Iterator[tuple[dict[str, Node], Mapping]]:
    """Yield (the values chosen, the document with them in place), the last axis varying fastest."""
    bare = Mapping(root.line, root.column, {key: pair for key, pair in root.items.items() if key != "matrix"})
    for values in itertools.product(*(axis.values for axis in axes_)):
        document: Node = bare
        for axis, value in zip(axes_, values, strict=True):
            try:
                document = _put(document, axis.name.split("."), value, axis.place, ())
            except LookupError as error:
                report(axis.place, str(error.args[0]))
                return
        if isinstance(document, Mapping):
            yield dict(zip((axis.name for axis in axes_), values, strict=True)), document


def label(chosen: dict[str, Node]) -> str:
    """Return what is appended to a scenario's name: `[size=16KiB,rounds=2]`, or nothing without choices."""
    texts = {name: _text(node) for name, node in chosen.items()}
    cut = (f"{name}={text[:_SHOWN]}{'…' * (len(text) > _SHOWN)}" for name, text in texts.items())
    return f"[{','.join(cut)}]" if chosen else ""


def _text(node: Node) -> str:
    if isinstance(node, Scalar):
        return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in node.text)
    if isinstance(node, Sequence):
        return f"[{','.join(_text(value) for value in node.items)}]"
    return f"{{{','.join(f'{key}:{_text(value)}' for key, (_, value) in node.items.items())}}}"


def _overlap(first: str, second: str) -> bool:
    return f"{first}.".startswith(f"{second}.") or f"{second}.".startswith(f"{first}.")


def _put(node: Node | None, keys: list[str], value: Node, place: Place, above: tuple[str, ...]) -> Node:
    """Return a copy of the tree with one value replaced; only what lies on the way to it is copied."""
    if not keys:
        return value
    key, *rest = keys
    path = (*above, key)
    if isinstance(node, Sequence):
        if not (key.isascii() and key.isdecimal() and str(int(key)) == key and int(key) < len(node.items)):
            raise LookupError(f"{'.'.join(above)!r} has no entry {key!r}: its {len(node.items)} count from 0")
        items = list(node.items)
        items[int(key)] = _put(items[int(key)], rest, value, place, path)
        return Sequence(node.line, node.column, items)
    if isinstance(node, Scalar):
        # The short form of a role or a pattern, which the full form replaces.
        node = Mapping(node.line, node.column, {"kind" if above == ("pattern",) else "device": (node, node)})
    elif node is None:
        node = Mapping(place.line, place.column)
    inner = node.items.get(key, (place, None))[1]
    replaced = _put(inner, rest, value, place, path)
    return Mapping(node.line, node.column, node.items | {key: (place, replaced)})
