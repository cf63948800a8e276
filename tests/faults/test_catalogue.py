"""The catalogue of faults: everything in it can be done, and a scenario file can ask for it."""

from __future__ import annotations

import os
import re
import signal

import pytest

from dmabuf_mp.errors import ScenarioError
from dmabuf_mp.faults import CATALOGUE, ONCE, PHASES, channel, device, phases_of, strike
from dmabuf_mp.linux import memfd
from dmabuf_mp.model import Fault, Outcome, Role
from dmabuf_mp.scenario import loads
from dmabuf_mp.wire import Channel, Kind, pair

ELSEWHERE = {  # faults of the data and of fds that are no spoiler and no other fd, but a step done otherwise
    "stale_round": "fill",
    "other_buffer": "fill",
    "lost_write_back": "fill",
    "torn": "check",
    "wrong_side": "check",
    "closed_fd": "import",
    "no_fds_left": "import",
}


def of(group: str) -> set[str]:
    return {kind.name for kind in CATALOGUE.values() if kind.group == group}


def test_every_kind_has_something_that_does_it() -> None:
    assert {kind.group for kind in CATALOGUE.values()} == {"data", "fd", "wire", "process"}
    assert of("process") == set(strike.STRIKES)
    assert of("data") == set(device.SPOILERS) | (ELSEWHERE.keys() & of("data"))
    assert of("fd") == set(channel._FDS) | (ELSEWHERE.keys() & of("fd"))
    assert of("data") | of("fd") >= ELSEWHERE.keys()
    # Those that are told by name: nothing is, that the code does not name.
    for module, names in (
        (device, ("stale_round", "other_buffer", "lost_write_back", "torn", "wrong_side", "closed_fd")),
        (channel, ("no_fds_left", *(of("wire") - {"silence"}))),
    ):
        source = module.__loader__.get_source(module.__name__)  # type: ignore[union-attr]
        assert [name for name in names if f'"{name}"' not in source] == []


@pytest.mark.parametrize("kind", CATALOGUE.values(), ids=lambda kind: kind.name)
def test_every_kind_can_strike_everyone_it_is_for(kind: object) -> None:
    assert isinstance(kind, type(CATALOGUE["kill"]))
    assert kind.outcome in {Outcome.FAILED, Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.ERROR}
    assert kind.description
    assert kind.blames in {"self", "checker"}
    assert set(kind.phases) <= set(PHASES)
    for name in kind.roles:
        role = Role(name, access="readwrite" if kind.readwrite else "read")
        phases = kind.phases_in(role)
        assert phases
        assert set(phases) <= set(phases_of(role))


def test_every_phase_is_some_role_s() -> None:
    roles = (
        Role("producer"),
        Role("relay", forward="copy"),
        Role("relay"),
        Role("consumer", access="readwrite"),
    )
    assert set().union(*(phases_of(role) for role in roles)) == set(PHASES)
    assert set(ONCE) < set(PHASES)


def load(role: str, *, rounds: int = 2, more: str = "") -> tuple[Role, ...]:
    text = f"{role}\nsize: 8KiB\nrounds: {rounds}\nexpect: failed\n{more}"
    (scenario,) = loads(text, "f.yaml")
    return scenario.roles


@pytest.mark.parametrize("kind", CATALOGUE.values(), ids=lambda kind: kind.name)
def test_every_kind_loads_in_its_short_and_its_full_form(kind: object) -> None:
    assert isinstance(kind, type(CATALOGUE["kill"]))
    for name in kind.roles:
        access = ", access: readwrite" if kind.readwrite else ""
        for faults in (
            kind.name,
            f"[{{kind: {kind.name}}}]",
            f"[{{kind: {kind.name}, round: 1}}]",
        ):
            one = f"{{device: cpu, faults: {faults}{access}}}"
            ends = {"producer": "cpu", "consumer": "cpu", "relays": "[]"}
            ends[f"{name}s" if name == "relay" else name] = f"[{one}]" if name == "relay" else one
            text = "\n".join(f"{key}: {value}" for key, value in ends.items() if value != "[]")
            (role,) = (role for role in load(text) if role.name == name)
            round_ = 1 if "round" in faults else kind.first_round
            assert role.faults == (Fault(kind.name, kind.phases_in(role)[0], round_),)


