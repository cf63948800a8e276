"""One document → one `Scenario`, or every mistake in it where it stands."""

from __future__ import annotations

import pytest

from dmabuf_mp import scenario as scenarios
from dmabuf_mp.errors import ScenarioError
from dmabuf_mp.model import Outcome, PatternChoice, Role, Scenario
from dmabuf_mp.scenario import loads

BASE = "producer: cpu\nconsumer: cpu\nsize: 4KiB\n"


def problems(text: str) -> list[str]:
    """Return the problems of a text as `line:column: message`."""
    try:
        loads(text)
    except ScenarioError as error:
        return [f"{problem.line}:{problem.column}: {problem.message}" for problem in error.problems]
    return []


def test_the_full_form() -> None:
    (scenario,) = loads(
        """\
name: all of it
description: |
  two lines
  of text
producer: {device: cuda:any, memory: [dma_heap, pinned], handle: dmabuf, heap: system, pcie: false,
           role: my.roles:fill, params: {depth: 2, names: [a, b], deep: {ratio: 1.5, off: null}}}
relays:
  - cpu
  - {device: cpu, forward: copy, memory: memfd, importer: mmap}
consumers:
  - {device: cuda:other, importer: [host_register, external_memory], access: readwrite}
  - cpu
size: 1.5 MiB
pattern: {kind: random, seed: 0}
rounds: 0x10
timeout: 1.5s
process: separate
expect: failed
""",
        "folder/file.yaml",
    )
    assert scenario == Scenario(
        name="all of it",
        description="two lines\nof text\n",
        size_bytes=3 * 2**19,
        producer=Role(
            "producer",
            device="cuda:any",
            memory=("dma_heap", "pinned"),
            handle=("dmabuf",),
            function="my.roles:fill",
            params={"depth": 2, "names": ["a", "b"], "deep": {"ratio": 1.5, "off": None}},
            options={"heap": "system", "pcie": False},
            line=6,
            column=18,
        ),
        relays=(
            Role("relay", 0, device="cpu", line=8, column=5),
            Role("relay", 1, forward="copy", memory=("memfd",), importer=("mmap",), line=9, column=5),
        ),
        consumers=(
            Role(
                "consumer",
                0,
                device="cuda:other",
                importer=("host_register", "external_memory"),
                access="readwrite",
                line=11,
                column=5,
            ),
            Role("consumer", 1, device="cpu", line=12, column=5),
        ),
        pattern=PatternChoice("random", seed=0),
        rounds=16,
        timeout_s=1.5,
        expect=Outcome.FAILED,
        fan_out=True,
        file="folder/file.yaml",
    )


def test_the_short_form() -> None:
    (scenario,) = loads("---\n# a comment\n" + BASE + "pattern: address\n", "folder/short.yaml")
    assert scenario == Scenario(
        name="short",
        size_bytes=4096,
        producer=Role("producer", line=3, column=11),
        consumers=(Role("consumer", line=4, column=11),),
        pattern=PatternChoice("address"),
        file="folder/short.yaml",
        line=3,
    )


