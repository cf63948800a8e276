"""`matrix:` expands one document into many."""

from __future__ import annotations

import pytest

from dmabuf_mp.errors import ScenarioError
from dmabuf_mp.model import PatternChoice
from dmabuf_mp.scenario import loads


def problems(text: str) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        loads(text)
    return [f"{problem.line}:{problem.column}: {problem.message}" for problem in caught.value.problems]


def test_the_last_field_varies_fastest() -> None:
    found = loads("name: m\nproducer: cpu\nconsumer: cpu\nmatrix:\n  size: [4KiB, 0x10]\n  rounds: [1, 2]\n")
    assert [(scenario.name, scenario.size_bytes, scenario.rounds) for scenario in found] == [
        ("m[size=4KiB,rounds=1]", 4096, 1),
        ("m[size=4KiB,rounds=2]", 4096, 2),
        ("m[size=0x10,rounds=1]", 16, 1),
        ("m[size=0x10,rounds=2]", 16, 2),
    ]
    assert found[3].matrix == {"size": 16, "rounds": 2}
    assert {scenario.line for scenario in found} == {1}


def test_dotted_names_go_through_short_forms_lists_and_what_is_absent() -> None:
    found = loads(
        """\
name: m
producer: cpu
consumers: [cpu, {device: cpu}]
size: 1
matrix:
  producer.memory: [memfd, [udmabuf, memfd]]
  consumers.1.importer: [mmap]
  consumers.0.access: [readwrite]
  pattern.kind: [random]
  pattern.seed: [7]
  producer.role: ["m:f"]
  producer.params.depth.of: [3]
"""
    )
    assert [scenario.producer.memory for scenario in found] == [("memfd",), ("udmabuf", "memfd")]
    assert found[1].name == (
        "m[producer.memory=[udmabuf,memfd],consumers.1.importer=mmap,consumers.0.access=readwrite,"
        "pattern.kind=random,pattern.seed=7,producer.role=m:f,producer.params.depth.of=3]"
    )
    scenario = found[0]
    assert scenario.pattern == PatternChoice("random", seed=7)
    assert scenario.consumers[0].access == "readwrite"
    assert scenario.consumers[1].importer == ("mmap",)
    assert scenario.producer.params == {"depth": {"of": 3}}


def test_a_required_key_may_be_in_the_matrix_alone() -> None:
    found = loads("matrix: {size: [1], producer: [cpu, 'cuda:0'], consumer.device: [cpu]}\n")
    assert [scenario.producer.device for scenario in found] == ["cpu", "cuda:0"]


def test_the_document_itself_is_left_as_it_was() -> None:
    found = loads(
        "producer: cpu\nconsumer: cpu\nsize: 8\nrounds: 5\nmatrix: {rounds: [1, 2], pattern: [ramp]}\n"
    )
    assert [scenario.rounds for scenario in found] == [1, 2]
    assert found[0].pattern == PatternChoice("ramp")


def test_what_an_alias_shares_is_changed_in_one_place_only() -> None:
    (scenario,) = loads(
        "producer: {role: 'm:f', params: {a: &shared [1, {x: 2}], b: *shared}}\nconsumer: cpu\nsize: 8\n"
        "matrix: {producer.params.a.0: [5], producer.params.a.1.x: [6]}\n"
    )
    assert scenario.producer.params == {"a": [5, {"x": 6}], "b": [1, {"x": 2}]}


def test_whole_mappings_as_values() -> None:
    found = loads(
        "producer: cpu\nconsumer: cpu\nsize: 8\nmatrix: {pattern: [ramp, {kind: random, seed: 7}]}\n"
    )
    assert [scenario.name for scenario in found] == [
        "string[pattern=ramp]",
        "string[pattern={kind:random,seed:7}]",
    ]
    assert found[1].matrix == {"pattern": {"kind": "random", "seed": 7}}


