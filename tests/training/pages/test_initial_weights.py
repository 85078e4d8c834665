"""Facts about the initial weights that are known immediately."""

import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from backend.core.artifacts import put_folder
from backend.domain.training.configuration import ModelChoice, Recipe, TrainingConfiguration
from backend.domain.training.presets import PRESETS
from backend.training.preflight import StartingModel, findings_at_once, starting_model
from tests.factories import make_checkpoint, make_environment_version, make_policy

LARGE = 30_000_000
"""Bytes, more than any model that is made here."""


def base_in(folder: Path, *, size: int = 1000, **configuration: Any) -> Path:
    """A folder with the files of a Hugging Face model, and an empty file of the weights' size."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(configuration or {"max_position_embeddings": 96}))
    with (folder / "model.safetensors").open("wb") as file:
        file.truncate(size)
    return folder


def of_base(session: Session, base: str | Path) -> StartingModel:
    return starting_model(session, ModelChoice(source="base", base=str(base)))


def test_a_real_model_in_a_folder_shows_its_context(session: Session, tmp_path: Path) -> None:
    from tests.models.adapters import make_base

    for architecture in ("llama", "gpt2"):
        known = of_base(session, make_base(tmp_path / architecture, architecture=architecture))
        assert (known.context, known.is_pretrained) == (96, False)


def test_a_folder_with_large_weights_is_pretrained(session: Session, tmp_path: Path) -> None:
    assert of_base(session, base_in(tmp_path, size=LARGE)) == StartingModel(context=96, is_pretrained=True)


def test_a_model_of_several_senses_states_it_of_its_text(session: Session, tmp_path: Path) -> None:
    folder = base_in(tmp_path, text_config={"max_position_embeddings": 4096})
    assert of_base(session, folder).context == 4096


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen2.5-0.5B-Instruct", "/no/such/folder", "~nobody-of-that-name/model", "a\0b"]
)
def test_of_a_model_that_is_not_at_hand_nothing_is_known_but_that_it_is_one(session: Session, name: str) -> None:
    assert of_base(session, name) == StartingModel(is_pretrained=True)


@pytest.mark.parametrize("text", ["no json", "[]", '{"max_position_embeddings": "many"}', '{"n_positions": -1}'])
def test_a_configuration_that_reports_nothing_useful_is_passed_over(
    session: Session, tmp_path: Path, text: str
) -> None:
    folder = base_in(tmp_path, size=LARGE)
    (folder / "config.json").write_text(text)
    assert of_base(session, folder) == StartingModel(is_pretrained=True)


def test_a_checkpoint_has_its_own_configuration_and_an_adapter_that_of_its_base(
    session: Session, tmp_path: Path
) -> None:
    policy = make_policy(session)
    whole = make_checkpoint(session, policy, size_bytes=4000)
    put_folder(base_in(tmp_path / "whole"), whole.artifact)
    record = {"dtype": "bfloat16", "rank": 4, "alpha": 8.0}
    beside_it = {**record, "base": f"checkpoint:{whole.id}", "artifact": whole.artifact}
    of_ours = make_checkpoint(session, policy, adapter=beside_it, size_bytes=100)
    large = base_in(tmp_path / "large", size=LARGE, max_position_embeddings=8192)
    of_a_folder = make_checkpoint(session, policy, adapter={**record, "base": str(large)}, size_bytes=100)
    of_the_hub = make_checkpoint(session, policy, adapter={**record, "base": "some/model"}, size_bytes=100)

    def known(checkpoint: uuid.UUID) -> StartingModel:
        return starting_model(session, ModelChoice(source="checkpoint", checkpoint=checkpoint))

    assert known(whole.id) == StartingModel(4000, 96, is_pretrained=False)
    assert known(of_ours.id) == StartingModel(100, 96, is_pretrained=False)
    assert known(of_a_folder.id) == StartingModel(100, 8192, is_pretrained=True)
    assert known(of_the_hub.id) == StartingModel(100, None, is_pretrained=True)
    assert known(uuid.uuid4()) == StartingModel()


def test_the_form_warns_of_from_scratch_rates_and_of_a_short_context(session: Session, tmp_path: Path) -> None:
    version = make_environment_version(session, episode={"max_tokens_per_turn": 128})
    base = base_in(tmp_path, size=LARGE)
    choices = {"recipe": "grpo", "model": {"source": "base", "base": str(base)}}
    found = {
        each.name: each.status
        for each in findings_at_once(session, version, TrainingConfiguration.model_validate(choices))
    }
    assert (found["grpo_rate"], found["context"]) == ("warning", "warning")


def test_the_preset_for_a_pretrained_model_has_rates_that_suit_one(session: Session) -> None:
    preset = PRESETS["instruct-lora"].configuration
    version = make_environment_version(session)
    for configuration in (preset, preset.model_copy(update={"recipe": Recipe.SFT_THEN_GRPO})):
        found = {each.name: each.status for each in findings_at_once(session, version, configuration)}
        assert found["grpo_rate"] == "ok"
        assert found.get("sft_rate") == ("ok" if configuration.recipe.has_sft else None)
