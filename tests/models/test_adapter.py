"""Adapters: made for a base, stored without it, loaded only with the same one."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from backend.domain.training.adapter import AdapterChoice, AdapterKind, public_name
from tests.models.adapters import logits_in, logits_of, make_adapter, make_base
from workers.models.load import (
    ModelSource,
    ModelUnusable,
    load_folder,
    read_model,
    read_record,
    record_of,
    start_from_base,
)

LORA = AdapterChoice(kind=AdapterKind.LORA, rank=4, alpha=8)
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return make_base(tmp_path / "base")


def test_a_new_adapter_changes_nothing_and_is_all_that_is_trained(base: Path) -> None:
    model, _ = start_from_base(str(base), LORA, seed=1)
    assert torch.equal(logits_of(model), logits_of(read_model(ModelSource(str(base)), "auto")))
    assert all("lora_" in name for name, weight in model.named_parameters() if weight.requires_grad)


def test_the_base_stays_in_its_own_precision_and_the_adapter_in_fp32(base: Path) -> None:
    model, _ = start_from_base(str(base), LORA, seed=1)
    found = {"lora_" in name: weight.dtype for name, weight in model.named_parameters()}
    assert found == {True: torch.float32, False: torch.bfloat16}


def test_the_same_seed_gives_the_same_adapter(base: Path) -> None:
    first, again, other = (
        next(w for name, w in start_from_base(str(base), LORA, seed=seed)[0].named_parameters() if "lora_A" in name)
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_what_was_saved_is_what_is_loaded(architecture: str, tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", architecture=architecture)
    folder = make_adapter(tmp_path / "adapter", base)
    first = logits_in(folder)
    assert torch.equal(first, logits_in(folder))
    assert not torch.allclose(first, logits_in(base), atol=0.1)


def test_a_stored_adapter_holds_no_weight_of_its_base(base: Path, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "adapter", base)
    assert all("lora_" in name for name in load_file(folder / "adapter_model.safetensors"))
    assert not (folder / "model.safetensors").exists()
    assert not (folder / "README.md").exists()


def test_the_record_states_base_precision_and_rank(base: Path, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "adapter", base)
    record = read_record(folder)
    assert (record.base, record.dtype, record.rank, record.quantisation) == (str(base), "bfloat16", 4, None)
    assert (record.revision or "").startswith("sha256:")
    assert public_name(record.base) == "base"
    assert record_of(load_folder(folder)[0]) == record


def test_a_base_that_was_changed_is_refused(base: Path, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "adapter", base)
    tensors = load_file(base / "model.safetensors")
    name = next(name for name in tensors if name.endswith("q_proj.weight"))
    tensors[name] = tensors[name] * 1.01
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelUnusable, match="was changed since this adapter"):
        load_folder(folder)


def test_a_base_that_is_gone_is_refused(base: Path, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "adapter", base)
    base.rename(tmp_path / "elsewhere")
    with pytest.raises(ModelUnusable, match="is not on this worker"):
        load_folder(folder)


def test_an_adapter_of_which_no_one_knows_the_precision_is_refused(base: Path, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "adapter", base)
    (folder / "base.json").unlink()
    with pytest.raises(ModelUnusable, match="precision of its base is unknown"):
        load_folder(folder)


def test_layers_that_the_model_has_not_are_refused(base: Path) -> None:
    with pytest.raises(ModelUnusable, match="no such layers"):
        start_from_base(str(base), LORA.model_copy(update={"targets": "c_attn"}), seed=1)


def test_an_adapter_cannot_be_trained_whole_nor_with_a_rounded_base(base: Path, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "adapter", base)
    with pytest.raises(ModelUnusable, match=r"continue with adapter\.kind=lora"):
        start_from_base(str(folder), AdapterChoice(), seed=1)
    with pytest.raises(ModelUnusable, match="trained on a base in bfloat16"):
        start_from_base(str(folder), AdapterChoice(kind=AdapterKind.QLORA), seed=1)
    again, _ = start_from_base(str(folder), LORA, seed=1)
    assert torch.equal(logits_of(again), logits_in(folder))


def test_padding_is_found_without_a_new_row(base: Path) -> None:
    path = base / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pad_token": "<|end|>"}))
    rows = load_file(base / "model.safetensors")["model.embed_tokens.weight"].shape[0]
    model, tokenizer = start_from_base(str(base), LORA, seed=1)
    assert tokenizer.pad_token_id not in {None, tokenizer.eos_token_id}
    assert tokenizer.pad_token_id < rows == model.get_input_embeddings().weight.shape[0]
