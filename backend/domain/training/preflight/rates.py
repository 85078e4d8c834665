"""The learning rates of a pretrained model, held against what is usual: from-scratch defaults would ruin it."""

from collections.abc import Iterator
from dataclasses import dataclass

from backend.domain.training.adapter import AdapterKind
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.preflight.findings import PreflightFinding, ok, warning


@dataclass(frozen=True, slots=True)
class Usual:
    """From the least to the most that is usual."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{_told(self.low)} to {_told(self.high)}"


USUAL = {
    ("sft", False): Usual(1e-5, 5e-5),
    ("sft", True): Usual(1e-4, 5e-4),
    ("grpo", False): Usual(1e-6, 1e-5),
    ("grpo", True): Usual(1e-5, 1e-4),
}
"""By stage, and whether an adapter is trained: ten times as much then. Around TRL's defaults and its guide *LoRA
Without Regret* (Schulman and Thinking Machines Lab 2025): 2e-5 and 2e-4 for SFT, 1e-6 and 1e-5 for GRPO."""
FAR = 3.0
"""A rate above so many times the most that is usual is far above it."""


def rate_findings(configuration: TrainingConfiguration) -> Iterator[PreflightFinding]:
    """Of a run that starts from a pretrained model."""
    is_adapter = configuration.adapter.kind is not AdapterKind.FULL
    what = "an adapter beside a pretrained model" if is_adapter else "all weights of a pretrained model"
    rates = {}
    if configuration.recipe.has_sft:
        rates["sft"] = configuration.sft.learning_rate
    if configuration.recipe.has_grpo:
        rates["grpo"] = configuration.grpo.learning_rate
    for stage, rate in rates.items():
        usual, name = USUAL[stage, is_adapter], f"{stage}.learning_rate"
        sentence = f"{name} is {_told(rate)}; for {what} {usual} is usual."
        if rate > FAR * usual.high:
            advice = f"Set {name} to {_told(usual.low)} or a little more: so high a rate unlearns what the model knows."
            yield warning(f"{stage}_rate", sentence, advice, rate=rate, usual=usual.high)
        else:
            yield ok(f"{stage}_rate", sentence, rate=rate, usual=usual.high)


def _told(rate: float) -> str:
    """`0.0005` as `5e-4`."""
    digits, _, exponent = f"{rate:.2e}".partition("e")
    return f"{float(digits):g}e{int(exponent)}"
