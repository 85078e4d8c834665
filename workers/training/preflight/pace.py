"""How long the parts of a training run take on this worker."""

from pathlib import Path
from typing import Any

from backend.domain.training.preflight.measured import NOTHING, Range, Speed
from workers.models.policy import LocalPolicy
from workers.training.context import TrainingContext
from workers.training.preflight.effort import PassCost
from workers.training.preflight.notebook import Notebook
from workers.training.preflight.play import Played, examination_seconds
from workers.training.preflight.rehearsal import GRPO_STEPS, SFT_STEPS, grpo_seconds, sft_seconds
from workers.training.preflight.subject import Subject

REHEARSAL_SECONDS = 60.0
"""What would take longer by its passes alone is not tried."""
AROUND_PASSES = 2.5
"""Steps of small models were seen to take up to so many times their passes."""


class TimeEstimate:
    """How long the parts of the run take here."""

    def __init__(
        self, bench: TrainingContext, notebook: Notebook, subject: Subject, conversations: Played, effort: PassCost
    ) -> None:
        self.bench, self.notebook, self.subject = bench, notebook, subject
        self.conversations, self.effort = conversations, effort
        self.assumed: list[str] = []

    def speed(self, scripted: Played | None, played: Played) -> Speed:
        share = self._share_after_warm_up(scripted, played)
        if (count := self.bench.configuration.hardware.processes) > 1:
            self.assumed.append(f"one process does all of it, not {count}")
        examined = self._examined() * share
        return Speed(
            rollout=played.each.times(share),
            examined=Range(examined, examined),
            scripted=scripted.each.low if scripted else 0.0,
            sft_step=self._sft_step(),
            grpo_step=self._grpo_step(),
            assumed=tuple(self.assumed),
        )

    def _share_after_warm_up(self, scripted: Played | None, played: Played) -> float:
        """An untrained policy rambles to its limit; after the warm-up it writes about as much as the script."""
        if not self.bench.configuration.recipe.has_sft or not scripted:
            return 1.0
        if not 0 < scripted.sampled_tokens < played.sampled_tokens:
            return 1.0
        self.assumed.append(
            f"after the warm-up an episode has {scripted.sampled_tokens:,.0f} tokens of the policy, as the script's"
            f" have, not {played.sampled_tokens:,.0f} as now"
        )
        return scripted.sampled_tokens / played.sampled_tokens

    def _examined(self) -> float:
        self.notebook.progress(phase="measuring an examination", done=0, total=1)
        temperature = self.bench.configuration.heldout.temperature
        model, tokenizer = self.subject.model, self.subject.tokenizer
        policy = LocalPolicy(model, tokenizer, temperature=temperature, lockstep=True)
        policy.set_precision(is_bf16=self.subject.hardware.is_bf16)
        return examination_seconds(self.bench, policy)

    def _sft_step(self) -> Range:
        choices = self.bench.configuration
        passes = self.effort.seconds / self.effort.rows * choices.sft.batch
        if not choices.recipe.has_sft:
            return NOTHING
        if not self._is_short(passes * SFT_STEPS, "a step of the warm-up"):
            return Range(passes, passes * AROUND_PASSES)
        self.notebook.progress(phase="measuring the warm-up", done=0, total=1)
        lessons = self.conversations.lessons
        return sft_seconds(self.bench, *self._weights, lessons, self._folder("sft"), self.subject.hardware)

    def _grpo_step(self) -> Range:
        choices = self.bench.configuration
        grpo = choices.grpo
        with_reference = 4 / 3 if grpo.beta > 0 else 1.0  # one more forward pass, a third of forward and backward
        row = self.effort.seconds / self.effort.rows
        passes = row * grpo.episodes_per_step * grpo.updates * with_reference
        if not choices.recipe.has_grpo:
            return NOTHING
        if not self._is_short(passes / grpo.micro_batches * GRPO_STEPS, "what follows a step's play"):
            return Range(passes, passes * AROUND_PASSES)
        self.notebook.progress(phase="measuring a GRPO step", done=0, total=1)
        rollouts = self.conversations.completed
        return grpo_seconds(self.bench, *self._weights, rollouts, self._folder("grpo"), self.subject.hardware)

    def _is_short(self, seconds: float, what: str) -> bool:
        """Worth trying for real; else the passes are multiplied, which is said."""
        is_short = self.bench.configuration.engine == "transformers" and seconds < REHEARSAL_SECONDS
        if not is_short:
            self.assumed.append(f"{what} takes 1 to {AROUND_PASSES:g} times its forward and backward passes")
        return is_short

    @property
    def _weights(self) -> tuple[Any, Any]:
        return self.subject.model, self.subject.tokenizer

    def _folder(self, stage: str) -> Path:
        return self.bench.assignment.folder / "rehearsal" / stage
