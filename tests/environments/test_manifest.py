"""Reading `openenv.yaml`: what is accepted, and that each mistake is named with its line."""

import pytest

from backend.domain.environments.manifest import ManifestInvalid, read_manifest

GOOD = """\
spec_version: 1
name: tictactoe
proctor:
  agent:
    system: You play X.
    observation: "{{ message }}"
    action: {format: tag, tag: move, field: cell, type: integer}
  rewards:
    win: 1.0
    format: 0.2
    invalid_move: {weight: 0.1, range: [-1, 0]}
"""


def problems(text: str) -> list[tuple[int, str, str]]:
    with pytest.raises(ManifestInvalid) as caught:
        read_manifest(text)
    return [(problem.line, problem.key, problem.message) for problem in caught.value.problems]


def test_it_reads_columns_in_the_order_written():
    manifest = read_manifest(GOOD)
    assert manifest.column_names == ["win", "format", "invalid_move"]
    assert manifest.columns[2].range == (-1, 0)
    assert manifest.proctor.episode.max_turns == 8


def test_it_names_an_unknown_key_with_its_line():
    assert (12, "proctor.colour", "unknown key") in problems(GOOD + "  colour: red\n")


def test_it_names_a_wrong_type_with_its_line():
    line, path, message = problems(GOOD.replace("format: 0.2", "format: much"))[0]
    assert (line, path) == (10, "proctor.rewards.format.weight")
    assert "number" in message


def test_it_refuses_a_template_that_does_not_compile():
    line, path, message = problems(GOOD.replace("{{ message }}", "{{ message"))[0]
    assert (line, path) == (6, "proctor.agent.observation")
    assert "template does not compile" in message


def test_it_refuses_a_tag_format_without_a_tag():
    assert "needs the name of the tag" in problems(GOOD.replace("tag: move, ", ""))[0][2]


@pytest.mark.parametrize("text", ["", "[]", "a: [", "x: &a [*a]", "- " * 5000])
def test_it_refuses_what_is_not_a_manifest(text: str):
    assert problems(text)
