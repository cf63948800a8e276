"""What makes a scenario possible, judged from what the backends' static halves say: no device is touched.

Works on `model.Scenario`, so that one built in Python is judged as one from a file.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from dmabuf_mp.backends import of, paths, prefix_of
from dmabuf_mp.faults import CATALOGUE
from dmabuf_mp.model import Outcome
from dmabuf_mp.patterns import KINDS, M
from dmabuf_mp.sizes import MAX_DURATION_S, MAX_SIZE_BYTES

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from dmabuf_mp.model import Fault, Role, Scenario

# t = 2 * round + 1 has to fit in 32 bits.
MAX_ROUNDS = 2**31
MAX_ROLES = 1024
MAX_SELECTOR = 100
EXPECTABLE = tuple(
    outcome.value for outcome in Outcome if outcome not in (Outcome.SKIPPED, Outcome.INTERRUPTED)
)

_UNLESS_COPY = {"relay": ": 'forward: copy' makes a buffer of its own", "consumer": ""}

Where = tuple[str | int, ...]
Pair = tuple[str, str]


def problems(scenario: Scenario, broken: Container[str] = ()) -> Iterator[tuple[Where, str]]:
    """Yield (where, what is wrong) for every mistake; `where` is a path of keys as in a scenario file.

    `broken` holds labels of roles of which too little is known to judge their paths.
    """
    yield from _numbers(scenario)
    yield from _topology(scenario)
    for role in scenario.roles:
        error = device_error(role.device)
        if error:
            yield (*where(role), "device"), error
        else:
            yield from _role(role, judge_paths=role.label not in broken)
        for i, fault in enumerate(role.faults):
            yield from (((*where(role), "faults", i), wrong) for wrong in _fault(fault, role, scenario))
    yield from _wildcards(scenario)
    for owner, readers in buffers(scenario):
        yield from _access(readers)
        known = [
            role for role in (owner, *readers) if role.label not in broken and not device_error(role.device)
        ]
        if known and known[0] is owner:
            yield from _paths(owner, known[1:])


def where(role: Role) -> Where:
    """Return the keys that lead to a role in a scenario file, in the plural form for relays and consumers."""
    return (role.name,) if role.name == "producer" else (f"{role.name}s", role.index)


def device_error(selector: str) -> str | None:
    """Say what is wrong with a device selector, or None."""
    if len(selector) > MAX_SELECTOR:
        return f"a device has at most {MAX_SELECTOR} characters, this has {len(selector)}"
    backend = paths().get(prefix_of(selector))
    if backend is not None:
        return backend.selector_error(selector)
    known = "; ".join(backend.selector_help for backend in paths().values())
    return f"unknown device {selector!r}: expected {known}"


def buffers(scenario: Scenario) -> Iterator[tuple[Role, tuple[Role, ...]]]:
    """Yield each buffer's owner and its readers in order: a copying relay reads one and owns the next."""
    chain = (*scenario.relays, *scenario.consumers)
    copies = [i for i, role in enumerate(chain) if role.name == "relay" and role.forward == "copy"]
    for start, end in pairwise([-1, *copies, len(chain)]):
        owner = scenario.producer if start < 0 else chain[start]
        yield owner, chain[start + 1 : end + 1]


def pairs(role: Role) -> tuple[Pair, ...]:
    """Return every (memory, handle) that a role's wishes leave, in the order of its wishes."""
    backend = of(role.device)
    memories = role.memory or backend.default_memory
    return tuple(
        (memory, handle)
        for memory in memories
        for handle in (role.handle or backend.exports.get(memory, ()))
        if handle in backend.exports.get(memory, ())
    )


def readable(role: Role) -> dict[str, tuple[Pair, ...]]:
    """Return what each importer that a role's wishes leave can read."""
    imports = of(role.device).imports
    return {importer: imports.get(importer, ()) for importer in role.importer or imports}


