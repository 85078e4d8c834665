"""From observation to text and from reply to action."""

import pytest

from backend.domain.environments.manifest import ActionSpec
from backend.domain.environments.prompts import parse_reply, render_observation, write_reply
from backend.domain.templates import template_problem

MOVE = ActionSpec(format="tag", tag="move", field="cell", type="integer")
ANSWER = ActionSpec(format="text", field="answer")
OBJECT = ActionSpec(format="json")


def test_it_reads_a_tag_with_text_around_it():
    assert parse_reply(MOVE, "I take the centre: <move> 5 </move>.").action == {"cell": 5}


@pytest.mark.parametrize(
    "reply", ["", "5", "<move>5", "<move>1</move><move>2</move>", "<move>x</move>", "<move></move>"]
)
def test_it_does_not_guess_a_move(reply: str):
    parsed = parse_reply(MOVE, reply)
    assert parsed.action is None
    assert parsed.problem


def test_it_refuses_an_integer_of_a_million_digits():
    assert parse_reply(MOVE, f"<move>{'9' * 1_000_000}</move>").action is None


def test_it_reads_json_with_or_without_a_fence():
    assert parse_reply(OBJECT, '{"a": 1}').action == {"a": 1}
    assert parse_reply(OBJECT, '```json\n{"a": 1}\n```').action == {"a": 1}


@pytest.mark.parametrize("reply", ["[1]", "{", "[" * 100_000, "nothing"])
def test_it_does_not_take_other_json_for_an_action(reply: str):
    assert parse_reply(OBJECT, reply).action is None


@pytest.mark.parametrize(
    ("spec", "action"), [(MOVE, {"cell": 3}), (ANSWER, {"answer": "a b"}), (OBJECT, {"x": [1, "é"]})]
)
def test_a_written_reply_parses_to_its_action(spec: ActionSpec, action: dict[str, object]):
    assert parse_reply(spec, write_reply(spec, action)).action == action


def test_a_missing_field_is_reported_by_name():
    with pytest.raises(ValueError, match="'board' is undefined"):
        render_observation("{{ board }}", {"message": "hello"})


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ observation.__init__.__globals__ }}",
        "{{ 'a' * 1000000000 }}",
        "{{ 9 ** 9 ** 9 }}",
        "{{ observation.update({'x': 1}) }}",
    ],
)
def test_a_template_reaches_nothing_but_the_observation(template: str):
    with pytest.raises(ValueError, match="does not render"):
        render_observation(template, {"x": 0})


def test_a_huge_observation_is_cut_with_a_mark():
    text = render_observation("{{ x }}", {"x": "a" * 300_000})
    assert len(text) < 201_000
    assert "cut at 200,000 characters" in text


def test_an_unclosed_template_is_a_problem():
    assert template_problem("{{ x") is not None
    assert template_problem("{{ x }}") is None
