"""Text for what the commands besides `run` answer: aligned rows, and trees of names and values."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from dmabuf_mp.reports.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dmabuf_mp.model import Json, Scenario

EMPTY: tuple[Json, ...] = (None, "", [], (), {})
LONG = 60  # columns from which on a value stands below its row


def entry(scenario: Scenario) -> dict[str, Json]:
    """Return what `list` says of one scenario."""
    return {
        "name": scenario.name,
        "devices": [role.device for role in scenario.roles],
        "size_bytes": scenario.size_bytes,
        "rounds": scenario.rounds,
        "file": scenario.file,
        "line": scenario.line,
    }


def rows(entries: Sequence[Mapping[str, Json]]) -> str:
    """Return one aligned line for each entry, under the names of the fields that have any value.

    Long values stand below the line.
    """
    fields = dict.fromkeys(name for one in entries for name, content in one.items() if content not in EMPTY)
    long = [name for name in fields if any(width(value(one.get(name))) > LONG for one in entries)]
    short = [name for name in fields if name not in long]
    cells = [short, *([value(one.get(name)) for name in short] for one in entries)]
    widths = [max(width(row[i]) for row in cells) for i in range(len(short))]
    heading, *aligned = (
        "  ".join(cell + " " * (most - width(cell)) for cell, most in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )
    lines = [heading]
    for line, one in zip(aligned, entries, strict=True):
        lines.append(line)
        lines += [f"    {name}: {text}" for name in long for text in _one_by_one(one.get(name))]
    return "\n".join(lines)


def _one_by_one(content: Json) -> list[str]:
    items = content if isinstance(content, (list, tuple)) else [content]
    return [value(item) for item in items if item not in (None, "")]


def tree(found: Mapping[str, Json]) -> str:
    """Return names and values, nested ones indented."""
    return "\n".join(_branches(found, ""))


def _branches(found: Mapping[str, Json], indent: str) -> Iterator[str]:
    for name, content in found.items():
        if isinstance(content, dict) and content:
            yield f"{indent}{printable(name)}:"
            yield from _branches(content, indent + "  ")
        elif isinstance(content, (list, tuple)) and content and all(isinstance(one, dict) for one in content):
            yield f"{indent}{printable(name)}:"
            yield from (f"{indent}  {line}" for line in rows(content).split("\n"))
        else:
            yield f"{indent}{printable(name)}: {value(content)}"


def value(content: Json) -> str:
    """Return one value on one line: lists with commas, nothing for null, mappings as `name=value`."""
    if content is None:
        return ""
    if content in ([], (), {}):
        return "none"
    if isinstance(content, bool):
        return "yes" if content else "no"
    if isinstance(content, dict):
        return ", ".join(f"{printable(name)}={value(inner)}" for name, inner in content.items())
    if isinstance(content, (list, tuple)):
        return ", ".join(value(inner) for inner in content)
    return printable(str(content))


def width(text: str) -> int:
    """Return how many columns a terminal takes for a text."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else not unicodedata.combining(c) for c in text)
