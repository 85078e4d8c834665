"""Hand play where replies are tool calls: a form for each tool, and the reply that a model would have written."""

from typing import Any

import pytest

from backend.domain.environments.manifest import ActionSpec
from backend.domain.environments.prompts import parse_reply
from backend.environments.action_form import action_fields, legal_choices, reply_of_form
from backend.errors import InvalidInput
from backend.web.templating import templates

SEARCH: dict[str, Any] = {
    "name": "search",
    "description": "Find <pages>",
    "parameters": {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": "integer", "minimum": 1},
            "order": {"type": "string", "enum": ["new", "old"]},
            "pages": {"$ref": "#/$defs/names"},
            "where": {"type": "object"},
        },
        "required": ["query"],
        "$defs": {"names": {"type": "array", "items": {"type": "string"}}},
    },
}
SPEC = ActionSpec(format="tool", field="tool", tools=[SEARCH, {"name": "stop"}], choices="legal")  # type: ignore[list-item]


def reply(**sent: str) -> Any:
    text = reply_of_form(SPEC, action_fields(SPEC, {}), {"tool": "search"} | sent)
    return parse_reply(SPEC, text).action


def test_every_tool_has_its_inputs_from_its_schema():
    found = [(field.name, field.kind, field.tool) for field in action_fields(SPEC, {})]
    assert found == [
        ("search", "call", ""),
        ("search.query", "text", "search"),
        ("search.limit", "integer", "search"),
        ("search.order", "choice", "search"),
        ("search.pages", "lines", "search"),
        ("search.where", "json", "search"),
        ("stop", "call", ""),
    ]


def test_a_filled_form_becomes_the_call_and_what_was_left_empty_is_excluded():
    sent = {"field.search.query": "leave", "field.search.limit": "3", "field.search.pages": "a\r\n\n b "}
    assert reply(**sent) == {"tool": "search", "arguments": {"query": "leave", "limit": 3, "pages": ["a", "b"]}}
    assert reply(**{"field.search.query": "x"}) == {"tool": "search", "arguments": {"query": "x"}}
    assert reply(tool="stop") == {"tool": "stop", "arguments": {}}


@pytest.mark.parametrize(
    ("sent", "wrong"),
    [
        ({"tool": ""}, {"tool": "Choose one of the tools."}),
        ({"tool": "search.query"}, {"tool": "Choose one of the tools."}),
        ({"field.search.limit": "many"}, {"field.search.limit": "This is not a whole number."}),
        ({"field.search.where": "[" * 50_000}, {"field.search.where": "This is not JSON."}),
    ],
)
def test_what_cannot_be_a_call_is_reported_by_its_input(sent: dict[str, str], wrong: dict[str, str]):
    with pytest.raises(InvalidInput) as caught:
        reply(**sent)
    assert caught.value.fields == wrong


def test_tools_that_the_environment_lists_make_the_forms_too():
    spec = ActionSpec(format="tool", field="tool", tools="tools")
    assert [field.name for field in action_fields(spec, {}, {"tools": [{"name": "wait"}]})] == ["wait"]
    for broken in ({}, {"tools": "none"}, {"tools": [{"name": "a b"}]}):
        assert action_fields(spec, {}, broken) == []


def test_calls_that_are_legal_now_are_buttons():
    legal = [{"name": "search", "arguments": {"query": "a"}}, {"name": "stop"}, "nonsense"]
    choices = legal_choices(SPEC, {"legal": legal})
    assert [choice.label for choice in choices] == ["search(query=a)", "stop()"]
    assert parse_reply(SPEC, choices[0].reply).action == {"tool": "search", "arguments": {"query": "a"}}


def test_the_page_draws_one_form_a_tool():
    source = (
        '{% import "environments/_marks.html" as marks with context %}'
        '{{ marks.action_forms(fields, "/here", "token", "Act", {"revision": 3}) }}'
    )
    page = templates().from_string(source).render(fields=action_fields(SPEC, {}))
    assert page.count("<form") == 2
    assert page.count('name="revision" value="3"') == 2
    assert 'name="tool" value="stop"' in page
    assert "Find &lt;pages&gt;" in page
    assert 'name="field.search.query"' in page
