"""The launch form shows every choice, and its command says the same."""

from pydantic import BaseModel

from backend.domain.training import TrainingConfiguration
from backend.domain.training_presets import PRESETS
from backend.training.forms import choices_of_form, resolve_configuration
from backend.training.launch import changed_choices, flatten, launch_command, launch_sections


def test_every_choice_has_a_field_with_help():
    fields = [field for section in launch_sections(TrainingConfiguration()) for field in section.fields]
    assert {field.name for field in fields} == set(flatten(TrainingConfiguration().resolved()))
    assert all(field.help and field.label for field in fields)


def test_the_form_as_shown_resolves_to_the_configuration_shown():
    for configuration in (preset.configuration for preset in PRESETS.values()):
        sent = {field.name: field.value for section in launch_sections(configuration) for field in section.fields}
        assert resolve_configuration(None, choices_of_form(sent)) == configuration


def test_a_refused_form_keeps_what_was_typed():
    sections = launch_sections(TrainingConfiguration(), {"grpo.steps": "many"})
    shown = {field.name: field.value for section in sections for field in section.fields}
    assert shown["grpo.steps"] == "many"


def test_the_command_names_only_what_differs():
    base = TrainingConfiguration()
    changed = resolve_configuration(None, {"grpo": {"steps": 7}})
    command = launch_command("tictactoe", None, changed_choices(changed, base))
    assert command == "proctor train tictactoe --set grpo.steps=7"


def test_a_partial_choice_keeps_the_rest_of_the_preset():
    configuration = resolve_configuration("quick", {"grpo": {"steps": 3}})
    assert isinstance(configuration, BaseModel)
    assert configuration.grpo == PRESETS["quick"].configuration.grpo.model_copy(update={"steps": 3})
