"""Compare two models: their predictions on the same tokens, and the weights of a merged export with their sum.

Two models can agree on some text and still differ; their weights cannot. An adapter that was added to a quantized base,
to another base, or to weights in another layout differs by many times the rounding error of a sum.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from workers.models.load import CONFIGURATION_FILE, LoadedModel, dtype_name, read_record
from workers.training.exporting.files import plain_base

PROBES = 32
ROUNDINGS = 4.0
"""Allowed distance of a weight from its sum, in units of the last place: the sum and the product are each rounded."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a reloaded model may be from its original."""

    logits: float | None  # largest difference of a logit. None: any.
    divergence: float  # nats per token
    agreement: float  # share of positions with the same most likely token


TOLERANCES = {
    "float32": Tolerance(logits=1e-3, divergence=1e-6, agreement=0.9999),
    "float16": Tolerance(logits=0.1, divergence=1e-4, agreement=0.99),
    "bfloat16": Tolerance(logits=0.5, divergence=1e-3, agreement=0.95),
}
"""By the coarser of both precisions, finest first."""
OTHER_BASE_TOLERANCE = Tolerance(logits=None, divergence=0.05, agreement=0.9)
"""For an adapter that was trained on a 4-bit base and merged into the original one: the effect of quantization is lost.
The comparison of the weights shows that nothing else is."""


def tolerance_of(*dtypes: str, is_other_base: bool = False) -> Tolerance:
    if is_other_base:
        return OTHER_BASE_TOLERANCE
    order = list(TOLERANCES)
    return TOLERANCES[max(dtypes, key=lambda dtype: order.index(dtype) if dtype in order else 0)]


@dataclass(frozen=True, slots=True)
class Likeness:
    """Differences of two models on the same tokens."""

    max_logit_difference: float
    mean_divergence: float  # Kullback-Leibler divergence per token, in nats
    argmax_agreement: float
    tokens: int
    dtype: str

    def problem(self, allowed: Tolerance | None = None) -> str | None:
        """Why they are not the same model, or None."""
        allowed = allowed or tolerance_of(self.dtype)
        limit = torch.inf if allowed.logits is None else allowed.logits
        if not self.max_logit_difference <= limit:  # NaN fails
            return f"its logits differ by up to {self.max_logit_difference:.3g} (allowed: {limit:g})"
        if not self.mean_divergence <= allowed.divergence:
            return f"its predictions diverge by {self.mean_divergence:.3g} nats (allowed: {allowed.divergence:g})"
        if not self.argmax_agreement >= allowed.agreement:
            agreement, least = self.argmax_agreement, allowed.agreement
            return f"its most likely token agrees at {agreement:.2%} of positions (required: {least:.2%})"
        return None

    def as_json(self) -> dict[str, object]:
        """Values that are not finite are None, because JSON cannot represent them."""
        values: dict[str, object] = asdict(self)
        return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in values.items()}


def likeness(model: LoadedModel, other: LoadedModel, probes: Sequence[Sequence[int]]) -> Likeness:
    """Compare two models on whole token sequences. Logits that are not finite count as an infinite difference."""
    worst, divergence, agreed, count = 0.0, 0.0, 0, 0
    with torch.inference_mode():
        for probe in probes:
            logits_TV = []
            for each in (model, other):
                ids = torch.tensor([list(probe)], device=next(each.parameters()).device)
                logits_TV.append(each(input_ids=ids).logits[0].float())
            mine_TV, theirs_TV = logits_TV
            difference = (mine_TV - theirs_TV).abs().max().item()
            worst = max(worst, difference) if difference == difference else float("nan")
            log_mine_TV, log_theirs_TV = mine_TV.double().log_softmax(-1), theirs_TV.double().log_softmax(-1)
            divergence += float((log_mine_TV.exp() * (log_mine_TV - log_theirs_TV)).sum())
            agreed += int((mine_TV.argmax(-1) == theirs_TV.argmax(-1)).sum())
            count += len(probe)
            if worst != worst:
                break
    dtype = dtype_name(next(other.parameters()).dtype)
    return Likeness(worst, divergence / max(count, 1), agreed / max(count, 1), count, dtype)


def random_probes(vocabulary: int, *, count: int = PROBES, length: int = 32) -> list[list[int]]:
    """Token sequences for a policy without stored rollouts."""
    generator = torch.Generator().manual_seed(0)
    probes: list[list[int]] = torch.randint(vocabulary, (count, length), generator=generator).tolist()
    return probes


@dataclass(frozen=True, slots=True)
class MergeComparison:
    """Whether each weight of a merged export is the base's weight plus the adapter's part."""

    largest_roundings: float | None
    """Largest distance of a weight with an adapter, in units of the last place. None: not a number."""
    adapted: int  # number of weights that an adapter was added to
    kept: int  # number of other weights, which must equal the base's bit by bit
    others: list[str]  # names of the others that differ from it

    def problem(self) -> str | None:
        if self.others:
            return f"{len(self.others)} weights without an adapter are not the base's, such as {self.others[0]}"
        if self.largest_roundings is None or self.largest_roundings > ROUNDINGS:
            distance = "not a number" if self.largest_roundings is None else f"{self.largest_roundings:.3g} roundings"
            return (
                f"its weights are not the base plus the adapter: the distance is up to {distance} "
                f"(allowed: {ROUNDINGS:g}), as when the adapter was added to a quantized or another base"
            )
        return None


def compare_merge(exported: PreTrainedModel, original: Path, *, is_rounded: bool) -> MergeComparison:
    """Compare the exported model with the checkpoint's base and adapter, both read from their files again."""
    base = plain_base(read_record(original), is_rounded=is_rounded)
    configuration = json.loads((original / CONFIGURATION_FILE).read_text())
    rank = configuration["r"]
    scale = configuration["lora_alpha"] / (rank**0.5 if configuration.get("use_rslora") else rank)
    worst, adapted, kept, others = torch.zeros((), dtype=torch.float64), 0, 0, []
    exported_weights = dict(exported.named_parameters())
    with safe_open(original / "adapter_model.safetensors", framework="pt") as tensors:
        stored = set(tensors.keys())
        for name, weight in base.named_parameters():
            mine = exported_weights.get(name)
            layer = name.removesuffix(".weight")
            down_name = f"base_model.model.{layer}.lora_A.weight"
            adapted += down_name in stored
            if mine is None or mine.shape != weight.shape:
                others.append(name)
            elif down_name not in stored:
                kept += 1
                if not torch.equal(weight, mine):
                    others.append(name)
            else:  # in 64 bits; the sum of the products' sizes is the measure of their rounding
                down = tensors.get_tensor(down_name).double()
                up = tensors.get_tensor(down_name.replace(".lora_A.", ".lora_B.")).double() * scale
                delta, size = up @ down, up.abs() @ down.abs()
                if isinstance(base.get_submodule(layer), Conv1D):  # GPT-2's layers keep their weight as (in, out)
                    delta, size = delta.T, size.T
                before = weight.detach().cpu().double()
                unit = torch.finfo(weight.dtype).eps * (before.abs() + size) + torch.finfo(weight.dtype).tiny
                distance = ((mine.detach().cpu().double() - (before + delta)).abs() / unit).max()
                worst = torch.maximum(worst, distance)  # NaN stays NaN
    largest = float(worst)
    return MergeComparison(largest if largest == largest else None, adapted, kept, others)
