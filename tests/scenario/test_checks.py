"""What makes a scenario possible: judged from the backends' static halves, with no device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dmabuf_mp import backends
from dmabuf_mp.errors import ScenarioError
from dmabuf_mp.model import Outcome, PatternChoice, Role, Scenario
from dmabuf_mp.scenario import checks, loads, validate


def problems(text: str) -> list[str]:
    try:
        loads(text + "\nsize: 4KiB\n")
    except ScenarioError as error:
        return [f"{problem.line}:{problem.column}: {problem.message}" for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("producer", "consumer"),
    [
        ("cpu", "cpu"),
        ("cpu", "cuda:any"),
        ("cuda:any", "cpu"),
        ("cuda:0", "cuda:other"),
        ("cuda:*", "cuda:*"),
        ("cuda:*", "cpu"),
        ("cpu", "cuda:*"),
        ("cuda:GPU-12ab", "cuda:MIG-12ab"),
        ("cuda:65:00.0", "cuda:0000:65:00.0"),
        ("{device: cuda:0, memory: device}", "{device: cuda:1, importer: vmm}"),
        ("{device: cuda:0, memory: device, handle: dmabuf}", "{device: cuda:1, importer: external_memory}"),
        ("{device: cuda:0, memory: device, handle: posix_fd}", "{device: cuda:0, importer: external_memory}"),
        ("{device: cuda:0, memory: host_numa}", "{device: cuda:1, importer: [vmm, external_memory]}"),
        ("{device: cuda:0, memory: memfd}", "{device: cuda:1, importer: host_register}"),
        ("{device: cuda:0, memory: [host_numa, memfd]}", "cpu"),
        ("{memory: dma_heap, heap: reserved}", "cpu"),
        ("{heap: system}", "cpu"),
        ("{device: cuda:0, memory: [pinned, memfd], pcie: true}", "cpu"),
    ],
)
def test_possible(producer: str, consumer: str) -> None:
    assert problems(f"producer: {producer}\nconsumer: {consumer}") == []


@pytest.mark.parametrize(
    ("producer", "consumer", "expected"),
    [
        (
            "{memory: memfd}",
            "{device: cuda:0, importer: vmm}",
            "2:38: no path: consumer[0] on cuda:0 cannot read memfd/memfd by vmm; expected importer "
            "host_register, or memory/handle device/posix_fd or host_numa/posix_fd",
        ),
        (
            "cuda:0",
            "{device: cuda:1, importer: vmm}",
            "2:38: no path: consumer[0] on cuda:1 cannot read pinned/dmabuf (the default) by vmm; expected "
            "importer external_memory, or memory/handle device/posix_fd or host_numa/posix_fd",
        ),
        (
            "{device: cuda:0, memory: host_numa}",
            "cpu",
            "1:36: no path: consumer[0] on cpu cannot read host_numa/posix_fd; expected memory/handle "
            "udmabuf/dmabuf or dma_heap/dmabuf or memfd/memfd or pinned/dmabuf or device/dmabuf",
        ),
        (
            "{device: cuda:0, memory: device, handle: posix_fd}",
            "cpu",
            "1:36: no path: consumer[0] on cpu cannot read device/posix_fd; expected memory/handle "
            "udmabuf/dmabuf or dma_heap/dmabuf or memfd/memfd or pinned/dmabuf or device/dmabuf",
        ),
        (
            "{memory: pinned}",
            "cpu",
            "1:20: cpu has no memory 'pinned': expected one of udmabuf, dma_heap, memfd",
        ),
        (
            "{memory: [memfd, pinned]}",
            "cpu",
            "1:28: cpu has no memory 'pinned': expected one of udmabuf, dma_heap, memfd",
        ),
        ("cpu", "{importer: [mmap, vmm]}", "2:29: cpu has no importer 'vmm': expected one of mmap"),
        (
            "{memory: memfd, handle: dmabuf}",
            "cpu",
            "1:35: no handle 'dmabuf' for memory memfd: expected one of memfd",
        ),
        ("{memory: memfd, heap: system}", "cpu", "1:33: 'heap' is for memory dma_heap, this is memfd"),
        ("{pcie: true}", "cpu", "1:18: cpu has no option 'pcie'"),
        (
            "{device: cuda:0, memory: memfd, pcie: true}",
            "cpu",
            "1:49: 'pcie' is for memory pinned or device, this is memfd",
        ),
        ("{heap: ../null}", "cpu", "1:18: expected a name without '/', got '../null'"),
        ("{heap: ..}", "cpu", "1:18: expected a name without '/', got '..'"),
        ("{heap: 5}", "cpu", "1:18: expected text, got the number 5: put it in quotes"),
        ("{device: cuda:0, pcie: yes}", "cpu", "1:34: expected true or false, got 'yes'"),
        ("cuda:" + "0" * 100, "cpu", "1:11: a device has at most 100 characters, this has 105"),
        ("cpu:0", "cpu", "1:11: unknown device 'cpu:0': the CPU is 'cpu', without a number"),
        (
            "gpu",
            "cpu",
            "1:11: unknown device 'gpu': expected cpu; cuda:N, cuda:GPU-<uuid>, cuda:MIG-<uuid>, "
            "cuda:<PCI id>, cuda:any, cuda:other or cuda:*",
        ),
        (
            "cuda:other",
            "cpu",
            "1:11: 'other' is another device than the producer's, and this is it: try cuda:any",
        ),
        (
            "cpu",
            "cuda:other",
            "2:11: 'other' is another device than the producer's, which is cpu: try cuda:any",
        ),
        (
            "cuda:*",
            "cuda:other",
            "2:11: '*' stands for each device in turn and does not go with 'other'",
        ),
        ("cuda:any", "cuda:*", "1:11: '*' stands for each device in turn and does not go with 'any'"),
        ("{role: fill}", "cpu", "1:18: expected package.module:function, got 'fill'"),
        ("{role: 'a.b:c.d'}", "cpu", "1:18: expected package.module:function, got 'a.b:c.d'"),
        ("{role: '1a:b'}", "cpu", "1:18: expected package.module:function, got '1a:b'"),
        (
            "{params: {a: 1}}",
            "cpu",
            "1:20: 'params' are for a function of your own: name it with 'role'",
        ),
        ("{role: 'a:b', params: 5}", "cpu", "1:33: expected a mapping of names to values, got the number 5"),
        (
            "{importer: mmap}",
            "cpu",
            "1:12: a producer has no 'importer': it belongs to a relay or a consumer",
        ),
        ("{forward: copy}", "cpu", "1:12: a producer has no 'forward': it belongs to a relay"),
        (
            "{access: write}",
            "cpu",
            "1:12: a producer has no 'access': it belongs to a consumer",
        ),
        (
            "cpu",
            "{access: write}",
            "2:20: unknown access 'write': expected one of read, readwrite; did you mean 'readwrite'?",
        ),
    ],
)
def test_impossible(producer: str, consumer: str, expected: str) -> None:
    assert problems(f"producer: {producer}\nconsumer: {consumer}") == [expected]


def test_what_suits_each_consumer_has_to_suit_all() -> None:
    text = "producer: {device: cuda:0, memory: [device, memfd]}\nconsumers:\n"
    vmm, mmap = "  - {device: cuda:1, importer: vmm}\n", "  - {device: cpu, importer: mmap}\n"
    assert problems(text + vmm) == problems(text + mmap) == []
    assert problems(text + vmm + mmap) == [
        "1:36: no memory and handle suits every reader: consumer[0] reads device/posix_fd; "
        "consumer[1] reads device/dmabuf or memfd/memfd"
    ]


def test_a_copying_relay_parts_the_buffers() -> None:
    text = "producer: {device: cuda:0, memory: device}\nconsumer: cpu\nrelays:\n"
    text += "  - {device: cuda:0, importer: vmm"
    assert len(problems(text + "}\n")) == 1
    assert problems(text + ", forward: copy, memory: memfd}\n") == []
    assert problems(text + ", forward: copy, memory: host_numa}\n") == [
        "4:60: no path: consumer[0] on cpu cannot read host_numa/posix_fd; expected memory/handle "
        "udmabuf/dmabuf or dma_heap/dmabuf or memfd/memfd or pinned/dmabuf or device/dmabuf"
    ]


@pytest.mark.parametrize("key", ["memory: memfd", "handle: memfd", "heap: system"])
def test_a_relay_that_passes_the_fd_on_allocates_nothing(key: str) -> None:
    name = key.split(":", maxsplit=1)[0]
    (problem,) = problems(f"producer: cpu\nconsumer: cpu\nrelays: [{{{key}}}]")
    assert f"relay[0] allocates nothing, so it has no {name!r}: 'forward: copy'" in problem
    copying = key.replace("handle: memfd", "handle: dmabuf")
    assert problems(f"producer: cpu\nconsumer: cpu\nrelays: [{{forward: copy, {copying}}}]") == []


def test_at_most_one_reader_writes() -> None:
    readwrite = "  - {device: cpu, access: readwrite}\n"
    text = "producer: cpu\nconsumers:\n"
    assert problems(text + readwrite + "  - cpu\n") == []
    assert problems(text + readwrite + "  - cpu\n" + readwrite) == [
        "5:27: at most one reader of a buffer writes to it, and consumer[0] does"
    ]


def test_one_process_plays_one_producer_and_one_consumer() -> None:
    same = "process: same\nproducer: cuda:0\n"
    assert problems(same + "consumer: cuda:0") == problems(same + "consumers: [cuda:1]") == []
    rule = "1:10: 'same': one process plays one producer and one consumer"
    assert problems(same + "consumers: [cuda:0, cpu]") == [f"{rule}, not 2 consumers"]
    assert problems(same + "consumer: cuda:0\nrelays: [cuda:0]") == [f"{rule}, no relays"]
    assert problems(same + "consumers: ['cuda:*']") == [
        "1:10: 'same': one process plays one consumer, and '*' in 'consumers' stands for several"
    ]


def test_each_device_in_a_list_of_consumers() -> None:
    assert problems("producer: cuda:any\nconsumers: ['cuda:*', cpu]") == []
    (scenario,) = loads("producer: cuda:any\nconsumers: ['cuda:*']\nsize: 1")
    assert scenario.fan_out
    (scenario,) = loads("producer: cpu\nconsumer: cuda:*\nsize: 1")
    assert not scenario.fan_out


def test_a_relay_is_one_device() -> None:
    assert problems("producer: cuda:0\nconsumer: cpu\nrelays: ['cuda:*']") == [
        "3:10: a relay is one device: '*' is for the producer and the consumers"
    ]


def test_every_path_that_a_backend_names_is_possible_when_asked_for() -> None:
    """The checks and the backends' tables agree, whatever backends there are."""
    devices = {"cpu": "cpu"}
    for owner in backends.paths().values():
        for reader in backends.paths().values():
            for importer, readable in reader.imports.items():
                for memory, handles in owner.exports.items():
                    for handle in handles:
                        scenario = Scenario(
                            name="x",
                            size_bytes=1,
                            producer=Role(
                                "producer",
                                device=devices.get(owner.prefix, f"{owner.prefix}:0"),
                                memory=(memory,),
                                handle=(handle,),
                            ),
                            consumers=(
                                Role(
                                    "consumer",
                                    device=devices.get(reader.prefix, f"{reader.prefix}:0"),
                                    importer=(importer,),
                                ),
                            ),
                        )
                        found = list(checks.problems(scenario))
                        assert bool(found) == ((memory, handle) not in readable), (scenario, found)


