"""Weight files: what is refused, and when two models are the same."""

import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.training.game import make_tiny
from workers.models.load import ModelUnusable, load_folder
from workers.training.checkpoints import save_model
from workers.training.exporting.comparison import likeness, random_probes
from workers.training.exporting.files import check_precision

PROBES = random_probes(260, count=4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(*make_tiny(), tmp_path)
    return tmp_path


def change(folder: Path, name: str, how: Any) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    tensors[name] = how(tensors[name])
    save_file(tensors, path, metadata={"format": "pt"})


def some_weight(folder: Path) -> str:
    return next(name for name in load_file(folder / "model.safetensors") if name.endswith("c_fc.weight"))


def test_a_reloaded_model_is_the_same_model(folder: Path) -> None:
    found = likeness(load_folder(folder)[0], make_tiny()[0], PROBES)
    assert found.max_logit_difference == 0.0
    assert found.argmax_agreement == 1.0
    assert found.problem() is None


def test_a_changed_weight_is_another_model(folder: Path) -> None:
    change(folder, some_weight(folder), lambda weight: weight * 1.2)
    found = likeness(load_folder(folder)[0], make_tiny()[0], PROBES)
    assert "logits differ" in (found.problem() or "")


def test_a_weight_that_is_no_number_is_another_model(folder: Path) -> None:
    change(folder, some_weight(folder), lambda weight: torch.full_like(weight, torch.nan))
    found = likeness(load_folder(folder)[0], make_tiny()[0], PROBES)
    assert "logits differ" in (found.problem() or "")


def test_rounding_to_half_precision_shows(folder: Path) -> None:
    model, _ = load_folder(folder)
    found = likeness(model.to(torch.bfloat16), make_tiny()[0], PROBES)
    assert found.problem() is not None


def test_full_precision_passes(folder: Path) -> None:
    assert check_precision(folder) == ["model.safetensors"]


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.float8_e4m3fn])
def test_quantised_tensors_are_refused(folder: Path, kind: torch.dtype) -> None:
    change(folder, some_weight(folder), lambda weight: weight.to(kind))
    with pytest.raises(ModelUnusable, match="quantized"):
        check_precision(folder)


def test_the_state_of_a_quantiser_is_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file({**load_file(path), "h.0.quant_state.bitsandbytes__nf4": torch.zeros(4)}, path)
    with pytest.raises(ModelUnusable, match="quant_state"):
        check_precision(folder)


def test_a_file_that_is_no_safetensors_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 40) + b"nonsense")
    with pytest.raises(ModelUnusable, match="cannot be read"):
        check_precision(folder)


def test_pickles_next_to_the_weights_are_refused(folder: Path) -> None:
    (folder / "extra.pkl").write_bytes(b"")
    with pytest.raises(ModelUnusable, match=r"extra\.pkl"):
        check_precision(folder)