def test_a_role_without_a_device_is_on_the_cpu() -> None:
    (scenario,) = loads("producer: {role: 'm:f'}\nconsumer: {importer: mmap}\nsize: 1\n")
    assert [role.device for role in scenario.roles] == ["cpu", "cpu"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("name: NO", "NO"),
        ("name: on", "on"),
        ("name: 12:30", "12:30"),
        ("name: 'true'", "true"),
        ("name: '010'", "010"),
        ("name: größe 4", "größe 4"),
    ],
)
def test_names(line: str, expected: str) -> None:
    (scenario,) = loads(BASE + line + "\n")
    assert scenario.name == expected


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("name: true", "4:7: expected text, got the boolean true: put it in quotes"),
        ("name: 5", "4:7: expected text, got the number 5: put it in quotes"),
        ("name: 1e6", "4:7: expected text, got the number 1000000.0: put it in quotes"),
        ("name:", "4:1: expected text, got nothing"),
        ("name: [a]", "4:7: expected text, got a list"),
        ("name: {a: b}", "4:7: expected text, got a mapping"),
        ('name: ""', "4:7: expected one printable line of at most 255 characters, got ''"),
        ('name: " "', "4:7: expected one printable line of at most 255 characters, got ' '"),
        ('name: "a\\nb"', "4:7: expected one printable line of at most 255 characters, got 'a\\nb'"),
        ('name: "\\u202e"', "4:7: expected one printable line of at most 255 characters, got '\\u202e'"),
        (
            "name: " + "n" * 256,
            f"4:7: expected one printable line of at most 255 characters, got '{'n' * 80}'…",
        ),
        ('description: "a\\eb"', "4:14: expected printable lines, got control characters"),
        ("rounds: 0", "4:9: expected a whole number from 1 to 2147483648, got the number 0"),
        (
            "rounds: 2147483649",
            "4:9: expected a whole number from 1 to 2147483648, got the number 2147483649",
        ),
        ("rounds: true", "4:9: expected a whole number from 1 to 2147483648, got the boolean true"),
        ("rounds: 1.0", "4:9: expected a whole number from 1 to 2147483648, got the number 1.0"),
        ("rounds: '3'", "4:9: expected a whole number from 1 to 2147483648, got '3'"),
        ("rounds: 1_000", "4:9: expected a whole number from 1 to 2147483648, got '1_000'"),
        ("timeout: 30", "4:10: '30' has no unit: for seconds write 30s"),
        ("timeout: 1.5", "4:10: '1.5' has no unit: for seconds write 1.5s"),
        ("timeout: 0s", "4:10: '0s' is out of range: a duration is more than 0 and at most 168h (a week)"),
        (
            "timeout: no",
            "4:10: 'no' is not a duration: write a number and a unit (500ms, 30s, 5m, 1h)",
        ),
        (
            "timeout: [1s]",
            "4:10: expected a duration, got a list: write a number and a unit (500ms, 30s, 5m, 1h)",
        ),
        (
            "process: sane",
            "4:10: unknown process 'sane': expected one of separate, same; did you mean 'same'?",
        ),
        ("process: true", "4:10: expected text, got the boolean true: put it in quotes"),
        (
            "expect: skipped",
            "4:9: unknown outcome 'skipped': expected one of passed, failed, crashed, timed_out, error",
        ),
        (
            "pattern: ramps",
            "4:10: unknown pattern 'ramps': expected one of ramp, random, address; did you mean 'ramp'?",
        ),
        ("pattern: 5", "4:10: expected a kind of pattern, or a mapping with 'kind', got the number 5"),
        ("pattern: {base: 0}", "4:17: expected a whole number from 1 to 4294967295, got the number 0"),
        (
            "pattern: {base: 4294967296}",
            "4:17: expected a whole number from 1 to 4294967295, got the number 4294967296",
        ),
        (
            "pattern: {kind: random, seed: -1}",
            "4:31: expected a whole number from 0 to 4294967295, got the number -1",
        ),
        (
            "pattern: {kind: random, base: 1}",
            "4:31: 'base' belongs to the pattern 'ramp', this one is 'random'",
        ),
        ("pattern: {seed: 1}", "4:17: 'seed' belongs to the pattern 'random', this one is 'ramp'"),
        ("pattern: {sead: 1}", "4:11: unknown key 'sead' in pattern: did you mean 'seed'?"),
        ("relays: cpu", "4:9: expected a list, got 'cpu'"),
        ("relays: []", "4:9: this list is empty: name at least one, or leave the key out"),
        (
            "relays: [5]",
            "4:10: expected a device such as cpu, or a mapping with 'device', got the number 5",
        ),
        ("relays: [{access: readwrite}]", "4:11: a relay has no 'access': it belongs to a consumer"),
        ("consumers: [cpu]", "4:1: 'consumer' and 'consumers' are two forms of the same: use one of them"),
        ("needs: 5", "4:8: expected a list, got the number 5"),
        ("needs: [5]", "4:9: expected text, got the number 5: put it in quotes"),
        ("roundss: 3", "4:1: unknown key 'roundss': did you mean 'rounds'?"),
        ("Size: 3", "4:1: unknown key 'Size': did you mean 'size'?"),
        (
            "xyzzy: 3",
            "4:1: unknown key 'xyzzy': expected one of name, description, producer, consumer, consumers, "
            "relays, size, pattern, rounds, timeout, process, expect, needs, matrix",
        ),
    ],
)
def test_a_mistake_in_one_line(line: str, problem: str) -> None:
    assert problems(BASE + line + "\n") == [problem]