def _numbers(scenario: Scenario) -> Iterator[tuple[Where, str]]:
    if not scenario.name.strip() or not scenario.name.isprintable():
        yield ("name",), f"a name is one printable line, got {scenario.name!r}"
    if not 1 <= scenario.size_bytes <= MAX_SIZE_BYTES:
        yield ("size",), f"expected 1 to {MAX_SIZE_BYTES} bytes, got {scenario.size_bytes}"
    if not 1 <= scenario.rounds <= MAX_ROUNDS:
        yield ("rounds",), f"expected a whole number from 1 to {MAX_ROUNDS}, got {scenario.rounds}"
    if scenario.timeout_s is not None and not 0 < scenario.timeout_s <= MAX_DURATION_S:
        yield (
            ("timeout",),
            f"expected more than 0 and at most {MAX_DURATION_S:.0f} s, got {scenario.timeout_s}",
        )
    if scenario.expect not in EXPECTABLE:
        yield ("expect",), f"expected one of {', '.join(EXPECTABLE)}, got {str(scenario.expect)!r}"
    pattern = scenario.pattern
    if pattern.kind not in KINDS:
        yield ("pattern", "kind"), f"unknown pattern {pattern.kind!r}: expected one of {', '.join(KINDS)}"
    for key, kind, low in (("base", "ramp", 1), ("seed", "random", 0)):
        value: int | None = getattr(pattern, key)
        if value is not None and pattern.kind != kind:
            yield ("pattern", key), f"{key!r} belongs to the pattern {kind!r}, this one is {pattern.kind!r}"
        elif value is not None and not low <= value <= M:
            yield ("pattern", key), f"expected a whole number from {low} to {M}, got {value}"


def _topology(scenario: Scenario) -> Iterator[tuple[Where, str]]:
    if not 1 <= len(scenario.consumers) <= MAX_ROLES:
        yield ("consumers",), f"expected 1 to {MAX_ROLES} consumers, got {len(scenario.consumers)}"
    if scenario.process == "same":
        if len(scenario.consumers) > 1:
            message = "one process plays one producer and one consumer"
            yield ("process",), f"'same': {message}, not {len(scenario.consumers)} consumers"
        if scenario.relays:
            yield ("process",), "'same': one process plays one producer and one consumer, no relays"


def _role(role: Role, *, judge_paths: bool) -> Iterator[tuple[Where, str]]:
    """Judge one role by itself: its wishes against its backend, and which keys go together."""
    at = where(role)
    backend = of(role.device)
    owns = role.name == "producer" or role.forward == "copy"
    if isinstance(role.function, str) and not is_function_name(role.function):
        yield (*at, "role"), f"expected 'package.module:function', got {role.function!r}"
    if role.params and role.function is None:
        yield (*at, "params"), "'params' are for a function of your own: name it with 'role'"
    if not judge_paths:
        return
    memories = (role.memory or backend.default_memory) if owns else ()
    if not owns:
        named = [key for key in ("memory", "handle") if getattr(role, key)]
        for key in (*named, *role.options):
            yield (*at, key), f"{role.label} allocates nothing, so it has no {key!r}{_UNLESS_COPY[role.name]}"
    for key, wishes, known in (
        ("memory", role.memory if owns else (), tuple(backend.exports)),
        ("importer", role.importer, tuple(backend.imports)),
    ):
        for i, wish in enumerate(wishes):
            if wish not in known:
                yield (
                    (*at, key, i),
                    f"{role.device} has no {key} {wish!r}: expected one of {', '.join(known)}",
                )
    handles = {handle: None for memory in memories for handle in backend.exports.get(memory, ())}
    for i, wish in enumerate(role.handle if owns else ()):
        if handles and wish not in handles:
            expected = f"expected one of {', '.join(handles)}"
            yield (*at, "handle", i), f"no handle {wish!r} for memory {' or '.join(memories)}: {expected}"
    options = {option.name: option for option in backend.options}
    for key in role.options if owns else ():
        if key not in options:
            yield (*at, key), f"{role.device} has no option {key!r}"
        elif not set(options[key].memories).intersection(memories):
            needed = " or ".join(options[key].memories)
            yield (*at, key), f"{key!r} is for memory {needed}, this is {' or '.join(memories)}"


def _fault(fault: Fault, role: Role, scenario: Scenario) -> Iterator[str]:
    kind = CATALOGUE.get(fault.kind)
    if kind is None:
        yield f"unknown fault {fault.kind!r}: expected one of {', '.join(CATALOGUE)}"
        return
    if role.name not in kind.roles:
        yield f"a {role.name} cannot have the fault {kind.name!r}: it is for a {' or a '.join(kind.roles)}"
    elif kind.readwrite and role.access != "readwrite":
        yield f"{kind.name!r} needs a consumer with 'access: readwrite'"
    elif fault.phase not in (phases := kind.phases_in(role)):
        fitting = " or ".join(phases)
        yield f"{kind.name!r} cannot strike this {role.name} in {fault.phase!r}: only in {fitting}"
    if kind.first_round >= scenario.rounds:
        yield f"{kind.name!r} needs 'rounds: {kind.first_round + 1}' or more"
    elif not kind.first_round <= fault.round < scenario.rounds:
        last = scenario.rounds - 1
        yield f"{kind.name!r} strikes in a round from {kind.first_round} to {last} here, not {fault.round}"


