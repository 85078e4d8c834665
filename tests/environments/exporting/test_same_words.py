"""The exported inference.py reads conversations and understands replies exactly as Proctor does."""

import importlib.util
import types
from pathlib import Path
from typing import Any

import pytest

from backend.domain.environments.manifest import ActionSpec, ContextSpec
from backend.domain.environments.prompts import parse_reply, split_reasoning, visible_messages
from tests.environments.exporting.conftest import export
from workers.policies.chat_format import native_messages, plain_messages, write_answer
from workers.rollouts.episode import CallResult, render_results

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
    'a <tool_call>{"name": "look"}</tool_call> b <tool_call>{"name": "look", "arguments": {"at": "y"}}</tool_call>',
    '<tool_call>{"name": "jump", "arguments": {}}</tool_call><tool_call>{"name": "look", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "jump", "arguments": {}}</tool_call><tool_call>{"name": "jump", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "look", "arguments": {"at": 5}}</tool_call>',
    '<tool_call>{"name": "look", "arguments": {"at": "x", "at": "y"}}</tool_call>',
    '<tool_call>{"name": "look", "arguments": []}</tool_call>',
    '<tool_call>{"name": "look", "arguments": {}, "why": 1}</tool_call>',
    '<tool_call>{"name": "look", "arguments": {"at": NaN}}</tool_call>',
    '<tool_call>{"name": "look", "arguments": {}}</tool_call><tool_call>{</tool_call>',
    '<tool_call>{"name": "look", "arguments": {}}</tool_call>' * 17,
    "</tool_call><tool_call>",
]
TOOLS: list[dict[str, Any]] = [
    {
        "name": "look",
        "description": "Look.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    }
]
SPECS: list[dict[str, Any]] = [
    {"format": "tag", "tag": "move", "field": "cell", "type": "integer"},
    {"format": "tag", "tag": "move", "field": "cell"},
    {"format": "text", "field": "cell", "type": "integer"},
    {"format": "text", "field": "cell"},
    {"format": "json"},
    {"format": "tool", "field": "tool_name", "tools": TOOLS, "extra": {"type": "call_tool"}},
    {"format": "tool", "field": "tool_name", "tools": TOOLS, "text": "said"},
]


CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "You play."},
    {"role": "user", "content": "Begin."},
    {"role": "assistant", "content": REPLIES[17], "reasoning": "Both sides."},
    {"role": "user", "content": "Call 1 (`look`): a\n\nCall 2 (`look`): b", "results": ["a", "b"]},
    {"role": "assistant", "content": "Well."},
    {"role": "user", "content": "No tool was called."},
    {"role": "assistant", "content": REPLIES[13]},
    {"role": "user", "content": "c"},
]


@pytest.fixture
def words(exported_words: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The exported file itself; what a test says of the manifest holds for that test."""
    monkeypatch.setattr(exported_words, "AGENT", exported_words.AGENT)
    monkeypatch.setattr(exported_words, "ACTION", exported_words.ACTION)
    return exported_words


@pytest.fixture(scope="module")
def exported_words(tmp_path_factory: pytest.TempPathFactory) -> types.ModuleType:
    folder = export("tictactoe", tmp_path_factory.mktemp("export"))
    spec = importlib.util.spec_from_file_location("exported_words", Path(folder) / "inference_words.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def understood(words: types.ModuleType, reply: str) -> list[Any]:
    """The actions in a reply, None for each that cannot be made."""
    try:
        asked = words.asked_for(reply, TOOLS)
    except words.Unreadable:
        return [None]
    return [None if isinstance(each, words.Unreadable) else each for each in asked]


@pytest.mark.parametrize("written", SPECS, ids=lambda spec: "-".join(str(spec.get(k, "")) for k in ("format", "type")))
@pytest.mark.parametrize("reply", REPLIES)
def test_a_reply_means_the_same(words: types.ModuleType, written: dict[str, Any], reply: str) -> None:
    ours = parse_reply(ActionSpec.model_validate(written), reply)
    words.ACTION = written
    assert understood(words, reply) == [each.action for each in ours.calls or (ours,)]


def test_an_observation_reads_the_same(words: types.ModuleType) -> None:
    assert words.words_of({"message": "You start.", "board": "…"}) == "You start."


@pytest.mark.parametrize("context", [{}, {"kind": "last", "turns": 1}, {"kind": "last", "turns": 2}, {"kind": "last"}])
def test_the_same_part_of_a_conversation_is_sent_in_the_same_form(
    words: types.ModuleType, context: dict[str, Any]
) -> None:
    words.AGENT, words.ACTION = {"context": context}, SPECS[-1]
    seen = visible_messages(ContextSpec.model_validate(context), CONVERSATION)
    assert words.visible(CONVERSATION) == seen
    assert words.native(words.visible(CONVERSATION)) == native_messages(seen, "You play.")
    words.ACTION = SPECS[0]
    assert words.native(CONVERSATION) == plain_messages(CONVERSATION)


@pytest.mark.parametrize(
    "reply", ["<think>a</think> b", "a</think>b", "<think>a", "a", "", "<think></think>", "<think>a</think>b</think>c"]
)
def test_what_was_thought_is_kept_apart_the_same_way(words: types.ModuleType, reply: str) -> None:
    words.AGENT = {"reasoning": "think"}
    assert words.split_reasoning(reply) == split_reasoning(reply)
    words.AGENT = {}
    assert words.split_reasoning(reply) == ("", reply)


def test_several_answers_are_reported_in_the_same_words(words: types.ModuleType) -> None:
    made = [
        CallResult({"tool_name": "look"}, text="a wall"),
        CallResult(None, is_made=False, note="There is no tool 'jump'."),
    ]
    told = [("look", "a wall"), ("", "There is no tool 'jump'.")]
    assert words.answers_in_words(told) == render_results(made, "tool_name")


@pytest.mark.parametrize("arguments", ['{"at": "</tool_call>"}', "no JSON", ""])
def test_a_call_of_the_endpoints_own_is_written_the_same(words: types.ModuleType, arguments: str) -> None:
    sent = [{"function": {"name": "look", "arguments": arguments}}]
    assert words.write_call("look", arguments) == write_answer("", sent)
