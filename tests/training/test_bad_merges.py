"""The merges that were seen to go wrong: each is refused by the passport, or cannot be made.

With bitsandbytes they are made for real; without it, its rounding is written out here.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from backend.domain.training.adapter import AdapterKind
from backend.domain.vocabulary import ExportForm
from tests.models.adapters import make_adapter, make_base
from workers.models.load import (
    ModelSource,
    ModelUnusable,
    attach_adapter,
    base_of,
    load_folder,
    read_model,
    read_record,
    read_tokenizer,
)
from workers.training.exporting.comparison import compare_merge, likeness, random_probes, tolerance_of
from workers.training.exporting.files import check_mergeable, merge_adapter, read_export, write_export

pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.slow]
PROBES = random_probes(260, count=6)
STEPS_DOWN = (-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911)
STEPS_UP = (0.0, 0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0)
LEVELS = torch.tensor([*STEPS_DOWN, *STEPS_UP])


def rounded_to_4_bits(weight: torch.Tensor) -> torch.Tensor:
    """NF4 in blocks of 64, as bitsandbytes rounds."""
    blocks = weight.float().reshape(-1, 64)
    scale = blocks.abs().amax(1, keepdim=True).clamp(min=1e-8)
    nearest = ((blocks / scale)[..., None] - LEVELS).abs().argmin(-1)
    return (LEVELS[nearest] * scale).reshape(weight.shape).to(weight.dtype)


def round_layers(model: Any) -> Any:
    for name, weight in model.named_parameters():
        if name.endswith("_proj.weight"):
            weight.data = rounded_to_4_bits(weight.data)
    return model


def written_out(model: Any, original: Path, made: Path) -> Path:
    """The next step of a careless script."""
    model.save_pretrained(made, safe_serialization=True)
    read_tokenizer(ModelSource(str(original))).save_pretrained(made)
    return made


def problems(made: Path, original: Path, *, is_rounded: bool = False) -> tuple[str | None, str | None]:
    """The passport's statements on the weights and on the predictions."""
    exported, _ = read_export(made, ExportForm.MERGED, original)
    weights = compare_merge(exported, original, is_rounded=is_rounded)
    reference, _ = load_folder(original)
    return weights.problem(), likeness(exported, reference, PROBES).problem(tolerance_of("bfloat16"))


@pytest.fixture
def lora(tmp_path: Path) -> Path:
    return make_adapter(tmp_path / "adapter", make_base(tmp_path / "base"))


@pytest.fixture
def qlora(tmp_path: Path) -> Path:
    pytest.importorskip("bitsandbytes")
    return make_adapter(tmp_path / "adapter", make_base(tmp_path / "base"), AdapterKind.QLORA)


def base_of_record(original: Path, *precision: Any) -> Any:
    with base_of(read_record(original)) as source:
        return read_model(source, *precision)


def rounded_base(original: Path) -> Any:
    record = read_record(original)
    return base_of_record(original, record.dtype, record.quantisation)


def carelessly(model: PeftModel) -> Any:
    """A merge into the 4-bit layers, then written out in 16 bits."""
    return model.merge_and_unload().dequantize().to(torch.bfloat16)


# The right ones, so that the refusals below say something


