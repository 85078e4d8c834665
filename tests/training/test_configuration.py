"""Settings of a training run, and which are refused."""

import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from backend.domain.environments.manifest import read_manifest
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.presets import PRESETS
from backend.training.setting_texts import block_of, holds_list
from tests.training.conftest import built_in


def test_the_defaults_work() -> None:
    configuration = TrainingConfiguration()
    assert configuration.problems(scripts=["gold", "teacher"], levels=3) == []
    assert TrainingConfiguration.model_validate(configuration.resolved()) == configuration


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_fits_its_environment(name: str) -> None:
    manifest = read_manifest(built_in(PRESETS[name].environment or "tictactoe")["openenv.yaml"]).proctor
    assert PRESETS[name].configuration.problems(scripts=list(manifest.scripts), levels=manifest.tasks.levels) == []
    assert PRESETS[name].configuration.heldout.tasks <= manifest.tasks.heldout


@pytest.mark.parametrize(("chosen", "played"), [(None, 256), (64, 64), (1000, 256)])
def test_replies_may_be_shorter_than_the_environment_allows_and_not_longer(chosen: int | None, played: int) -> None:
    manifest = read_manifest(built_in("tictactoe")["openenv.yaml"])
    allowed = manifest.with_reply_limit(256)
    limited = TrainingConfiguration(max_tokens_per_turn=chosen).played(allowed)
    assert limited.proctor.episode.max_tokens_per_turn == played
    assert limited.with_reply_limit(256) == allowed


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (
            {"grpo": {"tasks_per_step": 5, "group_size": 3, "micro_batches": 2}},
            "15 episodes per step cannot be",
        ),
        ({"grpo": {"group_size": 1}}, "greater than or equal to 2"),
        ({"grpo": {"levels": [0, 0]}}, "at least one level needs a share above 0"),
        ({"model": {"source": "base"}}, "name the base model"),
        ({"model": {"source": "checkpoint"}}, "choose the checkpoint"),
        ({"sft": {"script": "Teacher!"}}, "match pattern"),
        ({"sft": {"learning_rate": float("nan")}}, "less than or equal to 1"),
        ({"grpo": {"stepz": 4}}, "not permitted"),
        ({"seed": -1}, "greater than or equal to 0"),
    ],
)
def test_impossible_choices_are_refused(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainingConfiguration.model_validate(choices)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"sft": {"script": "wizard"}}, "has no scripted policy `wizard`; it has: gold, teacher"),
        ({"grpo": {"levels": [1, 1, 1, 1]}}, "grpo.levels has 4 shares; the environment has 3 levels"),
        ({"recipe": "grpo"}, "An untrained model cannot write replies"),
    ],
)
def test_choices_that_do_not_fit_the_environment_are_named(choices: dict[str, Any], message: str) -> None:
    problems = TrainingConfiguration.model_validate(choices).problems(scripts=["gold", "teacher"], levels=3)
    assert message in " ".join(problems)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"engine": "vllm"}, "Sampling ahead (grpo.staleness) needs the engine transformers, not vllm"),
        ({"hardware": {"processes": 2}}, "needs hardware.processes=1: the second process samples"),
        ({"recipe": "distillation"}, "Distillation scores episodes of the latest policy"),
    ],
)
def test_what_cannot_sample_ahead_is_named(choices: dict[str, Any], message: str) -> None:
    ahead = {"grpo": {"staleness": 1}, **choices}
    assert message in " ".join(TrainingConfiguration.model_validate(ahead).problems(scripts=["gold"], levels=1))
    turns = TrainingConfiguration.model_validate(choices)
    assert message not in " ".join(turns.problems(scripts=["gold"], levels=1))


def test_a_runs_configuration_may_hold_other_things() -> None:
    stored = {**TrainingConfiguration(seed=7).resolved(), "preset": "quick", "content_hash": "abc"}
    assert TrainingConfiguration.of_run(stored).seed == 7


def test_it_counts_what_it_will_play() -> None:
    configuration = TrainingConfiguration.model_validate(
        {
            "sft": {"episodes": 100, "steps": 5},
            "grpo": {"steps": 10, "tasks_per_step": 4, "group_size": 2},
            "heldout": {"every": 4, "tasks": 10},
        }
    )
    assert configuration.total_steps == 15
    assert configuration.total_rollouts == 10 + 100 + 10 + 80 + 3 * 10


def test_a_checkpoint_is_an_id() -> None:
    checkpoint = uuid.uuid4()
    configuration = TrainingConfiguration.model_validate(
        {"recipe": "grpo", "model": {"source": "checkpoint", "checkpoint": str(checkpoint)}}
    )
    assert configuration.model.checkpoint == checkpoint
    assert configuration.problems(scripts=[], levels=1) == []


TELLS_WHEN = re.compile(
    r"\b(when|where|if|unless|until|raise|lower|higher|more|fewer|few|choose|suits|repeat|use|try|prefer)\b",
    re.IGNORECASE,
)


def leaves_of(block: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every choice by its dotted name, with its help on one line."""
    for name, info in block.model_fields.items():
        if (inner := block_of(info)) and not holds_list(info.annotation):
            yield from leaves_of(inner, f"{prefix}{name}.")
        else:
            yield prefix + name, " ".join((info.description or "").split())


def test_every_choice_shows_what_it_does_and_when_to_change_it() -> None:
    """In two sentences at least, the first of which the form shows alone where the help is long."""
    for name, help_text in leaves_of(TrainingConfiguration):
        assert len(re.findall(r"[.!?](?= |$)", help_text)) >= 2, f"{name}: {help_text}"
        is_named_by_catalogue = name.startswith("detectors.")  # a detector's sentence, and what it does by default
        assert is_named_by_catalogue or TELLS_WHEN.search(help_text), f"{name}: {help_text}"


def test_every_block_shows_what_it_holds() -> None:
    assert all(info.description for info in TrainingConfiguration.model_fields.values())
