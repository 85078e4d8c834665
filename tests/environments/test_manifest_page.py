"""docs/manifest.md describes the whole manifest, and nothing else."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from backend.domain.environments import manifest
from backend.domain.environments.view_specs import ViewKind

PAGE = (Path(__file__).parents[2] / "docs" / "manifest.md").read_text(encoding="utf-8")
BLOCKS = [
    found
    for found in vars(manifest).values()
    if isinstance(found, type) and issubclass(found, BaseModel) and found.model_fields
]
KEYS = {name for block in BLOCKS for name in block.model_fields}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_every_key_is_described(block: type[BaseModel]):
    told = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`\n]+`|```.*?```", PAGE, re.DOTALL))))
    assert set(block.model_fields) - told == set()


def test_every_row_names_a_key_that_there_is():
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", PAGE, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named - KEYS - {"text", "tag", "json", "tool"} - set(ViewKind) == set()
    assert len(named) > 40


def test_its_first_example_is_a_manifest():
    example = re.findall(r"```yaml\n(spec_version.*?)```", PAGE, re.DOTALL)[0]
    assert manifest.read_manifest(example).column_names == ["win", "format"]


def test_its_tools_are_an_action():
    lines = re.findall(r"```yaml\n(action:.*?)```", PAGE, re.DOTALL)[0].splitlines()
    block = "\n".join(f"    {line}" for line in lines)
    text = f"name: desk\nproctor:\n  rewards: {{goal: 1}}\n  agent:\n{block}\n"
    assert manifest.read_manifest(text).proctor.agent.action.tool_names == ["search"]
