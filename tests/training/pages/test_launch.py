"""The launch form shows every choice, and its command and its file say the same."""

import shlex
from itertools import pairwise
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from backend.cli.runs import nested
from backend.domain.training.blocks import Block
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.presets import PRESETS
from backend.training.launch import launch_command
from backend.training.launch_form import FormContext, LaunchField, launch_sections
from backend.training.schemas import resolve_configuration
from backend.training.setting_texts import changed_settings, flatten, nest, read


def fields_of(configuration: TrainingConfiguration, around: FormContext | None = None) -> dict[str, LaunchField]:
    return {field.name: field for section in launch_sections(configuration, around) for field in section.fields}


def test_every_choice_has_a_field_with_help():
    fields = fields_of(TrainingConfiguration())
    assert set(fields) == set(flatten(TrainingConfiguration().resolved()))
    assert all(field.help and field.label for field in fields.values())


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_explains_itself(name: str):
    preset = PRESETS[name]
    assert all(len(text) > 15 for text in (preset.about, preset.suits, preset.takes, preset.seen))


def test_the_form_as_shown_resolves_to_the_configuration_shown():
    changed = resolve_configuration(None, {"mix": "reverse_text@3=0.5, number_guess", "grpo": {"levels": "1,2"}})
    for configuration in (changed, *(preset.configuration for preset in PRESETS.values())):
        sent = {name: field.value for name, field in fields_of(configuration).items()}
        assert resolve_configuration(None, nest(sent)) == configuration


def test_a_refused_form_keeps_what_was_typed():
    around = FormContext(given={"grpo.steps": "many"})
    assert fields_of(TrainingConfiguration(), around)["grpo.steps"].value == "many"


def test_the_command_names_only_what_differs():
    base = TrainingConfiguration()
    changed = resolve_configuration(None, {"grpo": {"steps": 7}})
    command = launch_command("tictactoe", None, changed_settings(changed, base))
    assert command == "proctor train tictactoe --set grpo.steps=7"


def test_the_command_gives_the_same_configuration_again():
    wanted = resolve_configuration(
        "quick", {"mix": ["reverse_text@3=0.5"], "grpo": {"levels": [1, 0.5]}, "gate": {"minimum_reward": None}}
    )
    told = shlex.split(launch_command("tictactoe", None, changed_settings(wanted, TrainingConfiguration())))
    choices = [word for before, word in pairwise(told) if before == "--set"]
    assert resolve_configuration(None, nested(choices)) == wanted


def test_a_partial_choice_keeps_the_rest_of_the_preset():
    configuration = resolve_configuration("quick", {"grpo": {"steps": 3}})
    assert isinstance(configuration, BaseModel)
    assert configuration.grpo == PRESETS["quick"].configuration.grpo.model_copy(update={"steps": 3})


def test_an_emptied_field_that_may_be_empty_is_nothing_and_any_other_the_preset():
    base = {"gate": {"minimum_reward": 0.5}, "grpo": {"steps": 3}}
    choices = {"gate": {"minimum_reward": ""}, "grpo": {"steps": ""}}
    configuration = resolve_configuration(None, choices, base)
    assert (configuration.gate.minimum_reward, configuration.grpo.steps) == (None, 3)


def test_lists_mappings_boxes_and_nested_blocks_are_read():
    class Inner(Block):
        is_on: bool = False
        weights: dict[str, float] = Field(default_factory=dict)

    class Outer(Block):
        kind: Literal["a", "b"] = "a"
        names: list[str] = Field(default_factory=list)
        inner: Inner = Inner()

    sent = nest({"kind": "b", "names": "x, y", "inner.is_on": "true", "inner.weights": "win=1, format=0.5"})
    found = Outer.model_validate(read(Outer, sent))
    assert found.names == ["x", "y"]
    assert found.inner == Inner(is_on=True, weights={"win": 1, "format": 0.5})


def test_what_no_worker_can_do_is_shown_with_the_reason_and_cannot_be_chosen():
    around = FormContext(not_offered={("engine", "vllm"): "needs a worker with vLLM"})
    options = {option.value: option for option in fields_of(TrainingConfiguration(), around)["engine"].options}
    assert options["vllm"].refused == "needs a worker with vLLM"
    assert options["transformers"].refused == ""


def test_the_layout_names_only_what_is_there():
    """A choice that was renamed must not leave its old name behind."""
    fields = fields_of(TrainingConfiguration())
    sections = launch_sections(TrainingConfiguration())
    conditions = {each.only for each in [*fields.values(), *sections] if each.only}
    assert len(conditions) > 10
    for condition in conditions:
        for each in condition.split(";"):
            name, _, wanted = each.replace("!=", "=").partition("=")
            known = {option.value for option in fields[name].options}
            assert not known or set(wanted.split("|")) <= known


def test_a_long_help_shows_its_first_sentence_first():
    field = fields_of(TrainingConfiguration())["grpo.loss_type"]
    assert f"{field.hint} {field.more}" == field.help
    assert len(field.hint) < len(field.help)
