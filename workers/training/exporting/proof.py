"""Is each weight of a merged export the base's weight plus what the adapter adds? Reckoned anew from the stored files.

Two models can agree on some text and still be others. The weights cannot: an adapter that was added to a rounded base,
to another base or to weights in another layout differs by many times what writing a sum down costs.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from workers.models.adapter import CONFIGURATION_FILE, read_record
from workers.training.exporting.merging import is_transposed, plain_base

ROUNDINGS = 4.0
"""Allowed distance of a weight from its sum, in units of the last place: the sum and the product are each rounded."""
_WEIGHTS_FILE = "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class WeightProof:
    """What the comparison of the weights found."""

    largest_roundings: float | None
    """Of the weights with an adapter, in units of the last place. None: not a number."""
    adapted: int
    """Weights that an adapter was added to."""
    kept: int
    """Weights that must be the base's, bit by bit."""
    others: list[str]
    """Of those, the ones that are not."""

    def problem(self) -> str | None:
        if self.others:
            return f"{len(self.others)} weights without an adapter are not the base's, such as {self.others[0]}"
        if self.largest_roundings is None or self.largest_roundings > ROUNDINGS:
            found = "not a number" if self.largest_roundings is None else f"{self.largest_roundings:.3g} roundings"
            return (
                f"its weights are not the base plus the adapter: they are up to {found} away "
                f"(allowed: {ROUNDINGS:g}), as when the adapter was added to a rounded or to another base"
            )
        return None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Addition:
    """What an adapter adds to one weight, in 64 bits."""

    delta: torch.Tensor
    scale: torch.Tensor
    """The sum of the products' sizes: what their rounding is measured by."""


def prove_merge(exported: Any, original: Path, *, is_rounded: bool) -> WeightProof:
    """Compare the exported model with the checkpoint's base and adapter, both read afresh."""
    base = plain_base(read_record(original), is_rounded=is_rounded)
    additions = dict(stored_additions(original))
    worst, kept, others = torch.zeros((), dtype=torch.float64), 0, []
    mine = dict(exported.named_parameters())
    for name, weight in base.named_parameters():
        theirs = mine.get(name)
        if theirs is None or theirs.shape != weight.shape:
            others.append(name)
        elif (addition := additions.get(name)) is None:
            kept += 1
            if not torch.equal(weight, theirs):
                others.append(name)
        else:
            layer = base.get_submodule(name.removesuffix(".weight"))
            worst = torch.maximum(worst, _distance(weight, theirs, addition, is_transposed(layer)))
    found = float(worst)
    return WeightProof(found if found == found else None, len(additions), kept, others)


def stored_additions(original: Path) -> Iterator[tuple[str, Addition]]:
    """By the name of the base's weight, from the adapter's matrices alone."""
    described = json.loads((original / CONFIGURATION_FILE).read_text())
    rank = described["r"]
    scale = described["lora_alpha"] / (rank**0.5 if described.get("use_rslora") else rank)
    with safe_open(original / _WEIGHTS_FILE, framework="pt") as tensors:
        names = [name for name in tensors.keys() if name.endswith(".lora_A.weight")]  # noqa: SIM118 (no mapping)
        for name in names:
            down = tensors.get_tensor(name).double()
            up = tensors.get_tensor(name.replace(".lora_A.", ".lora_B.")).double() * scale
            layer = name.removesuffix(".lora_A.weight").removeprefix("base_model.model.")
            yield f"{layer}.weight", Addition(up @ down, up.abs() @ down.abs())


def _distance(weight: torch.Tensor, theirs: torch.Tensor, addition: Addition, transposed: bool) -> torch.Tensor:
    """The largest distance of a weight from its sum, in units of the last place. NaN stays NaN."""
    delta, scale = (each.T if transposed else each for each in (addition.delta, addition.scale))
    before = weight.detach().cpu().double()
    unit = torch.finfo(weight.dtype).eps * (before.abs() + scale) + torch.finfo(weight.dtype).tiny
    return ((theirs.detach().cpu().double() - (before + delta)).abs() / unit).max()