def test_an_unprintable_value_is_escaped_in_the_name() -> None:
    (scenario,) = loads(
        'producer: {role: "m:f"}\nconsumer: cpu\nsize: 8\nmatrix: {producer.params.x: ["a\\nb"]}\n'
    )
    assert scenario.name == "string[producer.params.x=a\\nb]"
    assert scenario.producer.params == {"x": "a\nb"}


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ("5", "4:9: expected a mapping of fields to lists of values, such as `size: [4KiB, 1MiB]`"),
        ("{}", "4:9: expected a mapping of fields to lists of values, such as `size: [4KiB, 1MiB]`"),
        ("", "4:1: expected a mapping of fields to lists of values, such as `size: [4KiB, 1MiB]`"),
        ("{rounds: 5}", "4:18: expected a list of values, such as [4KiB, 1MiB]"),
        ("{rounds: []}", "4:18: expected a list of values, such as [4KiB, 1MiB]"),
        ("{rounds: [1, 0]}", "4:22: expected a whole number from 1 to 2147483648, got the number 0"),
        ("{rouds: [1, 2]}", "4:10: unknown key 'rouds': did you mean 'rounds'?"),
        ("{producer.devise: [cpu]}", "4:10: unknown key 'devise' in producer: did you mean 'device'?"),
        ("{matrix: [1]}", "4:10: 'matrix' names no field: expected a dotted name such as producer.device"),
        (
            "{producer..x: [1]}",
            "4:10: 'producer..x' names no field: expected a dotted name such as producer.device",
        ),
        (
            "{producer: [cpu], producer.device: [cpu]}",
            "4:27: 'producer.device' and 'producer' set the same field: use one of them",
        ),
        (
            "{relays: [[cpu]], relays.0.device: [cpu]}",
            "4:27: 'relays.0.device' and 'relays' set the same field: use one of them",
        ),
    ],
)
def test_mistakes(matrix: str, expected: str) -> None:
    assert problems(f"producer: cpu\nconsumer: cpu\nsize: 1\nmatrix: {matrix}\n") == [expected]


def test_at_most_64_fields() -> None:
    fields = ", ".join(f"producer.params.p{i}: [1]" for i in range(65))
    assert problems(f"producer: {{role: 'm:f'}}\nconsumer: cpu\nsize: 1\nmatrix: {{{fields}}}\n") == [
        "4:9: at most 64 fields can vary, here are 65"
    ]


def test_a_long_value_is_cut_in_the_name() -> None:
    (scenario,) = loads(
        f"producer: {{role: 'm:f'}}\nconsumer: cpu\nsize: 8\nmatrix: {{producer.params.x: [{'y' * 1000}]}}\n"
    )
    assert scenario.name == f"string[producer.params.x={'y' * 64}…]"


@pytest.mark.parametrize("index", ["2", "00", "-1", "x", "１"])
def test_an_entry_that_is_not_there(index: str) -> None:
    found = problems(
        f"producer: cpu\nconsumers: [cpu, cpu]\nsize: 1\nmatrix: {{'consumers.{index}.device': [cpu]}}\n"
    )
    assert found == [f"4:10: 'consumers' has no entry '{index}': its 2 count from 0"]


def test_a_mistake_that_all_share_is_told_once() -> None:
    assert problems("producer: gpu\nconsumer: cpu\nmatrix: {size: [1, 2, 3], rounds: [1, 2, 3]}\n") == [
        "1:11: unknown device 'gpu': expected cpu; cuda:N, cuda:GPU-<uuid>, cuda:MIG-<uuid>, cuda:<PCI id>, "
        "cuda:any, cuda:other or cuda:*"
    ]


def test_an_impossible_combination_is_told_where_the_importer_stands() -> None:
    found = problems(
        "producer: {device: cpu, memory: memfd}\nconsumer: cuda:0\nsize: 1\n"
        "matrix: {consumer.importer: [host_register, vmm]}\n"
    )
    assert len(found) == 1
    assert found[0].startswith("4:45: no path: consumer[0] on cuda:0 cannot read memfd/memfd by vmm")
