"""Planning: scenarios × what is there → what each worker is told to do, or a reason to skip. Pure."""

from __future__ import annotations

import importlib
import io
import itertools
from collections import Counter
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path as FilePath
from types import ModuleType
from typing import TYPE_CHECKING

from dmabuf_mp import backends, patterns
from dmabuf_mp.assignment import Attempt, Part, Peer
from dmabuf_mp.errors import Unsupported, UsageError
from dmabuf_mp.model import DeviceInfo, Outcome, Path
from dmabuf_mp.patterns import Pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from dmabuf_mp.backends.base import Inventory
    from dmabuf_mp.model import Role, RoleFunction, RunSettings, Scenario

EACH, ANY, OTHER = "*", "any", "other"
BASE_DEADLINE_S = 30.0
BYTES_PER_S = 256 * 2**20
START_DEADLINE_S = 10.0
INITIALISE_DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class Planned:
    """One scenario as it will run: `teams` are the parts of each worker; none where it is refused."""

    scenario: Scenario
    repeat: int = 0
    seed: int = 0
    deadline_s: float = BASE_DEADLINE_S
    teams: tuple[tuple[Part, ...], ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    mapped: Mapping[str, str] = field(default_factory=dict)
    refusal: str = ""
    refusal_code: str = ""
    refused_as: Outcome = Outcome.SKIPPED

    @property
    def parts(self) -> tuple[Part, ...]:
        """Every part, in the order of the scenario's roles."""
        return tuple(part for team in self.teams for part in team)


def most_at_once(scenarios: Sequence[Scenario], settings: RunSettings) -> dict[str, int]:
    """Return the backends that scenarios use, and of how many roles in one scenario at most."""
    most: dict[str, int] = {}
    for scenario in scenarios:
        mapped, _ = apply_mapping(scenario, settings.mapping)
        used = Counter(backends.prefix_of(role.device) for role in mapped.roles)
        for prefix, count in used.items():
            most[prefix] = max(most.get(prefix, 0), count)
    return dict(sorted(most.items()))


def plan(
    scenarios: Sequence[Scenario],
    inventories: Mapping[str, Inventory],
    settings: RunSettings,
    time_scale: float = 1.0,
    *,
    repeats: Iterable[int] | None = None,
) -> tuple[Planned, ...]:
    """Plan a whole run, in order, or some repetitions of it."""
    return tuple(
        planned
        for repeat in (range(settings.repeat) if repeats is None else repeats)
        for scenario in scenarios
        for planned in _plan_one(scenario, inventories, settings, repeat, time_scale)
    )


def apply_mapping(scenario: Scenario, mapping: Sequence[tuple[str, str]]) -> tuple[Scenario, dict[str, str]]:
    """Return the scenario with devices replaced, and which were; a mapped role keeps no wishes of its own."""
    mapped: dict[str, str] = {}

    def apply(role: Role) -> Role:
        for wanted, target in mapping:
            if role.device != target and fnmatchcase(role.device, wanted):
                mapped[role.device] = target
                return replace(role, device=target, memory=(), handle=(), importer=(), options={})
        return role

    changed = replace(
        scenario,
        producer=apply(scenario.producer),
        relays=tuple(apply(role) for role in scenario.relays),
        consumers=tuple(apply(role) for role in scenario.consumers),
    )
    return changed, mapped


def deadline_s(scenario: Scenario, settings: RunSettings) -> float:
    """Return how long a scenario may take once its workers are ready."""
    if settings.timeout_s is not None:
        return settings.timeout_s
    if scenario.timeout_s is not None:
        return scenario.timeout_s
    return BASE_DEADLINE_S + scenario.size_bytes * scenario.rounds / BYTES_PER_S


def folder_of(scenario: Scenario) -> str:
    """Return the folder of a scenario's file, where its role functions may lie; empty where it has none."""
    return str(FilePath(scenario.file).resolve().parent) if scenario.file[:1] not in ("<", "-") else ""


def serialised(function: str | bytes | RoleFunction | None) -> str | bytes | None:
    """Return a role's function as it travels to workers: a callable, closures too, becomes bytes.

    Raises UsageError where it holds on to something that cannot travel.
    """
    if function is None or isinstance(function, (str, bytes)):
        return function
    from multiprocess.reduction import ForkingPickler

    buffer = io.BytesIO()
    pickler = ForkingPickler(buffer, None, recurse=True)  # with the globals that it uses, and no others
    pickler.reducer_override = _module_by_name
    try:
        pickler.dump(function)
    except Exception as error:
        name = getattr(function, "__qualname__", repr(function))
        raise UsageError(f"role function {name} cannot be sent to a worker: {error}") from error
    return buffer.getvalue()


def _module_by_name(value: object) -> object:
    """Send a module that a function uses by its name: dill would copy it, with all that it holds."""
    if isinstance(value, ModuleType) and value.__name__ != "__main__":
        return importlib.import_module, (value.__name__,)
    return NotImplemented


def _plan_one(
    original: Scenario,
    inventories: Mapping[str, Inventory],
    settings: RunSettings,
    repeat: int,
    time_scale: float,
) -> Iterator[Planned]:
    scenario, mapped = apply_mapping(original, settings.mapping)
    base = Planned(
        scenario, repeat, settings.seed, deadline_s(scenario, settings) * time_scale, mapped=mapped
    )
    try:
        choices = list(_expand(scenario, inventories))
    except Unsupported as reason:
        yield replace(base, refusal=str(reason), refusal_code="no_device")
        return
    except UsageError as reason:
        yield replace(base, refusal=str(reason), refusal_code="bad_device", refused_as=Outcome.ERROR)
        return
    for chosen in choices:
        try:
            yield _assign(replace(base, scenario=chosen), settings, time_scale)
        except Unsupported as reason:
            yield replace(base, scenario=chosen, refusal=str(reason), refusal_code="no_path")


# Which devices.


def _devices(selector: str, inventories: Mapping[str, Inventory]) -> tuple[DeviceInfo, ...]:
    prefix = backends.prefix_of(selector)
    inventory = inventories.get(prefix)
    if inventory is None or not inventory.devices:
        why = inventory.reason if inventory is not None and inventory.reason else "none was found"
        raise Unsupported(f"no device for {selector!r} on this machine: {why}")
    return inventory.devices


def _wish(selector: str) -> str:
    return selector.partition(":")[2]


def _expand(scenario: Scenario, inventories: Mapping[str, Inventory]) -> Iterator[Scenario]:
    """Yield the scenario on real devices: one for each ordered pair where it says `*`."""
    consumers = tuple(_spread(scenario, inventories))
    scenario = replace(scenario, consumers=consumers)
    wild = [role for role in scenario.roles if _wish(role.device) == EACH]
    if not wild:
        yield _choose(scenario, inventories)
        return
    found = False
    candidates = [_devices(role.device, inventories) for role in wild]
    for combination in itertools.product(*candidates):
        chosen = {role.label: info.selector for role, info in zip(wild, combination, strict=True)}
        if len(set(chosen.values())) != len(chosen):
            continue  # a pair is of two devices
        expanded = _choose(_on(scenario, chosen), inventories)
        found = True
        yield replace(expanded, name=f"{scenario.name}[{','.join(role.device for role in expanded.roles)}]")
    if not found:
        seen = ", ".join(info.selector for info in candidates[0])
        raise Unsupported(f"no pair of devices: this machine has only {seen}")


def _spread(scenario: Scenario, inventories: Mapping[str, Inventory]) -> Iterator[Role]:
    """Yield the consumers, with one for each device where a list of consumers says `*`."""
    roles: list[Role] = []
    for role in scenario.consumers:
        if _wish(role.device) == EACH and scenario.fan_out:
            roles += [replace(role, device=info.selector) for info in _devices(role.device, inventories)]
        else:
            roles.append(role)
    return (replace(role, index=index) for index, role in enumerate(roles))


def _on(scenario: Scenario, chosen: Mapping[str, str]) -> Scenario:
    def put(role: Role) -> Role:
        return replace(role, device=chosen.get(role.label, role.device))

    return replace(
        scenario,
        producer=put(scenario.producer),
        relays=tuple(put(role) for role in scenario.relays),
        consumers=tuple(put(role) for role in scenario.consumers),
    )


def _choose(scenario: Scenario, inventories: Mapping[str, Inventory]) -> Scenario:
    """Put every role on one real device: the first pairs that qualify by their attributes, else the first.

    Attributes only order the search: where none qualifies, the call decides.
    """
    candidates = [_candidates(role, inventories) for role in scenario.roles]
    memory = scenario.producer.memory or backends.of(scenario.producer.device).default_memory
    for by_attributes in (True, False):
        for producer in candidates[0]:
            chosen = [producer]
            for role, infos in zip(scenario.roles[1:], candidates[1:], strict=True):
                fitting = (
                    info
                    for info in infos
                    if (_wish(role.device) != OTHER or info.selector != producer.selector)
                    and (not by_attributes or _qualifies(memory[0], producer, info))
                )
                chosen.extend(itertools.islice(fitting, 1))
            if len(chosen) == len(candidates):
                names = [info.selector for info in chosen]
                labels = [role.label for role in scenario.roles]
                return _on(scenario, dict(zip(labels, names, strict=True)))
    raise Unsupported(f"'other' needs a second device, and this machine has only {candidates[0][0].selector}")


def _candidates(role: Role, inventories: Mapping[str, Inventory]) -> tuple[DeviceInfo, ...]:
    if role.device == "cpu":
        return (DeviceInfo("cpu"),)
    devices = _devices(role.device, inventories)
    if _wish(role.device) in (ANY, OTHER):
        return devices
    return (backends.of(role.device).resolve(role.device, devices),)


def _qualifies(memory: str, producer: DeviceInfo, consumer: DeviceInfo) -> bool:
    return backends.of(producer.selector).qualifies(memory, producer, consumer)


# Which paths, and who talks to whom.


def _assign(planned: Planned, settings: RunSettings, time_scale: float) -> Planned:
    scenario = planned.scenario
    patience_s = planned.deadline_s + (START_DEADLINE_S + INITIALISE_DEADLINE_S + 30) * time_scale
    choice = scenario.pattern
    pattern = Pattern(
        choice.kind,
        patterns.DEFAULT_BASE if choice.base is None else choice.base,
        choice.seed or 0,
        0 if choice.base is not None else patterns.kappa(settings.seed, scenario.name, planned.repeat),
    )
    chain = (scenario.producer, *scenario.relays)
    offers = {id(role): _offers(scenario, position) for position, role in enumerate(chain)}
    folder = folder_of(scenario)
    parts: list[Part] = []
    links: list[tuple[str, str]] = []
    source: Role | None = None  # the last role in the chain whose own memory is being passed on
    for position, role in enumerate((*chain, *scenario.consumers)):
        upstream = None if position == 0 else chain[min(position, len(chain)) - 1]
        receives: tuple[Attempt, ...] = ()
        if upstream is not None and source is not None:
            links.append((upstream.label, role.label))
            receives = tuple(
                replace(attempt, importers=_importers(role, attempt)) for attempt in offers[id(source)]
            )
        owns = position < len(chain) and (role.name == "producer" or role.forward == "copy")
        parts.append(
            Part(
                label=role.label,
                role=role.name,
                index=role.index,
                device=role.device,
                size_bytes=scenario.size_bytes,
                pattern=pattern,
                rounds=scenario.rounds,
                patience_s=patience_s,
                upstream=upstream.label if upstream is not None else None,
                downstream=_downstream(scenario, position),
                receives=receives,
                offers=offers[id(role)] if owns else (),
                access=role.access,
                forward=role.forward,
                function=serialised(role.function),
                params=role.params,
                options=role.options,
                search_path=(folder,) if folder else (),
                faults=role.faults,
            )
        )
        if owns:
            source = role
    teams = (tuple(parts),) if scenario.process == "same" else tuple((part,) for part in parts)
    return replace(planned, teams=teams, links=tuple(links))


def _downstream(scenario: Scenario, position: int) -> tuple[Peer, ...]:
    last = len(scenario.relays)
    if position > last:
        return ()
    below = (scenario.relays[position],) if position < last else scenario.consumers
    return tuple(Peer(role.label, role.access == "readwrite") for role in below)


def _holders(scenario: Scenario, position: int) -> Iterator[Role]:
    """Yield every role that reads the buffer of the chain's role at this position."""
    for relay in scenario.relays[position:]:
        yield relay
        if relay.forward == "copy":
            return
    yield from scenario.consumers


def _offers(scenario: Scenario, position: int) -> tuple[Attempt, ...]:
    """Return the (memory, handle) pairs to try, in order, that every reader of the buffer has a path for."""
    role = (scenario.producer, *scenario.relays)[position]
    if position and role.forward == "fd":
        return ()
    static = backends.of(role.device)
    attempts = [
        Attempt(memory, handle)
        for memory in role.memory or static.default_memory
        for handle in role.handle or static.exports.get(memory, ())
        if handle in static.exports.get(memory, ())
    ]
    holders = tuple(_holders(scenario, position))
    fitting = tuple(attempt for attempt in attempts if all(_importers(holder, attempt) for holder in holders))
    if not fitting:
        tried = ", ".join(f"{attempt.memory}/{attempt.handle}" for attempt in attempts) or "nothing"
        raise Unsupported(
            f"no path from {role.label} on {role.device} ({tried}) fits "
            f"{', '.join(f'{holder.label} on {holder.device}' for holder in holders)}"
        )
    return fitting


def _importers(role: Role, attempt: Attempt) -> tuple[str, ...]:
    """Return the importers by which a role can take an attempt's fd, in the order to try them."""
    static = backends.of(role.device)
    return tuple(
        importer
        for importer in role.importer or static.imports
        if (attempt.memory, attempt.handle) in static.imports.get(importer, ())
        and (role.importer or Path(attempt.memory, attempt.handle, importer) not in static.by_name_only)
    )
