"""Tool calls in replies are read strictly, with a message for each error."""

import json
import time
from typing import Any

import pytest

from backend.domain.environments.manifest import ActionSpec
from backend.domain.environments.prompts import parse_reply, render_system, write_reply
from backend.domain.environments.tools import CallUnreadable, Tool, ToolsUnusable, read_tools, split_calls, write_call

SEARCH = Tool(
    name="search",
    description="Find pages",
    parameters={
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "minimum": 1, "maximum": 5}},
        "required": ["query"],
        "additionalProperties": False,
    },
)
SPEC = ActionSpec(format="tool", field="tool", tools=[SEARCH, Tool(name="stop")])
MCP = ActionSpec(format="tool", field="tool_name", tools="tools", extra={"type": "call_tool"})


def call(text: str) -> str:
    return f"<tool_call>{text}</tool_call>"


def test_a_call_becomes_an_action_and_the_text_around_it_is_reasoning():
    reply = 'I look it up.\n<tool_call>\n{"name": "search", "arguments": {"query": "leave"}}\n</tool_call> Now.'
    assert parse_reply(SPEC, reply).action == {"tool": "search", "arguments": {"query": "leave"}}
    before, [found], after = split_calls(reply)
    assert (before.strip(), found.name, after.strip()) == ("I look it up.", "search", "Now.")


def test_arguments_may_be_excluded_where_none_are_needed():
    assert parse_reply(SPEC, call('{"name": "stop"}')).action == {"tool": "stop", "arguments": {}}


def test_constant_fields_make_the_action_that_mcp_packages_take():
    action = parse_reply(MCP, write_call("search", {"query": "x"}), [SEARCH]).action
    assert action == {"type": "call_tool", "tool_name": "search", "arguments": {"query": "x"}}


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ("", "Found no complete <tool_call>"),
        ("search for leave", "write exactly one"),
        (call('{"name": "stop"}') * 17, "Found 17"),
        ("<tool_call>" + call('{"name": "stop"}'), "Found 2 nested"),
        ('<tool_call>{"name": "stop"}', "no complete"),
        ('</tool_call>{"name": "stop"}<tool_call>', "appears before"),
        (call('{"name": "search", "argum'), "not JSON"),
        (call(""), "not JSON"),
        (call('["stop"]'), "not an object"),
        (call('{"name": "stop", "name": "search"}'), "twice"),
        (call('{"name": "search", "arguments": {"query": "a", "query": "b"}}'), "twice"),
        (call('{"name": "search", "arguments": {"query": NaN}}'), "NaN is not a JSON"),
        (call('{"name": "stop", "arguments": "{}"}'), "must be an object"),
        (call('{"name": 3}'), "name of a tool"),
        (call('{"tool": "stop"}'), "not 'tool'"),
        (call('{"name": "erase"}'), "There is no tool 'erase'; there are: search, stop."),
        (call('{"name": "search"}'), "'query' is a required property"),
        (call('{"name": "search", "arguments": {"query": 7}}'), "`query`: 7 is not of type 'string'"),
        (call('{"name": "search", "arguments": {"query": "a", "limit": 9}}'), "9 is greater than the maximum of 5"),
        (call('{"name": "search", "arguments": {"query": "a", "x": 1}}'), "'x' was unexpected"),
        (call('{"name": "search", "arguments": ' + '{"a":' * 50 + "1" + "}" * 50 + "}"), "nested deeper than 32"),
        (call('{"name": "search", "arguments": ' + "[" * 100_000), "not JSON"),
        (call('{"name": "search", "arguments": {"query": ' + "9" * 10_000 + "}}"), "not JSON"),
    ],
)
def test_what_is_no_call_is_reported_and_never_guessed(reply: str, told: str):
    parsed = parse_reply(SPEC, reply)
    assert parsed.action is None
    assert told in parsed.problem
    assert len(parsed.problem) < 1000


def test_several_calls_are_each_read_in_their_order():
    reply = "First " + call('{"name": "search", "arguments": {"query": "a"}}') + "\n" + call('{"name": "erase"}')
    parsed = parse_reply(SPEC, reply)
    assert parsed.action == {"tool": "search", "arguments": {"query": "a"}}
    assert [each.action for each in parsed.calls] == [parsed.action, None]
    assert parsed.calls[1].problem == "There is no tool 'erase'; there are: search, stop."


