"""The proposed `proctor:` block is a manifest that can be read, whatever the package's actions look like."""

from typing import Any

import pytest

from backend.domain.environments.import_report import Breakdown, ImportReport, Played
from backend.domain.environments.manifest import Manifest, read_manifest
from backend.domain.environments.proposals import propose

DOOR = {"properties": {"door": {"type": "integer"}, "metadata": {"type": "object"}}, "required": ["door"]}
TOOL = {
    "properties": {"type": {"const": "call_tool"}, "tool_name": {"type": "string"}, "arguments": {"type": "object"}}
}


def _proposed(report: ImportReport, columns_from: str | None = None) -> Manifest:
    return read_manifest("name: doors\n" + propose(report, columns_from))


def _report(**told: Any) -> ImportReport:
    return ImportReport(
        **{"starts": True, "name": "doors", "opening": {"prompt": "Which?", "legal_doors": [1, 2]}} | told
    )


def test_one_number_becomes_a_tag_with_the_legal_values():
    action = _proposed(_report(action_schema=DOOR)).proctor.agent.action
    assert (action.format, action.tag, action.field, action.type, action.choices) == (
        ("tag", "door", "door", "integer", "legal_doors")
    )


def test_a_message_is_the_whole_reply():
    schema = {"properties": {"message": {"type": "string"}}, "required": ["message"]}
    action = _proposed(_report(action_schema=schema)).proctor.agent.action
    assert (action.format, action.field) == ("text", "message")


def test_several_fields_become_json_and_the_prompt_names_them():
    schema = {"properties": {"x": {"type": "integer"}, "kind": {"$ref": "#/$defs/K"}}, "required": ["x", "kind"]}
    schema["$defs"] = {"K": {"enum": ["a", "b"], "type": "string"}}
    agent = _proposed(_report(action_schema=schema)).proctor.agent
    assert agent.action.format == "json"
    assert "`kind` (one of a, b)" in agent.system


def test_tools_are_called_with_the_constant_type():
    tools = [{"name": "echo", "description": "Says it again.", "input_schema": {"type": "object", "properties": {}}}]
    report = _report(action_schema=TOOL, tools=tools, opening={}, after_step={"result": {}, "error": None})
    agent = _proposed(report).proctor.agent
    assert (agent.action.format, agent.action.field, agent.action.extra) == ("tool", "tool_name", {"type": "call_tool"})
    assert agent.action.tool_names == ["echo"]


def test_a_dictionary_that_was_chosen_becomes_the_columns():
    parts = Breakdown(path="parts", names=["hit", "tidy", "Not a column"], adds_up=True)
    manifest = _proposed(_report(action_schema=DOOR, breakdowns=[parts]), "parts")
    assert manifest.column_names == ["hit", "tidy"]
    assert manifest.proctor.columns_from == "parts"


def test_columns_that_are_sent_are_taken_as_they_are():
    assert _proposed(_report(action_schema=DOOR, columns=["win", "tidy"])).column_names == ["win", "tidy"]


def test_an_adapter_knows_its_weights_tasks_and_turns():
    adapter = {"columns": {"exact": 1.0, "form": 0.2}, "tasks": {"train": 8, "heldout": 2}, "max_turns": 5}
    proctor = _proposed(_report(adapter={**adapter, "system": "Play.", "tools": [{"name": "x"}]})).proctor
    assert [(column.name, column.weight) for column in proctor.rewards] == [("exact", 1.0), ("form", 0.2)]
    assert (proctor.tasks.train, proctor.tasks.heldout, proctor.episode.max_turns) == (8, 2, 5)
    assert (proctor.agent.system, proctor.agent.action.format, proctor.agent.action.text) == ("Play.", "tool", "text")


OPENINGS: list[dict[str, Any]] = [{}, {"board": [1]}, {"a b": 1}, {"text": "x" * 5000, "n": 1}, {"observation": 1}]
SCHEMAS: list[dict[str, Any]] = [
    {},
    {"properties": None},
    {"properties": {"x": {"$ref": "#/$defs/none"}}},
    {"properties": {"9": {}}},
]


@pytest.mark.parametrize("opening", OPENINGS)
def test_any_observation_gets_a_template_that_compiles(opening: dict[str, Any]):
    assert _proposed(_report(action_schema=DOOR, opening=opening))


@pytest.mark.parametrize("schema", SCHEMAS)
def test_any_schema_gets_an_action(schema: dict[str, Any]):
    assert _proposed(_report(action_schema=schema, played=Played(episodes=2, steps=3, longest=2, ended=2)))
