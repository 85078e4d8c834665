"""Loading weights: safetensors only."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from workers.models.load import ModelUnusable, load_base, load_folder
from workers.training.checkpoints import save_model


@pytest.fixture
def saved(model: Any, tokenizer: Any, tmp_path: Path) -> Path:
    save_model(model, tokenizer, tmp_path)
    return tmp_path


def test_it_loads_what_was_saved(model: Any, tokenizer: Any, saved: Path) -> None:
    loaded, loaded_tokenizer = load_folder(saved)
    for mine, theirs in zip(model.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert loaded_tokenizer.chat_template == tokenizer.chat_template
    assert loaded_tokenizer.encode("O plays 3.") == tokenizer.encode("O plays 3.")


def test_a_folder_is_a_base_model_too(model: Any, tokenizer: Any, saved: Path) -> None:
    loaded, loaded_tokenizer = load_base(str(saved))
    for mine, theirs in zip(model.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert loaded_tokenizer.get_vocab() == tokenizer.get_vocab()


def test_it_refuses_weights_that_run_code(saved: Path) -> None:
    torch.save({}, saved / "pytorch_model.bin")
    with pytest.raises(ModelUnusable, match=r"found pytorch_model\.bin"):
        load_folder(saved)


def test_it_refuses_a_folder_without_weights(saved: Path) -> None:
    (saved / "model.safetensors").unlink()
    with pytest.raises(ModelUnusable, match="no safetensors"):
        load_folder(saved)


def test_it_refuses_quantised_weights(saved: Path) -> None:
    configuration = json.loads((saved / "config.json").read_text())
    configuration["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (saved / "config.json").write_text(json.dumps(configuration))
    with pytest.raises(ModelUnusable, match="quantized"):
        load_folder(saved)


def test_a_model_without_padding_is_given_one(model: Any, tokenizer: Any, saved: Path) -> None:
    described = json.loads((saved / "tokenizer_config.json").read_text())
    described["pad_token"] = "<|end|>"
    (saved / "tokenizer_config.json").write_text(json.dumps(described))
    loaded, loaded_tokenizer = load_folder(saved)
    assert loaded_tokenizer.pad_token_id not in {None, loaded_tokenizer.eos_token_id}
    assert loaded.get_input_embeddings().weight.shape[0] >= len(loaded_tokenizer)
