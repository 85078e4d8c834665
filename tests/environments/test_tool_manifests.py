"""Tools in a manifest, and errors in them by line."""

import pytest

from backend.domain.environments.manifest import Manifest, ManifestInvalid, read_manifest

HEAD = """\
name: desk
proctor:
  rewards: {goal: 1.0}
  agent:
    system: Help.
    action:
      format: tool
      field: tool
"""
SEARCH = """\
      tools:
        - name: search
          description: Find pages
          parameters:
            type: object
            properties:
              query: {type: string}
            required: [query]
"""


def problems(text: str) -> list[tuple[int, str, str]]:
    with pytest.raises(ManifestInvalid) as caught:
        read_manifest(text)
    return [(problem.line, problem.key, problem.message) for problem in caught.value.problems]


def test_tools_are_listed_with_their_schemas():
    manifest = read_manifest(HEAD + SEARCH)
    action = manifest.proctor.agent.action
    assert action.tool_names == ["search"]
    assert action.filled_fields == {"tool", "arguments"}
    assert Manifest.model_validate(manifest.model_dump()) == manifest


def test_tools_may_be_the_name_of_a_field_and_be_discovered():
    text = HEAD + "      tools: tools\n      extra: {type: call_tool}\n      discover: {type: list_tools}\n"
    action = read_manifest(text).proctor.agent.action
    assert (action.tools, action.discover) == ("tools", {"type": "list_tools"})
    assert action.filled_fields == {"tool", "arguments", "type"}


@pytest.mark.parametrize(
    ("change", "line", "path", "message"),
    [
        (("name: search", "name: find pages"), 10, "tools.0.name", "should match pattern"),
        (("type: object", "type: array"), 13, "tools.0.parameters.type", "has `type: object`"),
        (("{type: string}", "{type: strin}"), 15, "tools.0.parameters.properties.query.type", "is not a JSON schema"),
        (("required: [query]", "required: query"), 16, "tools.0.parameters.required", "is not a JSON schema"),
        (("{type: string}", "{$ref: '#/$defs/q'}"), 12, "tools.0.parameters", "refers to `#/$defs/q`"),
        (("description:", "descripton:"), 11, "tools.0.descripton", "unknown key"),
        (("      field: tool\n", ""), 6, "", "needs `field`"),
    ],
)
def test_every_problem_has_its_line(change: tuple[str, str], line: int, path: str, message: str):
    [(found_line, found_path, found_message)] = problems((HEAD + SEARCH).replace(*change))
    assert (found_line, found_path) == (line, f"proctor.agent.action.{path}".rstrip("."))
    assert message in found_message


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "needs `tools`"),
        ("      tools: []\n", "at least 1 item"),
        ("      tools: 7\n", "valid list"),
        ("      tools: [{name: a}, {name: a}]\n", "two tools have the same name"),
        ("      tools: [{name: a}]\n      discover: {type: list_tools}\n", "`discover` is for tools that"),
        ("      tools: [{name: a}]\n      arguments: tool\n", "must name different fields"),
        ("      tools: [{name: a}]\n      extra: {tool: x}\n", "must name different fields"),
    ],
)
def test_an_incomplete_tool_format_is_reported(lines: str, message: str):
    assert message in str(problems(HEAD + lines))


def test_tools_belong_to_the_tool_format_alone():
    text = HEAD.replace("format: tool", "format: text") + SEARCH
    assert "`tools` belongs to format `tool`" in str(problems(text))


def test_an_unreadable_reply_cannot_be_passed_on_as_a_call():
    text = HEAD.replace("    action:", "    on_unparsable: pass\n    action:") + SEARCH
    assert "give `action.text` instead" in str(problems(text))