@pytest.mark.parametrize(
    ("size", "says"),
    [
        ("0", "the smallest is 1 byte"),
        ("-1", "is negative"),
        ("1.5", "not a whole number of bytes"),
        ("1e6", "'1e6' has an exponent"),
        ("1_000", "has underscores: write 1000"),
        ("010", "readers of YAML disagree on 010"),
        ("08", "readers of YAML disagree on 08"),
        ("0o17", "readers of YAML disagree on 0o17"),
        ("16k", "can be read in two ways"),
        ("true", "expected a size, got the boolean true"),
        ("NO", "'NO' is not a size"),
        ("", "expected a size, got nothing"),
        ("[1]", "expected a size, got a list"),
        ("12:30", "'12:30' is not a size"),
        ("9223372036854775808", "too large"),
        ("0x8000000000000000", "too large"),
        ("1" * 5000, "too long"),
        ("１６", "is not a size"),
    ],
)
def test_sizes_refused(size: str, says: str) -> None:
    (problem,) = problems(f"producer: cpu\nconsumer: cpu\nsize: {size}\n")
    assert says in problem
    assert problem.startswith("3:7: " if size else "3:1: ")


@pytest.mark.parametrize("size", ["4096", "0x1000", "4KiB", "'4096'", "4 KiB", '"0x1000"'])
def test_sizes(size: str) -> None:
    (scenario,) = loads(f"producer: cpu\nconsumer: cpu\nsize: {size}\n")
    assert scenario.size_bytes == 4096


def test_what_is_missing() -> None:
    assert problems("name: x\n") == [
        "1:1: 'size' is missing: how large is the buffer? For example `size: 16KiB`",
        "1:1: 'producer' is missing: which device fills the buffer? For example `producer: cpu`",
        "1:1: 'consumer' is missing: which device checks the buffer? For example `consumer: cpu`",
    ]


def test_a_misspelt_key_is_not_missing_as_well() -> None:
    assert problems("producr: cpu\nconsumr: cpu\nsiz: 4KiB\n") == [
        "1:1: unknown key 'producr': did you mean 'producer'?",
        "2:1: unknown key 'consumr': did you mean 'consumer'?",
        "3:1: unknown key 'siz': did you mean 'size'?",
    ]


def test_a_wrong_memory_brings_no_complaint_about_paths() -> None:
    (problem,) = problems(
        "producer: {device: cpu, memory: mem_fd}\nconsumer: {device: cuda:0, importer: vmm}\nsize: 1\n"
    )
    assert "unknown memory 'mem_fd'" in problem


def test_a_misplaced_key_hides_no_complaint_about_paths() -> None:
    found = problems(
        "producer: {memory: memfd}\nconsumer: {device: cuda:0, importer: vmm, heap: x}\nsize: 1\n"
    )
    assert len(found) == 2
    assert "no path" in found[0]
    assert "a consumer has no 'heap'" in found[1]


def test_the_same_mistake_in_two_files_keeps_each_place() -> None:
    text = BASE + "---\n" + BASE + "rounds: 0\n---\n" + BASE + "rounds: 0\n"
    assert [problem.split(" ")[0] for problem in problems(text)] == ["8:9:", "13:9:"]


def test_mistakes_come_in_order_of_their_places() -> None:
    text = "size: 16k\nconsumer: {device: cpu, importer: vmm}\nproducer: {x: 1, device: gpu}\n"
    assert [problem.split(" ")[0] for problem in problems(text)] == ["1:7:", "2:35:", "3:12:", "3:26:"]


