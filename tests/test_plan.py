"""Planning, with made-up inventories: which devices, which paths in which order, who talks to whom."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dmabuf_mp import patterns, plan
from dmabuf_mp.assignment import Attempt, Peer
from dmabuf_mp.backends.base import Inventory
from dmabuf_mp.model import DeviceInfo, Outcome, PatternChoice, Role, RunSettings, Scenario

if TYPE_CHECKING:
    from dmabuf_mp.plan import Planned

EXPORTS = {"host_alloc_dma_buf_supported": True}
IMPORTS = {"dma_buf_supported": True}
NEITHER = {"host_alloc_dma_buf_supported": False, "dma_buf_supported": False}


def gpus(*details: dict[str, bool]) -> dict[str, Inventory]:
    """Make up an inventory of CUDA devices with these attributes."""
    infos = (
        DeviceInfo(
            f"cuda:{index}", f"GPU {index}", f"GPU-{index}000-beef", {"pci_id": f"0000:0{index}:00.0", **of}
        )
        for index, of in enumerate(details)
    )
    return {"cuda": Inventory(tuple(infos))}


TWO = gpus(EXPORTS | IMPORTS, EXPORTS | IMPORTS)


def scenario(producer: str = "cpu", *consumers: str, **changes: object) -> Scenario:
    roles = tuple(Role("consumer", index, device) for index, device in enumerate(consumers or (producer,)))
    return replace(Scenario("s", 4096, Role("producer", device=producer), roles), **changes)  # type: ignore[arg-type]


def planned(
    one: Scenario, inventories: dict[str, Inventory] | None = None, **settings: object
) -> list[Planned]:
    return list(plan.plan([one], inventories or {}, RunSettings(seed=9, **settings)))  # type: ignore[arg-type]


def devices(one: Scenario, inventories: dict[str, Inventory], **settings: object) -> list[list[str]]:
    return [[part.device for part in each.parts] for each in planned(one, inventories, **settings)]


def offers(one: Planned, label: str = "producer") -> list[str]:
    part = next(part for part in one.parts if part.label == label)
    return [f"{attempt.memory}/{attempt.handle}" for attempt in part.offers]


def receives(one: Planned, label: str = "consumer[0]") -> list[str]:
    part = next(part for part in one.parts if part.label == label)
    return [f"{a.memory}/{a.handle}/{'+'.join(a.importers)}" for a in part.receives]


# Which paths.


def test_left_out_wishes_are_the_defaults_in_their_order() -> None:
    (cpu,) = planned(scenario("cpu"))
    assert receives(cpu) == ["udmabuf/dmabuf/mmap", "dma_heap/dmabuf/mmap", "memfd/memfd/mmap"]
    assert offers(cpu) == ["udmabuf/dmabuf", "dma_heap/dmabuf", "memfd/memfd"]
    (cuda,) = planned(scenario("cuda:0", "cuda:1"), TWO)
    assert receives(cuda) == ["pinned/dmabuf/external_memory"]


def test_wishes_are_tried_memory_first_then_handle_then_importer() -> None:
    one = scenario("cuda:0", "cuda:0")
    producer = replace(one.producer, memory=("device", "host_numa"), handle=("posix_fd", "dmabuf"))
    consumer = replace(one.consumers[0], importer=("vmm", "external_memory"))
    (made,) = planned(replace(one, producer=producer, consumers=(consumer,)), TWO)
    assert receives(made) == [
        "device/posix_fd/vmm+external_memory",
        "device/dmabuf/external_memory",
        "host_numa/posix_fd/vmm+external_memory",
    ]


def test_a_path_that_can_kill_is_entered_only_by_name() -> None:
    one = scenario("cuda:0", "cuda:1")
    one = replace(one, producer=replace(one.producer, memory=("device",), handle=("posix_fd",)))
    (made,) = planned(one, TWO)
    assert receives(made) == ["device/posix_fd/vmm"]
    (named,) = planned(
        replace(one, consumers=(replace(one.consumers[0], importer=("external_memory",)),)), TWO
    )
    assert receives(named) == ["device/posix_fd/external_memory"]


def test_every_reader_needs_a_path_of_its_own_to_what_is_offered() -> None:
    one = scenario("cpu", "cpu", "cuda:0")
    (made,) = planned(one, TWO)
    assert offers(made) == ["udmabuf/dmabuf", "dma_heap/dmabuf", "memfd/memfd"]
    assert receives(made, "consumer[1]") == [
        "udmabuf/dmabuf/external_memory+host_register",
        "dma_heap/dmabuf/external_memory+host_register",
        "memfd/memfd/host_register",
    ]
    picky = replace(one.consumers[1], importer=("host_register",))
    (fewer,) = planned(replace(one, consumers=(one.consumers[0], picky)), TWO)
    assert receives(fewer, "consumer[1]")[-1] == "memfd/memfd/host_register"


def test_where_nothing_fits_it_says_what_was_tried() -> None:
    one = scenario("cpu", "cuda:0")
    one = replace(one, consumers=(replace(one.consumers[0], importer=("vmm",)),))
    (refused,) = planned(one, TWO)
    assert (refused.refused_as, refused.refusal_code) == (Outcome.SKIPPED, "no_path")
    assert refused.refusal == (
        "no path from producer on cpu (udmabuf/dmabuf, dma_heap/dmabuf, memfd/memfd) "
        "fits consumer[0] on cuda:0"
    )
    assert refused.parts == ()


def test_a_relay_that_copies_offers_a_buffer_of_its_own() -> None:
    one = scenario(
        "cuda:0", "cpu", relays=(Role("relay", 0, "cuda:1"), Role("relay", 1, "cpu", forward="copy"))
    )
    one = replace(one, producer=replace(one.producer, memory=("memfd",)))
    (made,) = planned(one, TWO)
    assert made.links == (("producer", "relay[0]"), ("relay[0]", "relay[1]"), ("relay[1]", "consumer[0]"))
    assert [part.upstream for part in made.parts] == [None, "producer", "relay[0]", "relay[1]"]
    assert offers(made) == ["memfd/memfd"]
    assert offers(made, "relay[0]") == []
    assert offers(made, "relay[1]") == ["udmabuf/dmabuf", "dma_heap/dmabuf", "memfd/memfd"]
    assert receives(made, "relay[0]") == ["memfd/memfd/host_register"]
    assert receives(made, "relay[1]") == ["memfd/memfd/mmap"]
    assert receives(made) == ["udmabuf/dmabuf/mmap", "dma_heap/dmabuf/mmap", "memfd/memfd/mmap"]


def test_a_relay_that_forwards_the_fd_makes_all_below_it_readers() -> None:
    one = scenario("cuda:0", "cpu", relays=(Role("relay", 0, "cuda:1"),))
    one = replace(one, producer=replace(one.producer, memory=("host_numa", "memfd")))
    (made,) = planned(one, TWO)
    assert offers(made) == ["memfd/memfd"]  # the CPU below the relay maps no host_numa


def test_who_writes_back_is_known_to_its_producer() -> None:
    one = scenario("cpu", "cpu", "cpu")
    one = replace(one, consumers=(one.consumers[0], replace(one.consumers[1], access="readwrite")))
    (made,) = planned(one)
    assert made.parts[0].downstream == (Peer("consumer[0]"), Peer("consumer[1]", writes=True))
    assert [part.access for part in made.parts] == ["read", "read", "readwrite"]


def test_one_process_is_one_team() -> None:
    (apart,) = planned(scenario())
    (together,) = planned(scenario(process="same"))
    assert [len(team) for team in apart.teams] == [1, 1]
    assert [len(team) for team in together.teams] == [2]


# Which devices.


def test_selectors_by_uuid_prefix_and_pci_id() -> None:
    for selector in ("cuda:GPU-1000-beef", "cuda:GPU-1", "cuda:0000:01:00.0", "cuda:01:00"):
        assert devices(scenario(selector, "cuda:0"), TWO) == [["cuda:1", "cuda:0"]]


def test_a_device_that_is_not_there_is_a_skip_and_an_ambiguous_one_an_error() -> None:
    (absent,) = planned(scenario("cuda:7"), TWO)
    assert (absent.refused_as, absent.refusal_code) == (Outcome.SKIPPED, "no_device")
    assert "no device cuda:7 on this machine; visible: cuda:0 (GPU-0000-beef)" in absent.refusal
    (ambiguous,) = planned(scenario("cuda:GPU-"), TWO)
    assert (ambiguous.refused_as, ambiguous.refusal_code) == (Outcome.ERROR, "bad_device")
    (none,) = planned(scenario("cuda:0"), {"cuda": Inventory(reason="no driver: libcuda.so.1 was not found")})
    assert none.refusal == "no device for 'cuda:0' on this machine: no driver: libcuda.so.1 was not found"
    (unasked,) = planned(scenario("cuda:0"))
    assert unasked.refusal == "no device for 'cuda:0' on this machine: none was found"


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ((EXPORTS | IMPORTS, IMPORTS), ["cuda:0", "cuda:1"]),
        ((NEITHER, EXPORTS, IMPORTS), ["cuda:1", "cuda:2"]),  # the first pair that qualifies
        ((IMPORTS, EXPORTS), ["cuda:1", "cuda:0"]),
        ((NEITHER, NEITHER), ["cuda:0", "cuda:1"]),  # none does: the first, and the call decides
        ((NEITHER, EXPORTS, NEITHER), ["cuda:0", "cuda:1"]),
    ],
)
def test_any_and_other_search_the_pairs_in_device_order(
    attributes: tuple[dict[str, bool], ...], expected: list[str]
) -> None:
    assert devices(scenario("cuda:any", "cuda:other"), gpus(*attributes)) == [expected]


def test_other_memories_take_the_first_pair() -> None:
    one = scenario("cuda:any", "cuda:other")
    one = replace(one, producer=replace(one.producer, memory=("device",), handle=("posix_fd",)))
    assert devices(one, gpus(NEITHER, EXPORTS)) == [["cuda:0", "cuda:1"]]


def test_any_may_be_the_producers_device_and_other_may_not() -> None:
    one = gpus(EXPORTS | IMPORTS)
    assert devices(scenario("cuda:any", "cuda:any"), one) == [["cuda:0", "cuda:0"]]
    (refused,) = planned(scenario("cuda:any", "cuda:other"), one)
    assert refused.refusal == "'other' needs a second device, and this machine has only cuda:0"
    assert devices(scenario("cuda:1", "cuda:other"), TWO) == [["cuda:1", "cuda:0"]]
    assert devices(scenario("cuda:any", "cuda:other", "cuda:other"), TWO) == [["cuda:0", "cuda:1", "cuda:1"]]


def test_each_is_a_scenario_for_every_ordered_pair() -> None:
    three = gpus(*[EXPORTS | IMPORTS] * 3)
    made = planned(scenario("cuda:*", "cuda:*"), three)
    assert [one.scenario.name for one in made] == [
        f"s[cuda:{p},cuda:{c}]" for p in range(3) for c in range(3) if p != c
    ]
    assert devices(scenario("cuda:*", "cuda:0"), TWO) == [["cuda:0", "cuda:0"], ["cuda:1", "cuda:0"]]
    assert devices(scenario("cuda:*", "cpu"), TWO) == [["cuda:0", "cpu"], ["cuda:1", "cpu"]]
    assert devices(scenario("cuda:*", "cuda:other"), TWO) == [["cuda:0", "cuda:1"], ["cuda:1", "cuda:0"]]


def test_each_with_too_few_devices_is_one_skip() -> None:
    (alone,) = planned(scenario("cuda:*", "cuda:*"), gpus(EXPORTS))
    assert alone.refusal == "no pair of devices: this machine has only cuda:0"
    (none,) = planned(scenario("cuda:*", "cuda:*"), {"cuda": Inventory(reason="no driver")})
    assert none.refusal == "no device for 'cuda:*' on this machine: no driver"
    assert none.scenario.name == "s"


def test_each_in_a_list_of_consumers_is_a_fan_out() -> None:
    (made,) = planned(scenario("cuda:0", "cuda:*", "cpu", fan_out=True), TWO)
    assert [(part.label, part.device) for part in made.parts] == [
        ("producer", "cuda:0"),
        ("consumer[0]", "cuda:0"),
        ("consumer[1]", "cuda:1"),
        ("consumer[2]", "cpu"),
    ]
    mapped = planned(scenario("cpu", "cuda:*", fan_out=True), TWO)
    assert [len(one.parts) for one in mapped] == [3]


# Mapping.


def test_mapping_puts_the_cpu_in_place_of_a_gpu_and_says_so() -> None:
    one = scenario("cuda:any", "cuda:other", "cpu")
    producer = replace(one.producer, memory=("device",), handle=("dmabuf",), options={"pcie": True})
    consumer = replace(one.consumers[0], importer=("vmm",), access="readwrite", params={"x": 1})
    (made,) = planned(
        replace(one, producer=producer, consumers=(consumer, one.consumers[1])), mapping=(("cuda:*", "cpu"),)
    )
    assert made.mapped == {"cuda:any": "cpu", "cuda:other": "cpu"}
    assert [part.device for part in made.parts] == ["cpu"] * 3
    assert offers(made) == ["udmabuf/dmabuf", "dma_heap/dmabuf", "memfd/memfd"]
    assert made.parts[0].options == {}
    assert made.parts[1].access == "readwrite"
    assert made.parts[1].params == {"x": 1}


def test_the_first_mapping_that_matches_counts_and_only_what_it_matches_changes() -> None:
    one = scenario("cuda:0", "cuda:1")
    changed, mapped = plan.apply_mapping(one, (("cuda:1", "cpu"), ("cuda:*", "cuda:1")))
    assert [role.device for role in changed.roles] == ["cuda:1", "cpu"]
    assert mapped == {"cuda:1": "cpu", "cuda:0": "cuda:1"}
    assert plan.apply_mapping(one, (("cpu", "cuda:0"),)) == (one, {})


def test_only_what_is_needed_at_once_is_asked_for() -> None:
    settings = RunSettings(seed=0)
    assert plan.most_at_once([scenario("cpu")], settings) == {"cpu": 2}
    two = [scenario("cpu", "cuda:0"), scenario("cuda:0", "cuda:1"), scenario("cpu", "cpu", "cpu")]
    assert plan.most_at_once(two, settings) == {"cpu": 3, "cuda": 2}
    mapped = replace(settings, mapping=(("cuda:*", "cpu"),))
    assert plan.most_at_once([scenario("cuda:any")], mapped) == {"cpu": 2}


# Patterns, deadlines, repeats.


def test_kappa_tells_scenarios_repeats_and_runs_apart_unless_a_base_is_given() -> None:
    first, second = planned(scenario(), repeat=2)
    assert first.parts[0].pattern.kappa == patterns.kappa(9, "s", 0)
    assert second.parts[0].pattern.kappa == patterns.kappa(9, "s", 1)
    (based,) = planned(scenario(pattern=PatternChoice("ramp", base=0x1000)))
    assert based.parts[0].pattern == patterns.Pattern("ramp", 0x1000, 0, 0)
    (random,) = planned(scenario(pattern=PatternChoice("random", seed=7)))
    assert (random.parts[0].pattern.seed, random.parts[0].pattern.kind) == (7, "random")
    each = planned(scenario("cuda:*", "cuda:*"), TWO)
    assert len({one.parts[0].pattern.kappa for one in each}) == 2
    for one in (first, second, based, random, *each):
        assert len({part.pattern for part in one.parts}) == 1  # both ends derive the same


def test_deadlines_grow_with_the_bytes_and_give_way_to_what_is_said() -> None:
    assert planned(scenario())[0].deadline_s == pytest.approx(30, abs=0.001)
    assert planned(scenario(size_bytes=2**30, rounds=3))[0].deadline_s == 30 + 4 * 3
    assert planned(scenario(timeout_s=5.0))[0].deadline_s == 5
    assert planned(scenario(timeout_s=5.0), timeout_s=7.0)[0].deadline_s == 7
    (scaled,) = plan.plan([scenario(timeout_s=5.0)], {}, RunSettings(seed=0), 20)
    assert scaled.deadline_s == 100
    # A worker waits longer than the orchestrator ever lets it.
    assert scaled.parts[0].patience_s > 20 * (5 + plan.START_DEADLINE_S + plan.INITIALISE_DEADLINE_S)


def test_repeats_run_the_whole_list_again() -> None:
    made = plan.plan([scenario(), scenario(name="t")], {}, RunSettings(seed=0, repeat=2))
    assert [(one.scenario.name, one.repeat) for one in made] == [("s", 0), ("t", 0), ("s", 1), ("t", 1)]


def test_attempts_are_numbered_alike_at_both_ends() -> None:
    (made,) = planned(scenario("cuda:0", "cuda:1", "cpu"), TWO)
    for part in made.parts[1:]:
        pairs = [(attempt.memory, attempt.handle) for attempt in part.receives]
        assert pairs == [(attempt.memory, attempt.handle) for attempt in made.parts[0].offers]
    assert all(isinstance(attempt, Attempt) for attempt in made.parts[0].offers)


def test_role_functions_are_looked_for_beside_the_scenarios_file() -> None:
    assert plan.folder_of(scenario(file="/somewhere/else/x.yaml")) == "/somewhere/else"
    for nowhere in ("<python>", "-"):
        assert plan.folder_of(scenario(file=nowhere)) == ""
