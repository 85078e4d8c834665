"""The warm-up's settings: the share of examples from each source, and which settings contradict each other."""

import uuid
from typing import Any

import pytest
from pydantic import ValidationError

from backend.domain.training.warm_up import SftChoice

FILE = uuid.uuid4()


def test_the_main_source_gives_what_the_others_leave() -> None:
    choice = SftChoice(source="file", file=FILE, also_script=0.25, also_rollouts=0.25, where="win = 1", episodes=100)
    assert choice.shares == {"file": 0.5, "script": 0.25, "rollouts": 0.25, "demonstrations": 0.0}
    assert choice.scripted_episodes == 25


def test_by_default_the_script_gives_all() -> None:
    choice = SftChoice()
    assert choice.shares["script"] == 1.0
    assert choice.scripted_episodes == choice.episodes
    assert not choice.uses("rollouts")


@pytest.mark.parametrize(
    ("choices", "told"),
    [
        ({"source": "rollouts"}, "select rollouts"),
        ({"also_rollouts": 0.1}, "select rollouts"),
        ({"source": "file"}, "select the uploaded file"),
        ({"also_script": 0.5}, "is the main source"),
        ({"also_file": 0.6, "file": FILE, "demonstrations": 0.5}, "more than 1"),
    ],
)
def test_what_does_not_go_together_is_refused(choices: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        SftChoice(**choices)
