"""A manifest with tools against the package's own models."""

import pytest

from backend.environments.library import render_template
from backend.environments.validation import validate_package


def problems_of(**manifest_lines: str) -> list[tuple[str, str]]:
    """The template's problems after a change of its manifest."""
    files = render_template("tool_calling", "lamps")
    for old, new in manifest_lines.items():
        line = next(line for line in files["openenv.yaml"].splitlines() if line.strip().startswith(f"{old}:"))
        files["openenv.yaml"] = files["openenv.yaml"].replace(line, line[: line.index(old)] + new, 1)
    return [(problem.key, problem.message) for problem in validate_package(files, "lamps").problems]


def test_the_template_fits():
    assert problems_of() == []


@pytest.mark.parametrize(
    ("change", "key", "message"),
    [
        ({"field": "field: tol"}, "proctor.agent.action.field", "no field `tol` (it has `arguments`, `tool`)"),
        ({"arguments": "arguments: args"}, "proctor.agent.action.arguments", "no field `args`"),
        ({"arguments": "text: words"}, "proctor.agent.action.text", "no field `words`"),
        ({"arguments": "extra: {type: call_tool}"}, "proctor.agent.action.extra", "no field `type`"),
    ],
)
def test_fields_that_the_action_does_not_have_are_reported_at_their_line(
    change: dict[str, str], key: str, message: str
):
    [(found, told)] = problems_of(**change)
    assert found == key
    assert message in told


def test_tools_that_no_observation_lists_are_reported_unless_they_are_requested():
    files = render_template("tool_calling", "lamps")
    head, _, rest = files["openenv.yaml"].partition("      tools:")
    rest = rest[rest.index("    on_unparsable") :]
    for extra, keys in (("", ["proctor.agent.action.tools"]), ("      discover: {type: list_tools}\n", [])):
        files["openenv.yaml"] = f"{head}      tools: offered\n{extra}{rest}"
        assert [problem.key for problem in validate_package(files, "lamps").problems] == keys
