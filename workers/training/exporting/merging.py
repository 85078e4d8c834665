"""An adapter added to its base: always from stored files, never into a model that trains or is rounded."""

from pathlib import Path
from typing import Any

import torch
from transformers.pytorch_utils import Conv1D

from backend.domain.training.adapter import AdapterRecord
from workers.models.adapter import beside, read_record
from workers.models.bases import base_of
from workers.models.read import ModelUnusable, Precision, read_model

_ROUNDED_LAYERS = {"Linear4bit", "Linear8bitLt"}


def merged(original: Path, *, is_rounded: bool) -> Any:
    """The checkpoint's adapter added to a fresh base. `is_rounded`: to the base as 4 bits can say it, which is what it
    was trained beside."""
    base = plain_base(read_record(original), is_rounded=is_rounded)
    model = beside(base, original)
    check_mergeable(model)
    whole = model.merge_and_unload(safe_merge=True)
    check_unrounded(whole)
    return whole


def plain_base(record: AdapterRecord, *, is_rounded: bool) -> Any:
    """The base of an adapter with all its weights in its own precision."""
    if is_rounded and record.quantisation is None:
        raise ModelUnusable("the base of this adapter was not rounded")
    with base_of(record) as source:
        base = read_model(source.name, Precision(record.dtype), revision=source.revision, is_local=source.is_local)
        if is_rounded:
            rounded = Precision(record.dtype, record.quantisation)
            _put_rounded(base, read_model(source.name, rounded, revision=source.revision, is_local=source.is_local))
    return base


def check_mergeable(model: Any) -> None:
    """Refuses a model that is being trained, was merged before, or whose base is rounded: the sum would be rounded
    again, and on some CPUs it is made of weights in another layout."""
    if model.training:
        raise ModelUnusable("a model that trains is not merged: export its checkpoint")
    if any(getattr(module, "merged_adapters", None) for module in model.modules()):
        raise ModelUnusable("an adapter was added to this model already")
    check_unrounded(model)


def check_unrounded(model: Any) -> None:
    """Looks at the layers and weights themselves: what a model says of its quantisation stays after it is undone."""
    layers = {type(module).__name__ for module in model.modules()} & _ROUNDED_LAYERS
    whole_numbers = [name for name, weight in model.named_parameters() if not weight.is_floating_point()]
    if layers or whole_numbers:
        raise ModelUnusable("the base is quantised: an adapter is added to whole weights only")


def is_transposed(module: Any) -> bool:
    """GPT-2's layers keep their weight as (in, out)."""
    return isinstance(module, Conv1D)


def _put_rounded(base: Any, rounded: Any) -> None:
    from bitsandbytes.functional import dequantize_4bit  # only where a 4-bit base was read

    for name, module in rounded.named_modules():
        state = getattr(getattr(module, "weight", None), "quant_state", None)
        if state is None:
            continue
        target = base.get_submodule(name)
        weight: torch.Tensor = dequantize_4bit(module.weight.data, state)
        target.weight.data = (weight.T if is_transposed(target) else weight).contiguous().to(target.weight)
