"""TRL's GRPOTrainer with what it lacks: advantages by token, a temperature that changes, the ratio to the sampler, a
clock. It overrides private methods of TRL 1.16, which is pinned exactly; tests hold each of them."""

from collections.abc import Callable, Sequence
from types import CellType
from typing import Any

import torch
from peft import PeftModel
from trl import GRPOTrainer

from workers.training.grpo.positions import count_without_padding
from workers.training.resume import WithoutCard
from workers.training.timed import Timed

_HIGHEST_LOG_RATIO = 20.0
AdvantagesOfTokens = Callable[[], list[list[float]] | None]
"""For each rollout of the batch, one value a token or none at all; None: TRL's own advantages stay."""
Counted = tuple[float, float, float]
"""Sum of ratios, number of tokens, highest ratio."""


class Trainer(WithoutCard, Timed, GRPOTrainer):  # type: ignore[misc]
    """Lets tokens of one episode have different advantages, and tells what it did."""

    temperature: float

    def __init__(self, *, advantages_of_tokens: AdvantagesOfTokens, **arguments: Any) -> None:
        super().__init__(**arguments)
        for model in (self.model, self.ref_model):
            if model is not None:
                count_without_padding(model)
        self.ratios = Ratios()
        self._advantages_of_tokens = advantages_of_tokens
        self._scored: dict[str, Any] | None = None
        """The part of the batch whose loss is being computed."""

    def set_temperature(self, temperature: float) -> None:
        """Of the log-probabilities, which must be those of the distribution that was sampled from. TRL compiles it into
        the models' forward when it is made."""
        if temperature == self.temperature:
            return
        for model in (self.model, self.ref_model):
            if model is not None:
                _temperature_cell(model).cell_contents = temperature
        self.temperature = temperature

    def _calculate_rewards(self, *arguments: Any) -> Any:
        with self.clock.counts("reward"):
            return super()._calculate_rewards(*arguments)

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        scored: dict[str, Any] = super()._generate_and_score_completions(inputs)
        rows = self._advantages_of_tokens()
        if rows is not None:
            width = scored["completion_ids"].size(1)
            padded = [row + [0.0] * (width - len(row)) for row in rows]
            scored["advantages"] = torch.tensor(padded, device=scored["completion_ids"].device)
        return scored

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        self._scored = inputs
        try:
            with self.clock.counts("forward"):
                return super()._compute_loss(model, inputs)
        finally:
            self._scored = None

    def _get_per_token_logps_and_entropies(self, *arguments: Any, **named: Any) -> Any:
        with self.clock.counts("forward"):
            answer = super()._get_per_token_logps_and_entropies(*arguments, **named)
        if self._scored is not None:
            self.ratios.add(answer[0].detach(), self._scored)
        return answer


class Ratios:
    """Probabilities in training divided by those in sampling, over the policy's tokens of a step."""

    def __init__(self) -> None:
        self._sum, self._count, self._highest = 0.0, 0.0, 0.0

    def add(self, logps_BT: torch.Tensor, scored: dict[str, Any]) -> None:
        mask_BT = scored["completion_mask"] * scored.get("tool_mask", 1)
        change_BT = (logps_BT - scored["sampling_per_token_logps"]).clamp(max=_HIGHEST_LOG_RATIO)
        ratio_BT = change_BT.exp() * mask_BT
        figures = torch.stack([ratio_BT.sum(), mask_BT.sum().float(), ratio_BT.max()]).tolist()
        self._sum += figures[0]
        self._count += figures[1]
        self._highest = max(self._highest, figures[2])

    def take(self) -> Counted:
        """What was counted since it was last taken."""
        taken = self._sum, self._count, self._highest
        self._sum, self._count, self._highest = 0.0, 0.0, 0.0
        return taken


def mean_and_highest(counted: Sequence[Counted]) -> tuple[float, float]:
    """Of all ranks together; 1 where no token counted."""
    sums, counts, highest = zip(*counted, strict=True)
    return (sum(sums) / sum(counts), max(highest)) if sum(counts) else (1.0, 1.0)


def _temperature_cell(model: Any) -> CellType:
    """Where the forward that TRL gave the model keeps its temperature; mixed precision may have wrapped it since."""
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    forward = getattr(base, "_original_forward", base.forward).__func__
    cell: CellType = dict(zip(forward.__code__.co_freevars, forward.__closure__, strict=True))["temperature"]
    return cell