def test_several_mistakes_in_one_list() -> None:
    text = "size: 1\nneeds: [0, '']\nproducer: {memory: [1, x, memfd]}\nconsumers: [gpu, {x: 1, y: 2}, 5]\n"
    places = [problem.split(" ")[0] for problem in problems(text)]
    assert places == ["2:9:", "2:12:", "3:21:", "3:24:", "4:13:", "4:19:", "4:25:", "4:32:"]


def test_a_mistake_in_an_alias_stands_where_it_is_written() -> None:
    (problem,) = problems("producer: &x {device: gpu:0}\nconsumer: *x\nsize: 1\n")
    assert problem.startswith("1:23: unknown device 'gpu:0'")


def test_too_many_mistakes() -> None:
    found = problems(BASE + "".join(f"key{i}: 1\n" for i in range(1100)))
    assert 900 < len(found) <= 1001
    assert found[-1].endswith("too many mistakes: no more are told")


def test_needs() -> None:
    text = f"name: a\n{BASE}---\nname: b\nneeds: a\n{BASE}---\nname: c\nneeds: [a, b, a]\n{BASE}"
    assert [scenario.needs for scenario in loads(text)] == [(), ("a",), ("a", "b")]


def test_needs_names_a_whole_matrix_or_one_of_it() -> None:
    text = f"name: a\nproducer: cpu\nconsumer: cpu\nmatrix: {{size: [1, 2]}}\n---\n{BASE}needs: [a]\n---\n"
    text += f"{BASE}needs: ['a[size=2]']\n"
    assert [scenario.needs for scenario in loads(text)[2:]] == [("a[size=1]", "a[size=2]"), ("a[size=2]",)]


@pytest.mark.parametrize(
    ("need", "says"),
    [
        ("b", "needs 'b': it has to come before this one"),
        ("c", "needs 'c': it has to come before this one"),
        ("first", "needs 'first': none has this name; did you mean 'fist'?"),
        ("zzz", "needs 'zzz': none has this name"),
    ],
)
def test_needs_what_is_not_there(need: str, says: str) -> None:
    text = f"name: fist\n{BASE}---\nname: b\nneeds: [{need}]\n{BASE}---\nname: c\n{BASE}"
    assert problems(text) == [f"7:9: {says}"]


def test_two_of_one_name_are_no_mistake() -> None:
    assert [scenario.name for scenario in loads(f"name: a\n{BASE}---\nname: a\n{BASE}")] == ["a", "a"]


def test_at_most_10_000_scenarios() -> None:
    line = "{producer: cpu, consumer: cpu, matrix: {size: [%s], rounds: [%s]}}\n"
    hundred = ", ".join(map(str, range(1, 101)))
    assert len(loads(line % (hundred, hundred))) == 10_000
    (problem,) = problems(line % (hundred, ", ".join(map(str, range(1, 102)))))
    assert problem == "1:1: more than 10,000 scenarios in one file: 10,100 up to this one"
    assert scenarios.MAX_SCENARIOS == 10_000


def test_a_matrix_of_large_documents_is_refused_before_it_is_expanded() -> None:
    rounds = ", ".join(map(str, range(1, 9001)))
    params = ", ".join(["x"] * 200)
    text = f"producer: {{role: 'm:f', params: {{x: [{params}]}}}}\nmatrix: {{rounds: [{rounds}]}}\n"
    (problem,) = problems(text + "consumer: cpu\nsize: 1\n")
    assert problem == "1:1: more than 1,000,000 values once aliases and matrices are expanded"


def test_1_024_consumers_and_no_more() -> None:
    assert (
        len(loads(f"producer: cpu\nsize: 1\nconsumers: [{', '.join(['cpu'] * 1024)}]\n")[0].consumers) == 1024
    )
    (problem,) = problems(f"producer: cpu\nsize: 1\nconsumers: [{', '.join(['cpu'] * 1025)}]\n")
    assert problem == "3:12: at most 1024 entries are possible"
