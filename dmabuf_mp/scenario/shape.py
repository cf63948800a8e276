"""The format of a scenario file as pydantic models, made from what the backends say they have.

Types, names and ranges are judged here; what goes together is judged by `checks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic_core import core_schema

from dmabuf_mp.backends import paths
from dmabuf_mp.faults import CATALOGUE, PHASES
from dmabuf_mp.patterns import DEFAULT_BASE, KINDS, M
from dmabuf_mp.scenario.checks import EXPECTABLE, MAX_ROLES, MAX_ROUNDS, device_error, is_function_name
from dmabuf_mp.sizes import (
    DURATION_HELP,
    DURATION_PATTERN,
    MAX_SIZE_BYTES,
    SIZE_HELP,
    SIZE_PATTERN,
    parse_duration,
    parse_size,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue

FieldType = Any  # what a field of `create_model` may be: a type, or an Annotated one
FUNCTION_PATTERN = r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*$"


MAX_NAME = 255
_MAX_COMPARED = 200  # comparing takes 5 µs a word
ROLES = ("producer", "relay", "consumer")


def keys(kind: str = "document") -> tuple[str, ...]:
    """Return the keys that a document, a role or a pattern may have."""
    known = tuple(models()[kind].model_fields)
    return (*known, "matrix") if kind == "document" else known


@cache
def models() -> dict[str, type[BaseModel]]:
    """Return the models of a document (its `matrix` taken out), of each role and of a pattern."""
    backends = paths().values()
    memories = _ordered(memory for backend in backends for memory in backend.exports)
    handles = _ordered(
        handle for backend in backends for names in backend.exports.values() for handle in names
    )
    importers = _ordered(importer for backend in backends for importer in backend.imports)
    fault = _model(
        "Fault",
        {
            "kind": (_choice("fault", tuple(CATALOGUE)), "What goes wrong."),
            "phase": (_choice("phase", PHASES), "When it strikes; default: the kind's first."),
            "round": (_whole(0, MAX_ROUNDS), "In which round it strikes, from 0."),
        },
        required="kind",
    )
    faults = _annotated(_list(_annotated(fault, ShortForm("kind"))), ShortForm(entry=(str, dict)))
    common = {
        "device": (_device(), "Where this role touches the buffer."),
        "role": (_function(), "Your own function, as package.module:function."),
        "params": (_params(), "What your own function is given; only beside `role`."),
        "faults": (faults, "What is made to go wrong here, to see that it is caught: see `expect`."),
    }
    exporter = {
        "memory": (_choices("memory", memories), "What is allocated; a list is tried in order."),
        "handle": (_choices("handle", handles), "What kind of fd names it; a list is tried in order."),
    }
    for backend in backends:
        for option in backend.options:
            described = f"{option.description} For memory {' or '.join(option.memories)}."
            exporter[option.name] = (_option(option.type), described)
    importer = {
        "importer": (_choices("importer", importers), "How the fd is read; a list is tried in order.")
    }
    forward = _choice("forward", ("fd", "copy"))
    access = _choice("access", ("read", "readwrite"))
    producer = _model("Producer", common | exporter)
    consumer = _model(
        "Consumer",
        common
        | importer
        | {"access": (access, "readwrite: write a pattern of its own back after checking.")},
    )
    relay = _model(
        "Relay",
        common | importer | {"forward": (forward, "Pass the same buffer on, or a copy of it.")} | exporter,
    )
    pattern = _model(
        "Pattern",
        {
            "kind": (_choice("pattern", KINDS), "What the buffer is filled with."),
            "base": (_whole(1, M), f"The first word of a ramp; default {DEFAULT_BASE:#x}."),
            "seed": (_whole(0, M), "The seed of a random pattern; default 0."),
        },
    )
    short = ShortForm("device")
    scenario = _model(
        "Scenario",
        {
            "name": (_name(), "Default: the file's name without its ending."),
            "description": (_text(), "For people."),
            "producer": (_annotated(producer, short), "Allocates the buffer and fills it."),
            "consumer": (_annotated(consumer, short), "Reads the buffer and checks it."),
            "consumers": (_list(_annotated(consumer, short)), "Several consumers of one buffer."),
            "relays": (
                _list(_annotated(relay, short)),
                "Between producer and consumers, in order: each checks, then passes on.",
            ),
            "size": (_size(), "Of the buffer: 16384, 0x4000, 16KiB, 1.5MiB, 16kB."),
            "pattern": (_annotated(pattern, ShortForm("kind")), "What the buffer is filled with."),
            "rounds": (_whole(1, MAX_ROUNDS), "Exchanges over one buffer, each with a pattern of its own."),
            "timeout": (_duration(), "Deadline of the scenario: 500ms, 30s, 5m, 1h."),
            "process": (_choice("process", ("separate", "same")), "same: one worker plays both roles."),
            "expect": (_choice("outcome", EXPECTABLE), "The outcome that counts as success."),
            "needs": (
                _annotated(_list(_name()), ShortForm()),
                "Scenarios before this one in the file that must have passed.",
            ),
        },
    )
    return {
        "document": scenario,
        "producer": producer,
        "relay": relay,
        "consumer": consumer,
        "pattern": pattern,
        "fault": fault,
    }


@dataclass(frozen=True, slots=True)
class Checked:
    """A value that `check` returns as it is to be used, or refuses; `schema` says the same to editors."""

    check: Callable[[Any], object]
    schema: dict[str, Any]

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return dict(self.schema)


@dataclass(frozen=True, slots=True)
class ShortForm:
    """Accept a plain string for `{key: string}`, or without a key one entry for a list of it."""

    key: str | None = None
    entry: type[str] | tuple[type, ...] = str

    def expand(self, value: object) -> object:
        """Return the full form of a short one, anything else as it is."""
        if self.key is None:
            return [value] if isinstance(value, self.entry) else value
        return {self.key: value} if isinstance(value, str) else value

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self.expand, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        full = handler(schema)
        resolved = handler.resolve_ref_schema(full)
        short = resolved["items"] if self.key is None else resolved["properties"][self.key]
        return {"anyOf": [{key: value for key, value in short.items() if key != "description"}, full]}


def describe(value: object) -> str:
    """Say what kind of value an author wrote."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"the boolean {str(value).lower()}"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return repr(value) if len(value) <= 80 else f"{value[:80]!r}…"
    return "a list" if isinstance(value, list) else "a mapping"


