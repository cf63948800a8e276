"""Faults in real runs: wrong data is named for what it is, and a fault strikes where and when it says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dmabuf_mp import PatternChoice, Role, Scenario
from dmabuf_mp.faults import CATALOGUE
from dmabuf_mp.model import Fault, Outcome
from tests.orchestrator.making import chain, fan_out, pair, run, worker

SIZE_BYTES = 5 * 4096 + 6
POSITIONS = 5 * 1024 + 1 + 2  # words, and the bytes after them
MIDDLE = SIZE_BYTES // 2 // 4 * 4  # the word that holds the byte
ROUNDS = 3

# The class of the first mismatch, how many positions differ, and where the first one is.
DATA = {
    "flip_bit": ("scattered_bits", 1, MIDDLE),
    "flip_byte": ("corrupt", 1, MIDDLE),
    "wrong_page": ("corrupt", 1024, MIDDLE // 4096 * 4096),
    "wrong_last_byte": ("tail_only", 1, SIZE_BYTES - 1),
    "all_zero": ("all_zero", POSITIONS, 0),
    "stale_round": ("earlier_round:0", POSITIONS, 0),
    "shifted_1": ("shifted:+1", None, 0),
    "shifted_4": ("shifted:+4", None, 4),
    "shifted_page": ("shifted:+4096", None, 4096),
    "other_buffer": ("another_buffer", POSITIONS, 0),
    "torn": ("transient", 1, MIDDLE),
    "lost_write_back": ("not_written_back", POSITIONS, 0),
}


def with_fault(scenario: Scenario, label: str, *faults: Fault) -> Scenario:
    def put(role: Role) -> Role:
        if role.label != label:
            return role
        readwrite = any(CATALOGUE[fault.kind].readwrite for fault in faults)
        return replace(role, faults=faults, access="readwrite" if readwrite else role.access)

    return replace(
        scenario,
        producer=put(scenario.producer),
        relays=tuple(put(role) for role in scenario.relays),
        consumers=tuple(put(role) for role in scenario.consumers),
    )


def faulty(kind: str, round_: int, pattern: str = "ramp") -> Scenario:
    scenario = pair(
        f"{kind} {round_} {pattern}", size_bytes=SIZE_BYTES, rounds=ROUNDS, pattern=PatternChoice(pattern)
    )
    chosen = CATALOGUE[kind]
    label = "producer" if chosen.roles == ("producer",) else "consumer[0]"
    return with_fault(scenario, label, Fault(kind, chosen.phases[0], round_))


def test_the_table_has_every_fault_of_the_data_that_a_check_can_find() -> None:
    assert set(DATA) == {kind.name for kind in CATALOGUE.values() if kind.group == "data"} - {"wrong_side"}


@pytest.mark.parametrize("pattern", ["ramp", "address", "random"])
def test_wrong_data_is_named_for_what_it_is(pattern: str) -> None:
    report = run(*(faulty(kind, 1, pattern) for kind in DATA))
    found = {}
    for kind, one in zip(DATA, report.scenarios, strict=True):
        assert (one.observed, one.reason_code) == (Outcome.FAILED, "mismatch"), f"{kind}: {one.reason}"
        first = one.links[0].first_mismatch
        assert first is not None
        assert first.round == 1
        assert one.links[0].rounds_checked == ROUNDS  # one bad round hides no other
        assert one.links[0].mismatches
        count = one.links[0].mismatches if DATA[kind][1] is not None else None
        assert first.evidence is not None
        assert first.evidence.second_read == ("right" if kind == "torn" else "same")
        assert first.evidence.runs == (0 if kind == "torn" else 1)
        found[kind] = (first.kind, count, first.offset_bytes)
    assert found == DATA


def test_a_fault_of_the_data_strikes_in_its_round() -> None:
    kinds = ("flip_bit", "all_zero", "shifted_4", "torn", "lost_write_back")
    scenarios = [faulty(kind, round_) for kind in kinds for round_ in range(ROUNDS)]
    for one in run(*scenarios).scenarios:
        first = one.links[0].first_mismatch
        assert first is not None, one.name
        assert first.round == int(one.name.split()[1]), one.name


def test_two_faults_strike_both() -> None:
    both = (Fault("flip_bit", "fill", 0), Fault("wrong_last_byte", "fill", 2))
    (one,) = run(with_fault(pair(rounds=ROUNDS), "producer", *both)).scenarios
    assert one.links[0].mismatches == 2


def test_a_fault_reaches_every_consumer_and_a_faulty_one_no_other() -> None:
    flipped = with_fault(fan_out("flipped", rounds=2), "producer", Fault("flip_bit", "fill", 1))
    raised = with_fault(fan_out("raised", rounds=2), "consumer[1]", Fault("torn", "check", 1))
    flipped_report, raised_report = run(flipped, raised).scenarios
    assert [link.mismatches for link in flipped_report.links] == [1, 1, 1]
    assert [link.mismatches for link in raised_report.links] == [0, 1, 0]


# Phases. A role that raises in a phase of a round tells by its links how far everything had come.


@pytest.mark.parametrize("phase", ["export", "fill", "send", "release"])
def test_a_producer_is_struck_in_the_phase_and_the_round_that_it_says(phase: str) -> None:
    rounds = (0,) if phase in ("export", "release") else range(ROUNDS)
    scenarios = [
        with_fault(pair(f"{round_}", rounds=ROUNDS), "producer", Fault("kill", phase, round_))
        for round_ in rounds
    ]
    for round_, one in zip(rounds, run(*scenarios).scenarios, strict=True):
        assert one.reason == f"producer: killed by SIGKILL in phase '{phase}'"
        assert one.links[0].rounds_checked == {"export": 0, "release": ROUNDS}.get(phase, round_)


@pytest.mark.parametrize("phase", ["import", "check", "ack", "release"])
def test_a_consumer_is_struck_in_the_phase_and_the_round_that_it_says(phase: str) -> None:
    rounds = (0,) if phase in ("import", "release") else range(ROUNDS)
    scenarios = [
        with_fault(pair(f"{round_}", rounds=ROUNDS), "consumer[0]", Fault("raise", phase, round_))
        for round_ in rounds
    ]
    for round_, one in zip(rounds, run(*scenarios).scenarios, strict=True):
        assert "InjectedFault" in one.reason, one.reason
        checked = {"import": 0, "check": round_, "ack": round_ + 1, "release": ROUNDS}[phase]
        assert one.links[0].rounds_checked == checked


def test_a_worker_is_struck_before_its_part_begins() -> None:
    scenarios = [
        with_fault(chain(f"{phase} {label}"), label, Fault("kill", phase))
        for phase in ("start", "initialise")
        for label in ("producer", "relay[0]", "consumer[0]")
    ]
    for one in run(*scenarios).scenarios:
        phase, label = one.name.split()
        assert one.reason == f"{label}: killed by SIGKILL in phase '{phase}'"


@pytest.mark.parametrize("forward", ["fd", "copy"])
def test_a_relay_is_struck_in_the_phase_and_the_round_that_it_says(forward: str) -> None:
    spots = [(phase, round_) for phase in ("check", "send", "ack") for round_ in range(ROUNDS)]
    scenarios = [
        with_fault(
            chain(f"{kind} {phase} {round_}", forward, rounds=ROUNDS),
            "relay[0]",
            Fault(kind, phase, round_),
        )
        for phase, round_ in spots
        for kind in ("raise", *(() if phase == "check" else ("garbage",)))
    ]
    for one in run(*scenarios).scenarios:
        _, phase, said = one.name.split()
        round_ = int(said)
        assert one.observed is Outcome.ERROR, one.name
        assert worker(one, "relay[0]").reason_code != "peer_gone", one.name
        upper, lower = (link.rounds_checked for link in one.links)
        assert upper == round_ + (phase != "check"), one.name
        assert lower == round_ + (phase == "ack"), one.name


@pytest.mark.parametrize("kind", ["garbage", "early_end"])
@pytest.mark.parametrize("label", ["producer", "consumer[0]"])
def test_a_fault_of_the_wire_strikes_in_its_round(kind: str, label: str) -> None:
    phase = "send" if label == "producer" else "ack"
    scenarios = [
        with_fault(pair(f"{round_}", rounds=ROUNDS), label, Fault(kind, phase, round_))
        for round_ in range(ROUNDS)
    ]
    for round_, one in enumerate(run(*scenarios).scenarios):
        assert one.observed is Outcome.ERROR
        assert worker(one, label).outcome is Outcome.ERROR
        assert one.links[0].rounds_checked == round_ + (label != "producer")
