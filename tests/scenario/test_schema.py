"""The JSON Schema for editors accepts what the loader accepts, and refuses what is wrong in itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
import pytest

from dmabuf_mp.errors import ScenarioError
from dmabuf_mp.scenario import load, loads, schema
from dmabuf_mp.scenario.tree import documents, to_data

if TYPE_CHECKING:
    from dmabuf_mp.model import Scenario

SCENARIOS = Path(__file__).parents[2] / "scenarios"
SHIPPED = sorted(SCENARIOS.glob("*.yaml"))
VALIDATOR = jsonschema.Draft202012Validator(schema())
BASE = "producer: cpu\nconsumer: cpu\nsize: 4KiB\n"


def accepts(text: str) -> bool:
    """Tell what an editor would say of a file with one document."""
    (root,) = documents(text, lambda *_: None)
    return VALIDATOR.is_valid(to_data(root))


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


def test_the_shipped_schema_is_this_one() -> None:
    """Else run `dmabuf-mp schema > scenarios/scenario.schema.json`."""
    assert json.loads((SCENARIOS / "scenario.schema.json").read_text()) == schema()


def test_there_are_scenarios() -> None:
    names = {file.stem for file in SHIPPED}
    assert names >= {
        *("same_process", "cross_process", "cross_gpu", "dmabuf_interop"),
        *("cpu_memfd", "cpu_udmabuf", "cpu_dma_heap", "cpu_fan_out", "cpu_relay", "cpu_readwrite"),
        *("cpu_rounds", "cpu_sizes", "cross_gpu_vmm", "cross_gpu_host_numa", "cross_gpu_memfd"),
        *("gpu_to_cpu", "cpu_to_gpu", "gpu_fan_out", "all_pairs"),
    }


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped(file: Path) -> None:
    text = file.read_text()
    first, second, *rest = text.splitlines()
    assert first == "# yaml-language-server: $schema=scenario.schema.json"
    assert second.startswith("# ")
    assert len(rest) < 40
    assert load([file])
    for root in documents(text, lambda *_: None):
        VALIDATOR.validate(to_data(root))


def test_the_three_demos() -> None:
    """Alone and as one file of documents, which are the same but for what they need."""
    alone = load([SCENARIOS / f"{name}.yaml" for name in ("same_process", "cross_process", "cross_gpu")])
    together = load([SCENARIOS / "dmabuf_interop.yaml"])

    def what(scenario: Scenario) -> object:
        roles = [(role.name, role.device, role.memory, role.importer) for role in scenario.roles]
        return scenario.name, scenario.size_bytes, scenario.process, roles

    assert [what(scenario) for scenario in alone] == [what(scenario) for scenario in together]
    assert [scenario.size_bytes for scenario in together] == [4096 * 4] * 3
    assert [scenario.pattern.base for scenario in together] == [0x1000] * 3
    assert [scenario.needs for scenario in together] == [
        (),
        ("same-process",),
        ("same-process", "cross-process"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        BASE,
        BASE + "pattern: ramp",
        BASE + "pattern: {kind: ramp, base: 0x1000}",
        BASE + "needs: []\n".replace("[]", "[a]"),
        BASE + "needs: a",
        BASE + "timeout: 1.5 s",
        BASE + "matrix: {size: [1, 4KiB], pattern.kind: [ramp], producer.params: [{}]}",
        BASE + "relays: [cpu, {device: cpu, forward: copy, memory: memfd}]",
        "producer: {device: cuda:*, memory: [pinned, device], pcie: true}\nconsumers: [cpu]\nsize: 1",
        "matrix: {size: [1], producer: [cpu], consumer.device: [cpu]}",
        "consumers: [cpu, cpu]\nsize: 1\nproducer: cpu\n"
        "matrix: {consumers.1.device: [cpu], consumers.0: [cpu]}",
        BASE + "matrix: {producer.params.x.y: [5], producer.role: ['m:f']}",
        "producer: {role: 'a.b:c', params: {x: [1, {y: null}]}}\nconsumer: cpu\nsize: '16384'",
    ],
)
def test_accepted_by_both(text: str) -> None:
    if "needs" not in text:
        assert loads(text)
    assert accepts(text)


@pytest.mark.parametrize(
    "text",
    [
        "producer: cpu\nconsumer: cpu",
        "producer: cpu\nsize: 1",
        "consumer: cpu\nsize: 1",
        BASE + "consumers: [cpu]",
        BASE + "roundss: 1",
        BASE + "name: true",
        BASE + "name: 5",
        BASE + "name:",
        BASE + "name: ''",
        BASE + "rounds: 0",
        BASE + "rounds: '1'",
        BASE + "rounds: 1.5",
        BASE + "timeout: 30",
        BASE + "timeout: 30x",
        BASE + "process: both",
        BASE + "expect: skipped",
        BASE + "relays: []",
        BASE + "relays: cpu",
        BASE + "pattern: ramps",
        BASE + "pattern: {base: 0}",
        BASE + "pattern: {seed: 4294967296}",
        BASE + "needs: [5]",
        BASE + "matrix: {}",
        BASE + "matrix: {size: []}",
        BASE + "matrix: {size: 4KiB}",
        BASE + "matrix: {size: [16k]}",
        BASE + "matrix: {siz: [16KiB]}",
        BASE + "matrix: {producer.devise: [cpu]}",
        BASE + "matrix: {matrix: [1]}",
        "producer: 5\nconsumer: cpu\nsize: 1",
        "producer: gpu\nconsumer: cpu\nsize: 1",
        "producer: {memory: mem}\nconsumer: cpu\nsize: 1",
        "producer: {memory: []}\nconsumer: cpu\nsize: 1",
        "producer: {memory: [memfd, 5]}\nconsumer: cpu\nsize: 1",
        "producer: {importer: mmap}\nconsumer: cpu\nsize: 1",
        "producer: {params: {}}\nconsumer: cpu\nsize: 1".replace("{}", "{a: 1}"),
        "producer: {role: fill}\nconsumer: cpu\nsize: 1",
        "producer: {pcie: 1}\nconsumer: cpu\nsize: 1",
        "producer: cpu\nconsumer: {memory: memfd}\nsize: 1",
        "producer: cpu\nconsumer: {access: write}\nsize: 1",
        "producer: cpu\nconsumers: []\nsize: 1",
        "producer: cpu\nconsumer: cpu\nsize: 0",
        "producer: cpu\nconsumer: cpu\nsize: -1",
        "producer: cpu\nconsumer: cpu\nsize: 16k",
        "producer: cpu\nconsumer: cpu\nsize: true",
        "producer: cpu\nconsumer: cpu\nsize: 9223372036854775808",
    ],
)
def test_refused_by_both(text: str) -> None:
    with pytest.raises(ScenarioError):
        loads(text)
    assert not accepts(text)


def test_every_key_says_what_it_is() -> None:
    models = [schema(), *schema()["$defs"].values()]
    for model in models:
        for key, value in model["properties"].items():
            assert value["description"], key
