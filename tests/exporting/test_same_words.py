"""The exported inference.py understands replies exactly as Proctor does."""

import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.domain.manifest import ActionSpec
from backend.domain.prompts import parse_reply
from tests.exporting.conftest import export

REPLIES = [
    "<move>4</move>",
    "I think <move> 4 </move> is best.",
    "<move>4</move><move>5</move>",
    "<move>four</move>",
    "<move></move>",
    "<move>" + "9" * 30 + "</move>",
    "4",
    "",
    "  ",
    '{"cell": 4}',
    '```json\n{"cell": 4}\n```',
    "[1]",
    "{",
    '<tool_call>{"name": "look", "arguments": {"at": "x"}}</tool_call>',
    'so: <tool_call>{"name": "look", "arguments": {}}</tool_call>',
    "<tool_call>{}</tool_call>",
    "<tool_call>",
]
TOOLS = [{"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}]
SPECS: list[dict[str, Any]] = [
    {"format": "tag", "tag": "move", "field": "cell", "type": "integer"},
    {"format": "tag", "tag": "move", "field": "cell"},
    {"format": "text", "field": "cell", "type": "integer"},
    {"format": "text", "field": "cell"},
    {"format": "json"},
    {"format": "tool", "field": "tool_name", "tools": TOOLS, "extra": {"type": "call_tool"}},
    {"format": "tool", "field": "tool_name", "tools": TOOLS, "text": "said"},
]


@pytest.fixture(scope="module")
def inference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[types.ModuleType]:
    """The exported file itself. What it connects to is not needed here, and lives in another virtual environment."""
    folder = export("tictactoe", tmp_path_factory.mktemp("export"))
    absent = {}
    for name, attribute in (("openai", "OpenAI"), ("openenv", "GenericEnvClient")):
        absent[name] = sys.modules.get(name)
        sys.modules[name] = types.SimpleNamespace(**{attribute: object})  # type: ignore[assignment]
    spec = importlib.util.spec_from_file_location("exported_inference", Path(folder) / "inference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for name, before in absent.items():
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before


@pytest.mark.parametrize("written", SPECS, ids=lambda spec: "-".join(str(spec.get(k, "")) for k in ("format", "type")))
@pytest.mark.parametrize("reply", REPLIES)
def test_a_reply_means_the_same(inference: types.ModuleType, written: dict[str, Any], reply: str) -> None:
    ours = parse_reply(ActionSpec.model_validate(written), reply)
    inference.ACTION = written
    try:
        theirs = inference.action_of(reply)
    except inference.Unreadable:
        theirs = None
    assert theirs == ours.action


def test_an_observation_reads_the_same(inference: types.ModuleType) -> None:
    assert inference.words_of({"message": "You start.", "board": "…"}) == "You start."