GOOD = Scenario(name="x", size_bytes=1, producer=Role("producer"), consumers=(Role("consumer"),))


def test_a_scenario_of_ones_own() -> None:
    validate(GOOD)
    validate(replace(GOOD, producer=Role("producer", function=print, params={"a": 1})))


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (replace(GOOD, name="a\nb"), "name: a name is one printable line"),
        (replace(GOOD, size_bytes=0), "size: expected 1 to 9223372036854775807 bytes, got 0"),
        (replace(GOOD, rounds=0), "rounds: expected a whole number from 1 to 2147483648, got 0"),
        (replace(GOOD, timeout_s=0.0), "timeout: expected more than 0"),
        (replace(GOOD, expect=Outcome.SKIPPED), "expect: expected one of passed, failed"),
        (replace(GOOD, pattern=PatternChoice("ramps")), "pattern.kind: unknown pattern 'ramps'"),
        (
            replace(GOOD, pattern=PatternChoice("ramp", base=0)),
            "pattern.base: expected a whole number from 1",
        ),
        (replace(GOOD, consumers=()), "consumers: expected 1 to 1024 consumers, got 0"),
        (replace(GOOD, producer=Role("producer", device="gpu")), "producer.device: unknown device 'gpu'"),
        (
            replace(GOOD, producer=Role("producer", function="x")),
            "producer.role: expected 'package.module:function'",
        ),
        (
            replace(GOOD, consumers=(Role("consumer", memory=("memfd",)),)),
            "consumers.0.memory: consumer[0] allocates nothing, so it has no 'memory'",
        ),
        (
            replace(GOOD, consumers=(Role("consumer", importer=("mmmap",)),)),
            "consumers.0.importer.0: cpu has no importer 'mmmap'",
        ),
        (
            replace(GOOD, relays=(Role("relay", access="readwrite"),)),
            "relays.0.access: a relay reads: 'access: readwrite' is for consumers",
        ),
    ],
)
def test_a_bad_scenario_of_ones_own(bad: Scenario, says: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        validate(bad)
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"<python>:1:1: {says}")
