"""Whatever a file holds, the loader answers with scenarios or with located problems, and with nothing else.

`DMABUF_MP_FUZZ=100000` sets the number of examples.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import jsonschema
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dmabuf_mp.backends import paths
from dmabuf_mp.errors import ScenarioError
from dmabuf_mp.patterns import KINDS
from dmabuf_mp.scenario import loads, schema, validate
from dmabuf_mp.scenario.shape import models
from dmabuf_mp.scenario.tree import documents, to_data

if TYPE_CHECKING:
    from dmabuf_mp.model import Scenario

EXAMPLES = settings(
    max_examples=int(os.environ.get("DMABUF_MP_FUZZ", "50")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
SHIPPED = [file.read_text() for file in sorted((Path(__file__).parents[2] / "scenarios").glob("*.yaml"))]
VALIDATOR = jsonschema.Draft202012Validator(schema())

KEYS = sorted(
    {key for model in models().values() for key in model.model_fields} | {"matrix", "x", "<<", "siz"}
)
NAMES = [name for backend in paths().values() for name in (*backend.exports, *backend.imports)]
SELECTORS = ["cpu", "cuda:0", "cuda:any", "cuda:other", "cuda:*", "gpu"]
CHOICES = ["dmabuf", "posix_fd", "read", "readwrite", "fd", "copy", *KINDS, "same", "separate", "passed"]
SCALARS = ["16KiB", "16k", "0", "1", "0x10", "010", "1e6", "1_000", "-1", "1.5", "30s", "30", "a.b:c"]
ODD = ["true", "NO", "on", "~", "12:30", "skipped", "system"]
WORDS = st.sampled_from([*NAMES, *SELECTORS, *CHOICES, *SCALARS, *ODD])
QUOTED = st.one_of(WORDS, st.text(max_size=8).map(json.dumps))


def flow(values: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Return lists and mappings of values, as flow-style YAML."""
    pairs = st.tuples(st.sampled_from(KEYS), values).map(lambda pair: f"{pair[0]}: {pair[1]}")
    return st.one_of(
        st.lists(values, max_size=4).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(pairs, max_size=6).map(lambda items: f"{{{', '.join(items)}}}"),
    )


DOCUMENTS = st.lists(
    st.tuples(st.sampled_from(KEYS), st.recursive(QUOTED, flow, max_leaves=8)), min_size=1, max_size=10
).map(lambda lines: "".join(f"{key}: {value}\n" for key, value in lines))
NEARLY_RIGHT = st.tuples(st.just("producer: cpu\nconsumer: cpu\nsize: 1\n"), DOCUMENTS).map("".join)


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """Draw a shipped file with a few pieces cut out, doubled or replaced."""
    text = draw(st.sampled_from(SHIPPED))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = draw(st.integers(start, min(len(text), start + 20)))
        piece = draw(
            st.one_of(st.just(""), st.just(text[start:end] * 2), st.text(max_size=3), QUOTED, flow(QUOTED))
        )
        text = text[:start] + piece + text[end:]
    return text


def judge(text: str) -> tuple[Scenario, ...]:
    """Load a text; check that every problem has a place in it, and that every scenario is one."""
    try:
        scenarios = loads(text, "fuzz.yaml")
    except ScenarioError as error:
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        assert error.problems
        for problem in error.problems:
            assert problem.file == "fuzz.yaml"
            assert 1 <= problem.line <= len(lines) + 1
            assert problem.column >= 1
            assert problem.message
            assert "\n" not in problem.message
            problem.message.encode()
        return ()
    for scenario in scenarios:
        validate(scenario)
        json.dumps([scenario.matrix, *(role.params for role in scenario.roles)], allow_nan=False)
    return scenarios


@EXAMPLES
@given(st.text())
def test_any_text(text: str) -> None:
    judge(text)


@EXAMPLES
@given(st.text("abc:-?{}[]&*!|>'\"%@`#, \n\t<~0123xe_."))
def test_text_of_yaml_s_own_characters(text: str) -> None:
    judge(text)


@EXAMPLES
@given(st.one_of(DOCUMENTS, NEARLY_RIGHT))
def test_keys_and_values_at_random(text: str) -> None:
    if judge(text):
        for root in documents(text, lambda *_: None):
            VALIDATOR.validate(to_data(root))


@EXAMPLES
@given(damaged())
def test_damaged_files(text: str) -> None:
    if judge(text):
        for root in documents(text, lambda *_: None):
            VALIDATOR.validate(to_data(root))
