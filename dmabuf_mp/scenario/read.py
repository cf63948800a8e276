"""A document's tree → a `Scenario`, with every mistake told where it stands."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from dmabuf_mp.faults import CATALOGUE
from dmabuf_mp.model import Fault, Outcome, PatternChoice, Role, Scenario
from dmabuf_mp.scenario import checks, matrix, shape
from dmabuf_mp.scenario.tree import Mapping, Scalar, Sequence, to_data
from dmabuf_mp.sizes import parse_duration, parse_size

if TYPE_CHECKING:
    from dmabuf_mp.model import RoleName
    from dmabuf_mp.scenario.checks import Where
    from dmabuf_mp.scenario.tree import Node, Place, Report

# What a role's paths are judged by: where one of these is wrong, that judgement would be noise.
_PATH_KEYS = frozenset({"device", "memory", "handle", "importer", "forward"})
_ROLE_KEYS = ("producer", "consumer", "consumers", "relays")
_LISTS = ("consumers", "relays")
_ROLE_FIELDS = frozenset({"device", "memory", "handle", "importer", "access", "forward", "role", "params"})
_BY_TEXT = {"size": parse_size, "timeout": parse_duration}


def read(root: Mapping, name: str, file: str, chosen: dict[str, Node], report: Report) -> Scenario:
    """Return the scenario of one expanded document; where it has mistakes, they are told and stood in for.

    `name` is used where the document has none; `chosen` are the matrix's values in it.
    """
    data: Any = to_data(root)
    broken: set[str] = set()
    guessed: set[str] = set()
    document = shape.models()["document"]
    try:
        model = document.model_validate(data)
    except ValidationError as error:
        wrongs = error.errors(include_url=False)
        misspelt = {wrong["loc"][:-1] for wrong in wrongs if wrong["type"] == "extra_forbidden"}
        for wrong in wrongs:
            if wrong["type"] == "missing" and wrong["loc"][:-1] in misspelt:
                continue
            key = _tell(root, wrong, report)
            guessed.add(key if len(wrong["loc"]) == 1 else "")
            _forget(data, wrong["loc"], key, broken)
        model = document.model_validate(data)
    fields = model.model_dump(exclude_unset=True)
    _tell_missing(root, fields, guessed, report)
    scenario = _scenario(root, fields, name, file, chosen)
    for where, message in checks.problems(scenario, broken):
        report(place_of(root, where), message)
    return scenario


def _scenario(
    root: Mapping, fields: dict[str, Any], name: str, file: str, chosen: dict[str, Node]
) -> Scenario:
    """Build the scenario; what is missing (and was told of) gets a stand-in."""
    consumers = fields.get("consumers") or [fields.get("consumer", {})]
    return Scenario(
        name=fields.get("name", name) + matrix.label(chosen),
        size_bytes=fields.get("size", 1),
        producer=_role(root, "producer", 0, fields.get("producer", {})),
        consumers=tuple(_role(root, "consumer", i, role) for i, role in enumerate(consumers)),
        relays=tuple(_role(root, "relay", i, role) for i, role in enumerate(fields.get("relays", ()))),
        description=fields.get("description", ""),
        pattern=PatternChoice(**fields.get("pattern", {})),
        rounds=fields.get("rounds", 1),
        timeout_s=fields.get("timeout"),
        process=fields.get("process", "separate"),
        expect=Outcome(fields.get("expect", Outcome.PASSED)),
        needs=tuple(fields.get("needs", ())),
        fan_out="consumers" in fields,
        matrix={key: to_data(node) for key, node in chosen.items()},
        file=file,
        line=root.line,
    )


def _role(root: Mapping, name: RoleName, index: int, fields: dict[str, Any]) -> Role:
    known: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in fields.items()
        if key in _ROLE_FIELDS
    }
    if "role" in known:
        known["function"] = known.pop("role")
    options = {key: value for key, value in fields.items() if key not in _ROLE_FIELDS | {"faults"}}
    where: Where = (name,) if name == "producer" else (f"{name}s", index)
    place = place_of(root, (*where, "role"))
    role = Role(name=name, index=index, options=options, line=place.line, column=place.column, **known)
    return replace(role, faults=tuple(_fault(role, fault) for fault in fields.get("faults", ())))


def _fault(role: Role, fields: dict[str, Any]) -> Fault:
    kind = CATALOGUE[fields["kind"]]
    default = (*kind.phases_in(role), *kind.phases)[0]
    return Fault(kind.name, fields.get("phase", default), fields.get("round", kind.first_round))


def _follow(root: Mapping, where: Where) -> tuple[Place, Node]:
    """Go as far along a path of keys as the tree does; return the last key's place and its value."""
    if where[:1] == ("consumers",) and "consumers" not in root.items:
        where = ("consumer", *where[2:])
    place: Place = root
    node: Node = root
    for key in where:
        if isinstance(node, Mapping) and key in node.items:
            place, node = node.items[str(key)]
        elif isinstance(node, Sequence) and isinstance(key, int) and key < len(node.items):
            place = node = node.items[key]
        else:
            break
    return place, node