def is_function_name(text: str) -> bool:
    """Tell whether a text has the form `package.module:function`."""
    module, _, function = text.partition(":")
    return function.isidentifier() and all(part.isidentifier() for part in module.split("."))


def _wildcards(scenario: Scenario) -> Iterator[tuple[Where, str]]:
    """Judge `:other` (not the producer's), and `:*` (each device that is there)."""
    producer = scenario.producer
    prefix = prefix_of(producer.device)
    wild = [role for role in scenario.roles if _choice(role) == "*"]
    each = [role for role in wild if role.name == "producer" or not scenario.fan_out]
    for role in scenario.roles:
        at = (*where(role), "device")
        if _choice(role) == "other":
            if role is producer:
                yield at, f"'other' is another device than the producer's, and this is it: try {prefix}:any"
            elif prefix_of(role.device) != prefix:
                yield (
                    at,
                    (
                        f"'other' is another device than the producer's, which is {producer.device}: "
                        f"try {prefix_of(role.device)}:any"
                    ),
                )
        if role in wild and role.name == "relay":
            yield at, "a relay is one device: '*' is for the producer and the consumers"
        if each and role not in wild and _choice(role) in ("any", "other"):
            yield at, f"'*' stands for each device in turn and does not go with {_choice(role)!r}"
    if scenario.process == "same" and scenario.fan_out and wild:
        yield (
            ("process",),
            "'same': one process plays one consumer, and '*' in 'consumers' stands for several",
        )


def _choice(role: Role) -> str:
    return role.device.partition(":")[2]


def _access(readers: tuple[Role, ...]) -> Iterator[tuple[Where, str]]:
    writers = [role for role in readers if role.access == "readwrite"]
    for role in writers:
        if role.name == "relay":
            yield (*where(role), "access"), "a relay reads: 'access: readwrite' is for consumers"
    for role in writers[1:]:
        yield (
            (*where(role), "access"),
            f"at most one reader of a buffer writes to it, and {writers[0].label} does",
        )


def _paths(owner: Role, readers: list[Role]) -> Iterator[tuple[Where, str]]:
    """Judge whether some (memory, handle) of the owner can be read by every reader."""
    offered = pairs(owner)
    if not offered:
        return  # its memory or handle is wrong by itself, and has been told
    common = set(offered)
    alone = True
    for role in readers:
        importers = readable(role)
        if any(importer not in of(role.device).imports for importer in importers):
            continue
        fits = {pair for known in importers.values() for pair in known}
        if fits.isdisjoint(offered):
            alone = False
            yield _culprit(owner, role), _no_path(owner, role, offered, importers)
        else:
            common &= fits
    if alone and not common:
        named = "memory" if owner.memory else "handle" if owner.handle else "device"
        each = "; ".join(f"{role.label} reads {_listed(_read_by(role, offered))}" for role in readers)
        yield (*where(owner), named), f"no memory and handle suits every reader: {each}"


def _culprit(owner: Role, reader: Role) -> Where:
    """Point at what the author named, the reader's importer first."""
    if reader.importer:
        return (*where(reader), "importer")
    for key in ("memory", "handle"):
        if getattr(owner, key):
            return (*where(owner), key)
    return (*where(reader), "device")


def _no_path(
    owner: Role, reader: Role, offered: tuple[Pair, ...], importers: dict[str, tuple[Pair, ...]]
) -> str:
    backend = of(reader.device)
    default = "" if owner.memory else " (the default)"
    fitting = [name for name, known in backend.imports.items() if not set(known).isdisjoint(offered)]
    message = (
        f"no path: {reader.label} on {reader.device} cannot read {_listed(offered)}{default}"
        f"{' by ' + ' or '.join(reader.importer) if reader.importer else ''}; "
    )
    if reader.importer and fitting:
        message += f"expected importer {' or '.join(fitting)}, or memory/handle "
    else:
        message += "expected memory/handle "
    return message + _listed(tuple(dict.fromkeys(pair for known in importers.values() for pair in known)))


def _read_by(role: Role, offered: tuple[Pair, ...]) -> tuple[Pair, ...]:
    fits = {pair for known in readable(role).values() for pair in known}
    return tuple(pair for pair in offered if pair in fits)


def _listed(pairs_: tuple[Pair, ...]) -> str:
    return " or ".join("/".join(pair) for pair in pairs_)