def test_a_thousand_opened_calls_are_read_at_once():
    began = time.perf_counter()
    assert parse_reply(SPEC, "<tool_call>" * 100_000).action is None
    assert time.perf_counter() - began < 0.5


def test_a_reply_without_a_call_is_an_action_where_the_manifest_has_a_place_for_it():
    spec = SPEC.model_copy(update={"text": "message"})
    assert parse_reply(spec, " It is 4. ").action == {"message": "It is 4."}
    assert parse_reply(spec, call('{"name": "sto')).action is None
    assert parse_reply(spec, "  ").action is None


@pytest.mark.parametrize("text", ["a", "</tool_call>", 'x <tool_call>{"name": "stop"}</tool_call>', "\ud800 é \u2028"])
def test_a_written_call_parses_to_its_action_whatever_its_values_hold(text: str):
    action = {"tool": "search", "arguments": {"query": text}}
    assert parse_reply(SPEC, write_reply(SPEC, action)).action == action


def test_the_system_prompt_lists_the_tools_where_the_author_wants_them():
    agent: Any = type("Agent", (), {"action": SPEC, "system": "Use {{ tools }}. {{ other }}"})
    written = render_system(agent, [SEARCH])
    assert json.dumps("Find pages") in written
    assert written.endswith("{{ other }}")
    assert render_system(agent, [SEARCH], is_native=True) == "Use search. {{ other }}"
    agent.system = "Be brief."
    assert render_system(agent, [SEARCH]).startswith("Be brief.\n\nYou act by calling tools")
    assert render_system(agent, [SEARCH], is_native=True) == "Be brief."


def test_tools_are_read_in_every_spelling():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    spellings = [
        {"name": "t", "description": None, "parameters": schema},
        {"name": "t", "input_schema": schema},
        {"name": "t", "inputSchema": schema},
        {"type": "function", "function": {"name": "t", "parameters": schema}},
    ]
    assert {json.dumps(read_tools([item])[0].parameters) for item in spellings} == {json.dumps(schema)}
    assert read_tools([{"name": "bare"}])[0].problem({}) is None


@pytest.mark.parametrize(
    "listed",
    [
        {"name": "t"},
        ["t"],
        [{"description": "nameless"}],
        [{"name": "a b"}],
        [{"name": "t"}, {"name": "t"}],
        [{"name": "t", "parameters": {"type": "string"}}],
        [{"name": "t", "parameters": {"type": "object", "properties": {"a": {"type": "strin"}}}}],
        [{"name": "t", "parameters": {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:1/x"}}}}],
        [{"name": "t", "parameters": {"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}}],
        [{"name": f"t{number}"} for number in range(200)],
        [{"name": "t", "description": "x" * 500_000}],
        [{"name": "t", "parameters": {"type": "object", "properties": {"a": float("nan")}}}],
    ],
)
def test_a_list_that_describes_no_tools_is_refused(listed: Any):
    with pytest.raises(ToolsUnusable):
        read_tools(listed)


def _doubling(levels: int) -> dict[str, Any]:
    refs = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"type": "object", "properties": {"a": {"$ref": "#/$defs/d0"}}, "$defs": {**refs, f"d{levels}": {}}}


@pytest.mark.parametrize(
    "schema",
    [
        _doubling(40),
        {"type": "object", "$defs": {"a": {"$ref": "#/$defs/a"}}, "properties": {"a": {"$ref": "#/$defs/a"}}},
    ],
    ids=["doubles forty times", "is made of itself"],
)
def test_a_schema_that_unfolds_without_end_is_given_up(schema: dict[str, Any]):
    began = time.perf_counter()
    assert "cannot be checked" in str(Tool(name="t", parameters=schema).problem({"a": 1}))
    assert time.perf_counter() - began < 3


def test_no_regular_expression_of_a_schema_runs():
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    began = time.perf_counter()
    assert Tool(name="t", parameters=schema).problem({"a": "a" * 60 + "!"}) is None
    assert time.perf_counter() - began < 0.5


def test_many_problems_are_reported_three_at_a_time():
    schema = {"type": "object", "required": [f"field_{number}" for number in range(9)]}
    told = str(Tool(name="t", parameters=schema).problem({}))
    assert (told.count("required property"), "(and 6 more)" in told) == (3, True)


def test_a_call_needs_its_name():
    with pytest.raises(CallUnreadable, match="name of a tool"):
        split_calls(call('{"name": "", "arguments": {}}'))
