"""The reference of scenario files tells the truth: its examples load, its messages are the real ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dmabuf_mp.errors import ScenarioError
from dmabuf_mp.scenario import loads

TEXT = (Path(__file__).parents[2] / "docs" / "scenarios.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```\n(?:```text\n(.*?)```)?", TEXT, re.DOTALL)


def test_there_are_examples_of_both_kinds() -> None:
    assert sum(1 for _, messages in EXAMPLES if messages) >= 5
    assert sum(1 for _, messages in EXAMPLES if not messages) >= 3


@pytest.mark.parametrize(("text", "messages"), EXAMPLES)
def test_example(text: str, messages: str) -> None:
    if not messages:
        assert loads(text)
        return
    with pytest.raises(ScenarioError) as caught:
        loads(text, "scenario.yaml")
    assert str(caught.value) == messages.rstrip("\n")