def test_a_right_merge_is_proven(lora: Path, tmp_path: Path) -> None:
    write_export(ExportForm.MERGED, lora, tmp_path / "made")
    assert problems(tmp_path / "made", lora) == (None, None)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_right_merge_is_proven_in_each_precision(architecture: str, dtype: torch.dtype, tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", architecture=architecture, dtype=dtype)
    original = make_adapter(tmp_path / "adapter", base)
    write_export(ExportForm.MERGED, original, tmp_path / "made")
    exported, _ = read_export(tmp_path / "made", ExportForm.MERGED, original)
    found = compare_merge(exported, original, is_rounded=False)
    assert found.problem() is None
    assert found.adapted == (14 if architecture == "llama" else 8)
    assert next(exported.parameters()).dtype is dtype


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_both_merges_of_a_4_bit_base_are_proven(architecture: str, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    base = make_base(tmp_path / "base", architecture=architecture)
    original = make_adapter(tmp_path / "adapter", base, AdapterKind.QLORA)
    write_export(ExportForm.MERGED, original, tmp_path / "into-original")
    write_export(ExportForm.MERGED_DEQUANTISED, original, tmp_path / "into-rounded")
    exported, _ = read_export(tmp_path / "into-original", ExportForm.MERGED, original)
    assert compare_merge(exported, original, is_rounded=False).problem() is None
    assert compare_merge(exported, original, is_rounded=True).problem() is not None
    assert problems(tmp_path / "into-rounded", original, is_rounded=True) == (None, None)


# A: the naive merge on a 4-bit base


def test_a_merge_into_4_bit_layers_is_refused_as_it_is_stored(qlora: Path, tmp_path: Path) -> None:
    naive = written_out(attach_adapter(rounded_base(qlora), qlora).merge_and_unload(), qlora, tmp_path / "made")
    with pytest.raises(ModelUnusable, match="quantized"):
        read_export(naive, ExportForm.MERGED, qlora)


def test_a_merge_into_4_bit_layers_written_out_in_16_bits_is_refused(qlora: Path, tmp_path: Path) -> None:
    made = written_out(carelessly(attach_adapter(rounded_base(qlora), qlora)), qlora, tmp_path / "made")
    for is_rounded in (False, True):
        weights, _ = problems(made, qlora, is_rounded=is_rounded)
        assert "not the base plus the adapter" in (weights or "")


def test_a_rounded_sum_is_refused(lora: Path, tmp_path: Path) -> None:
    """The same without bitsandbytes: base and adapter right, their sum rounded to 4 bits."""
    made = written_out(round_layers(merge_adapter(lora, is_rounded=False)), lora, tmp_path / "made")
    weights, predictions = problems(made, lora)
    assert "not the base plus the adapter" in (weights or "")
    assert predictions is not None


# B: the merge after an evaluation forward on a CPU


def test_weights_that_were_evaluated_before_the_merge_are_refused(qlora: Path, tmp_path: Path) -> None:
    base = rounded_base(qlora)
    layers = [module for module in base.modules() if hasattr(module, "support_avx512bf16_for_cpu")]
    if not _packs():
        pytest.skip("this CPU has no AVX-512 BF16: bitsandbytes does not repack weights here")
    for layer in layers:
        layer.support_avx512bf16_for_cpu = True  # what bitsandbytes does by itself, and reading a model undoes
    model = attach_adapter(base, qlora)
    with torch.inference_mode():
        model.eval()(input_ids=torch.tensor([PROBES[0]]))
    made = written_out(carelessly(model), qlora, tmp_path / "made")
    weights, predictions = problems(made, qlora, is_rounded=True)
    assert "not the base plus the adapter" in (weights or "")
    assert predictions is not None


def test_an_evaluation_does_not_repack_weights_that_were_read_here(qlora: Path, tmp_path: Path) -> None:
    model, _ = load_folder(qlora)
    with torch.inference_mode():
        model.eval()(input_ids=torch.tensor([PROBES[0]]))
    layers = [module for module in model.modules() if type(module).__module__.startswith("bitsandbytes")]
    assert len(layers) == 14
    assert not any(getattr(layer.weight.quant_state, "packing_format_for_cpu", False) for layer in layers)
    made = tmp_path / "made"
    write_export(ExportForm.MERGED_DEQUANTISED, qlora, made)
    assert problems(made, qlora, is_rounded=True) == (None, None)


def test_gradients_pass_a_rounded_layer_that_was_evaluated(qlora: Path) -> None:
    model, _ = load_folder(qlora)
    ids = torch.tensor([PROBES[0]])
    with torch.inference_mode():
        model.eval()(input_ids=ids)
    model.train()(input_ids=ids, labels=ids).loss.backward()
    first = [weight.grad for name, weight in model.named_parameters() if ".layers.0." in name and "lora_A" in name]
    assert len(first) == 7
    assert all(grad is not None and float(grad.abs().max()) > 0 for grad in first)


def test_weights_in_another_layout_are_refused(lora: Path, tmp_path: Path) -> None:
    """The same without bitsandbytes: a layer's weights in another order."""

    def shuffled(model: Any) -> Any:
        weight = model.get_submodule("model.layers.0.mlp.up_proj").weight
        weight.data = weight.data.flatten().reshape(16, -1).T.reshape(weight.shape).contiguous()
        return model

    weights, predictions = problems(
        written_out(shuffled(merge_adapter(lora, is_rounded=False)), lora, tmp_path / "made"), lora
    )
    assert "not the base plus the adapter" in (weights or "")
    assert predictions is not None


# C: the adapter of a 16-bit base on a base that was rounded to 4 bits


def test_an_adapter_on_a_base_that_was_rounded_since_is_refused(lora: Path, tmp_path: Path) -> None:
    base = round_layers(base_of_record(lora, "auto"))
    made = written_out(attach_adapter(base, lora).merge_and_unload(safe_merge=True), lora, tmp_path / "made")
    weights, predictions = problems(made, lora)
    assert "not the base plus the adapter" in (weights or "")
    assert predictions is not None


def test_the_rounded_base_is_no_form_of_an_adapter_that_was_trained_with_16_bits(lora: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelUnusable, match="was not quantized"):
        write_export(ExportForm.MERGED_DEQUANTISED, lora, tmp_path / "made")


def test_an_adapter_on_another_base_is_refused(lora: Path, tmp_path: Path) -> None:
    other = read_model(ModelSource(str(make_base(tmp_path / "other", seed=6))), "auto")
    made = written_out(attach_adapter(other, lora).merge_and_unload(safe_merge=True), lora, tmp_path / "made")
    weights, predictions = problems(made, lora)
    assert "are not the base's" in (weights or "")
    assert predictions is not None


# D: live merges


def _train(model: PeftModel) -> None:
    model.train()


def _merge(model: PeftModel) -> None:
    model.merge_adapter()


@pytest.mark.parametrize(
    ("spoil", "told"), [(_train, "a model in training"), (_merge, "already merged into this model")]
)
def test_a_live_model_is_not_merged(spoil: Callable[[PeftModel], None], told: str, lora: Path) -> None:
    model, _ = load_folder(lora)
    spoil(model)
    with pytest.raises(ModelUnusable, match=told):
        check_mergeable(model)


def test_a_model_whose_base_is_rounded_is_not_merged(qlora: Path) -> None:
    model, _ = load_folder(qlora)
    with pytest.raises(ModelUnusable, match="the base is quantized"):
        check_mergeable(model)


def _packs() -> bool:
    from bitsandbytes.functional import has_avx512bf16

    return bool(has_avx512bf16())
