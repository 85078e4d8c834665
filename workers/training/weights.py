"""What lies in weight files, and whether two sets of weights are the same model."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from workers.models.load import ModelUnusable, check_weight_files

PROBES = 32
_FULL_PRECISION = {"F64", "F32", "F16", "BF16"}
_COUNTERS = {"I64", "I32", "BOOL"}
"""Small buffers, such as position numbers; never weights."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a reloaded model may be from its original."""

    logits: float | None
    """Largest difference of a logit; None: any."""
    divergence: float
    """Nats a token."""
    agreement: float
    """Share of positions with the same likeliest token."""


TOLERANCES = {
    "float32": Tolerance(logits=1e-3, divergence=1e-6, agreement=0.9999),
    "float16": Tolerance(logits=0.1, divergence=1e-4, agreement=0.99),
    "bfloat16": Tolerance(logits=0.5, divergence=1e-3, agreement=0.95),
}
"""By the coarser of both precisions, finest first."""
OF_ANOTHER_BASE = Tolerance(logits=None, divergence=0.05, agreement=0.9)
"""An adapter that was trained beside a 4-bit base and is merged into the original one: what the base's rounding did is
lost. That nothing else is, the weights themselves prove."""


def tolerance_of(*dtypes: str, is_another_base: bool = False) -> Tolerance:
    if is_another_base:
        return OF_ANOTHER_BASE
    order = list(TOLERANCES)
    return TOLERANCES[max(dtypes, key=lambda dtype: order.index(dtype) if dtype in order else 0)]


@dataclass(frozen=True, slots=True)
class Likeness:
    """Two models on the same tokens."""

    max_logit_difference: float
    mean_divergence: float
    """Kullback-Leibler divergence a token, in nats."""
    argmax_agreement: float
    tokens: int
    dtype: str

    def problem(self, allowed: Tolerance | None = None) -> str | None:
        """Why they are not the same model, or None."""
        allowed = allowed or tolerance_of(self.dtype)
        limit = torch.inf if allowed.logits is None else allowed.logits
        if not self.max_logit_difference <= limit:  # NaN is no pass
            return f"its logits differ by up to {self.max_logit_difference:.3g} (allowed: {limit:g})"
        if not self.mean_divergence <= allowed.divergence:
            return f"its predictions diverge by {self.mean_divergence:.3g} nats (allowed: {allowed.divergence:g})"
        if not self.argmax_agreement >= allowed.agreement:
            return f"its likeliest token agrees in {self.argmax_agreement:.2%} (wanted: {allowed.agreement:.2%})"
        return None

    def as_json(self) -> dict[str, Any]:
        """What is no number is None: JSON has no word for it."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }


def check_precision(folder: Path) -> list[str]:
    """Names of the weight files. Raises ModelUnusable when one is no safetensors or holds quantised tensors."""
    check_weight_files(folder)
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    for name in names:
        try:
            with safe_open(folder / name, framework="pt") as tensors:
                for key in tensors.keys():  # noqa: SIM118 (no mapping)
                    _check_tensor(name, key, tensors.get_slice(key))
        except SafetensorError as error:
            raise ModelUnusable(f"{name} cannot be read: {error}") from error
    return names


def _check_tensor(name: str, key: str, tensor: Any) -> None:
    kind, shape = tensor.get_dtype(), tensor.get_shape()
    is_counter = kind in _COUNTERS and len(shape) <= 1
    if "quant" in key or (kind not in _FULL_PRECISION and not is_counter):
        raise ModelUnusable(f"{name}: {key} is {kind}: quantised weights are not exported")


def likeness(model: Any, other: Any, probes: Sequence[Sequence[int]]) -> Likeness:
    """Compare two models on whole token sequences. Non-finite logits count as an infinite difference."""
    worst, divergence, agreed, count = 0.0, 0.0, 0, 0
    with torch.inference_mode():
        for probe in probes:
            mine_TV, theirs_TV = (_logits(each, probe) for each in (model, other))
            difference = (mine_TV - theirs_TV).abs().max().item()
            worst = max(worst, difference) if difference == difference else float("nan")
            divergence += _divergence(mine_TV, theirs_TV)
            agreed += int((mine_TV.argmax(-1) == theirs_TV.argmax(-1)).sum())
            count += len(probe)
            if worst != worst:
                break
    dtype = str(next(other.parameters()).dtype).removeprefix("torch.")
    return Likeness(worst, divergence / max(count, 1), agreed / max(count, 1), count, dtype)


def _logits(model: Any, probe: Sequence[int]) -> torch.Tensor:
    device = next(model.parameters()).device
    logits: torch.Tensor = model(input_ids=torch.tensor([list(probe)], device=device)).logits[0]
    return logits.float()


def _divergence(mine_TV: torch.Tensor, theirs_TV: torch.Tensor) -> float:
    log_mine, log_theirs = mine_TV.double().log_softmax(-1), theirs_TV.double().log_softmax(-1)
    return float((log_mine.exp() * (log_mine - log_theirs)).sum())


def random_probes(vocabulary: int, *, count: int = PROBES, length: int = 32) -> list[list[int]]:
    """Token sequences for a policy of which no rollout is stored."""
    generator = torch.Generator().manual_seed(0)
    probes: list[list[int]] = torch.randint(vocabulary, (count, length), generator=generator).tolist()
    return probes