def place_of(root: Mapping, where: Where) -> Place:
    """Return where a value stands, or the nearest thing above it that is there."""
    return _follow(root, where)[1]


def _tell(root: Mapping, error: Any, report: Report) -> str:
    """Report one of the model's errors in an author's words; return the key that was meant, if any."""
    where: Where = error["loc"]
    place, node = _follow(root, where)
    key = next(key for key in reversed(where) if isinstance(key, str))
    if error["type"] == "extra_forbidden":
        message, key = _unknown(where)
        report(place, message)
        return key
    if key in _BY_TEXT and isinstance(node, Scalar) and isinstance(node.value, float):
        try:
            _BY_TEXT[key](node.text)
        except ValueError as why:
            report(node, str(why))
            return key
    got = shape.describe(error["input"])
    if error["type"] == "value_error":
        message = str(error["ctx"]["error"])
    elif error["type"] == "missing":
        message = f"'{key}' is missing: which fault? For example `{key}: flip_bit`"
    elif error["type"] == "list_type":
        message = f"expected a list, got {got}"
    elif error["type"] == "too_short":
        message = "this list is empty: name at least one, or leave the key out"
    elif error["type"] == "too_long":
        message = f"at most {checks.MAX_ROLES} entries are possible"
    elif key == "faults":
        message = f"expected a kind of fault, or a mapping with 'kind', got {got}"
    elif key == "pattern":
        message = f"expected a kind of pattern, or a mapping with 'kind', got {got}"
    else:
        message = f"expected a device such as cpu, or a mapping with 'device', got {got}"
    report(node, message)
    return key


def _unknown(where: Where) -> tuple[str, str]:
    """Say of an unknown key whose it is, or which one was probably meant; return that one as well."""
    key = str(where[-1])
    *above, _ = where
    kind = "fault" if "faults" in above else str(above[0]).removesuffix("s") if above else "document"
    known = shape.keys(kind)
    if kind in shape.ROLES:
        owners = [role for role in shape.ROLES if key in shape.keys(role)]
        if owners:
            return f"a {kind} has no {key!r}: it belongs to a {' or a '.join(owners)}", ""
    near = shape.suggestion(key, known)
    hint = f"did you mean {near!r}?" if near else f"expected one of {', '.join(known)}"
    return f"unknown key {shape.describe(key)}{f' in {kind}' if above else ''}: {hint}", near or ""


def _tell_missing(root: Mapping, fields: dict[str, Any], guessed: set[str], report: Report) -> None:
    """Tell of what a scenario cannot do without, unless a misspelt key was probably that."""
    given = fields.keys() | root.items.keys() | guessed
    if "size" not in given:
        report(root, "'size' is missing: how large is the buffer? For example `size: 16KiB`")
    if "producer" not in given:
        report(root, "'producer' is missing: which device fills the buffer? For example `producer: cpu`")
    if given.isdisjoint({"consumer", "consumers"}):
        report(root, "'consumer' is missing: which device checks the buffer? For example `consumer: cpu`")
    if {"consumer", "consumers"} <= root.items.keys():
        later = max(
            (root.items[key][0] for key in ("consumer", "consumers")), key=lambda at: (at.line, at.column)
        )
        report(later, "'consumer' and 'consumers' are two forms of the same: use one of them")


def _forget(data: dict[str, Any], where: Where, meant: str, broken: set[str]) -> None:
    """Take out what is wrong, so that the rest can be judged; note roles whose paths are then unknown."""
    top, *rest = where
    holder: Any = data
    key = top
    if top in _LISTS and rest:
        holder, key = data[str(top)], rest.pop(0)
    inner = holder[key] if isinstance(key, int) else holder.get(key)
    if rest and isinstance(inner, dict):
        inner.pop(rest[0], None)
    elif top in _ROLE_KEYS:
        holder[key] = [{}] if key in _LISTS else {}
    else:
        holder.pop(key, None)
    if top in _ROLE_KEYS and (not rest or meant in _PATH_KEYS):
        index = key if isinstance(key, int) else 0
        broken.add("producer" if top == "producer" else f"{str(top).removesuffix('s')}[{index}]")