@pytest.mark.parametrize(
    ("producer", "consumer", "where", "says"),
    [
        ("{faults: kil}", "{}", "1:33", "unknown fault 'kil': expected one of"),
        (
            "{faults: [flip_bit, {knd: kill}]}",
            "{}",
            "1:45",
            "unknown key 'knd' in fault: did you mean 'kind'?",
        ),
        ("{faults: 7}", "{}", "1:33", "expected a list, got the number 7"),
        (
            "{faults: [7]}",
            "{}",
            "1:34",
            "expected a kind of fault, or a mapping with 'kind', got the number 7",
        ),
        ("{faults: []}", "{}", "1:33", "this list is empty"),
        ("{faults: [{phase: send}]}", "{}", "1:34", "'kind' is missing: which fault?"),
        ("{faults: [{kind: kill, phase: never}]}", "{}", "1:54", "unknown phase 'never'"),
        ("{faults: [{kind: kill, round: -1}]}", "{}", "1:54", "-1"),
        (
            "{faults: [{kind: kill, round: 2}]}",
            "{}",
            "1:34",
            "'kill' strikes in a round from 0 to 1 here, not 2",
        ),
        (
            "{faults: [{kind: kill, phase: ack}]}",
            "{}",
            "1:34",
            "cannot strike this producer in 'ack': only in",
        ),
        (
            "{}",
            "{faults: flip_bit}",
            "2:33",
            "a consumer cannot have the fault 'flip_bit': it is for a producer",
        ),
        ("{}", "{faults: torn}", "2:33", "'torn' needs a consumer with 'access: readwrite'"),
        ("{}", "{faults: [{kind: raise, phase: fill}]}", "2:34", "cannot strike this consumer in 'fill'"),
        ("{}", "{faults: [{kind: garbage, phase: send}]}", "2:34", "only in ack"),
    ],
)
def test_a_fault_that_cannot_be_is_an_error_with_its_place(
    producer: str, consumer: str, where: str, says: str
) -> None:
    ends = [text.replace("{", "{device: cpu, ", 1) for text in (producer, consumer)]
    with pytest.raises(ScenarioError) as caught:
        load(f"producer: {ends[0]}\nconsumer: {ends[1]}")
    assert [f"{problem.line}:{problem.column}" for problem in caught.value.problems] == [where]
    assert says in caught.value.problems[0].message


def test_a_fault_of_a_later_round_needs_one() -> None:
    with pytest.raises(ScenarioError, match="'stale_round' needs 'rounds: 2' or more"):
        load("producer: {device: cpu, faults: stale_round}\nconsumer: cpu", rounds=1)


# Striking.


def test_a_process_fault_strikes_in_its_phase_of_its_round_and_not_before() -> None:
    told: list[Fault] = []
    assert strike.striker((), told.append) is None
    assert strike.striker((Fault("flip_bit", "fill"),), told.append) is None
    faults = (Fault("raise", "send", 1), Fault("raise", "release", 0))
    struck = strike.striker(faults, told.append)
    assert struck is not None
    for phase, round_ in (("send", 0), ("check", 1), ("ack", 1)):
        struck(phase, round_)
    assert told == []
    with pytest.raises(strike.InjectedFault):
        struck("send", 1)
    assert told == [faults[0]]
    with pytest.raises(strike.InjectedFault):
        struck("release", 7)  # there is only one, whatever the round


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("kill", -signal.SIGKILL),
        ("segv", -signal.SIGSEGV),
        ("bus", -signal.SIGBUS),
        ("abort", -signal.SIGABRT),
        ("exit_0", 0),
        ("exit_3", 3),
    ],
)
def test_what_ends_a_process_ends_it_so(name: str, status: int) -> None:
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
        strike.STRIKES[name]()
        os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == status


def test_what_stops_and_what_hangs_does_not_end() -> None:
    for name in ("stop", "hang", "hang_native"):
        ready, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(tell, b"x")
            strike.STRIKES[name]()
            os._exit(99)
        os.read(ready, 1)
        os.close(ready)
        os.close(tell)
        if name == "stop":
            assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_running_out_of_memory_is_a_memory_error_and_leaves_the_limit_as_it_was() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(MemoryError):
        strike.STRIKES["out_of_memory"]()
    assert resource.getrlimit(resource.RLIMIT_AS) == before


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("pipe", r"pipe:\[\d+\]"),
        ("regular_file", ".*deleted.*"),
        ("directory", "/"),
        ("dev_zero", "/dev/zero"),
        ("too_small", "/memfd:dmabuf-mp:faulty .*"),
        ("too_large", "/memfd:dmabuf-mp:faulty .*"),
        ("unsealed", "/memfd:dmabuf-mp:faulty .*"),
    ],
)
def test_other_fds_are_what_they_are_called_and_go_in_their_round_only(name: str, what: str) -> None:
    ours, theirs = pair()
    faults, told = (Fault(name, "send", 0),), []
    sender = channel.FaultyChannel(
        ours, "reader", board=None, patience_s=None, faults=faults, struck=told.append
    )
    reader = Channel(theirs, "sender")
    with memfd.create("right", 8192) as right:
        for round_ in range(2):
            sender.send(Kind.OFFER, b"", (right.fileno(),))
            (fd,) = reader.expect(Kind.OFFER).fds
            target = os.readlink(f"/proc/self/fd/{fd.fileno()}")  # noqa: PTH115 - not a path
            size = os.fstat(fd.fileno()).st_size
            seals = memfd.get_seals(fd.fileno())
            fd.close()
            if round_:
                assert target.startswith("/memfd:right")
                continue
            assert re.fullmatch(what, target), target
            assert size == {"too_small": 4096, "too_large": 12288}.get(name, size)
            assert (seals == 0) == (name == "unsealed")
    assert told == [*faults]
    sender.close()
    reader.close()