def suggestion(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that an author most likely meant, if any is near; among too many, none."""
    lowered = {name.lower(): name for name in known}
    if len(lowered) > _MAX_COMPARED:
        return None
    near = get_close_matches(word.lower()[:80], lowered, 1, 0.6)
    return lowered[near[0]] if near else None


def _model(
    name: str, fields: dict[str, tuple[FieldType, str]], *, required: str | None = None
) -> type[BaseModel]:
    definitions: dict[str, Any] = {
        key: (type_, Field(... if key == required else None, description=description))
        for key, (type_, description) in fields.items()
    }
    return create_model(name, __config__=ConfigDict(extra="forbid"), **definitions)


def _annotated(type_: FieldType, *notes: object) -> FieldType:
    return Annotated[(type_, *notes)]


def _checked(check: Callable[[Any], object], schema: dict[str, Any]) -> FieldType:
    return _annotated(Any, Checked(check, schema))


def _list(item: FieldType) -> FieldType:
    return _annotated(list[item], Field(min_length=1, max_length=MAX_ROLES))


def _ordered(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _text_of(value: object) -> str:
    if isinstance(value, str):
        return value
    quotes = ": put it in quotes" if isinstance(value, int | float) else ""
    raise ValueError(f"expected text, got {describe(value)}{quotes}")


def _name() -> FieldType:
    def check(value: object) -> str:
        name = _text_of(value)
        if not name.strip() or not name.isprintable() or len(name) > MAX_NAME:
            raise ValueError(
                f"expected one printable line of at most {MAX_NAME} characters, got {describe(name)}"
            )
        return name

    return _checked(check, {"type": "string", "pattern": r"^.*\S.*$", "maxLength": MAX_NAME})


def _text() -> FieldType:
    def check(value: object) -> str:
        text = _text_of(value)
        if not all(line.isprintable() for line in text.split("\n")):
            raise ValueError("expected printable lines, got control characters")
        return text

    return _checked(check, {"type": "string"})


def _choice(what: str, names: tuple[str, ...]) -> FieldType:
    def check(value: object) -> str:
        word = _text_of(value)
        if word in names:
            return word
        near = suggestion(word, names)
        hint = f"; did you mean {near!r}?" if near else ""
        raise ValueError(f"unknown {what} {describe(word)}: expected one of {', '.join(names)}{hint}")

    return _checked(check, {"enum": list(names)})


def _choices(what: str, names: tuple[str, ...]) -> FieldType:
    return _annotated(_list(_choice(what, names)), ShortForm())


def _device() -> FieldType:
    def check(value: object) -> str:
        selector = _text_of(value)
        error = device_error(selector)
        if error:
            raise ValueError(error)
        return selector

    backends = paths()
    helps = "; ".join(backend.selector_help for backend in backends.values())
    pattern = rf"^({'|'.join(backends)})(:\S+)?$"
    return _checked(check, {"type": "string", "pattern": pattern, "description": helps})


def _function() -> FieldType:
    def check(value: object) -> str:
        name = _text_of(value)
        if not is_function_name(name):
            raise ValueError(f"expected package.module:function, got {describe(name)}")
        return name

    return _checked(check, {"type": "string", "pattern": FUNCTION_PATTERN})


def _params() -> FieldType:
    def check(value: object) -> object:
        if not isinstance(value, dict):
            raise ValueError(f"expected a mapping of names to values, got {describe(value)}")
        return value

    return _checked(check, {"type": "object"})


def _option(type_: type) -> FieldType:
    if type_ is bool:
        return _checked(_boolean, {"type": "boolean"})
    return _whole(0, MAX_SIZE_BYTES) if type_ is int else _file_name()


def _file_name() -> FieldType:
    def check(value: object) -> str:
        name = _text_of(value)
        if not name.isprintable() or "/" in name or not name.strip("."):
            raise ValueError(f"expected a name without '/', got {describe(name)}")
        return name

    return _checked(check, {"type": "string", "pattern": r"^[^/]*[^/.][^/]*$"})


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError(f"expected true or false, got {describe(value)}")


def _whole(low: int, high: int) -> FieldType:
    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"expected a whole number from {low} to {high}, got {describe(value)}")
        return value

    return _checked(check, {"type": "integer", "minimum": low, "maximum": high})


def _size() -> FieldType:
    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(f"expected a size, got {describe(value)}: {SIZE_HELP}")
        return parse_size(str(value))

    whole = {"type": "integer", "minimum": 1, "maximum": MAX_SIZE_BYTES}
    return _checked(check, {"anyOf": [whole, {"type": "string", "pattern": SIZE_PATTERN}]})


def _duration() -> FieldType:
    def check(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(f"expected a duration, got {describe(value)}: {DURATION_HELP}")
        return parse_duration(str(value))

    return _checked(check, {"type": "string", "pattern": DURATION_PATTERN})
