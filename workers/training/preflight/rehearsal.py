"""Some real steps of both stages over conversations that are there already: what a step costs here, trainer and all.

The weights that they change are the pre-flight's own.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.preflight.measured import Range
from workers.training.context import TrainingContext
from workers.training.examples import TrainingExample
from workers.training.grpo_batch import GrpoRun, GrpoStep
from workers.training.hardware import Hardware
from workers.training.sft import SftRun, train_sft
from workers.training.trl_grpo import train_grpo

SFT_STEPS = 6
GRPO_STEPS = 3
"""The first of each warms up and is not counted."""
NEVER = 10**6
"""Steps between two saved states."""


def sft_seconds(
    bench: TrainingContext,
    model: Any,
    tokenizer: Any,
    lessons: Sequence[TrainingExample],
    folder: Path,
    hardware: Hardware,
) -> Range:
    """Of one step."""
    choice = bench.configuration.sft.model_copy(update={"steps": SFT_STEPS, "warmup_steps": 0})
    ended: dict[int, float] = {}

    def note(step: int, _: dict[str, float]) -> bool:
        ended.setdefault(step, time.monotonic())
        return True

    train_sft(SftRun(model, tokenizer, choice, lessons, 0, folder, NEVER, note, hardware))
    moments = list(ended.values())
    return Range.of([after - before for before, after in pairwise(moments)])


def grpo_seconds(
    bench: TrainingContext, model: Any, tokenizer: Any, rollouts: Sequence[Rollout], folder: Path, hardware: Hardware
) -> Range:
    """Of all that follows a step's play. One part of the step is learned and multiplied."""
    grpo = bench.configuration.grpo
    parts = grpo.micro_batches if grpo.tasks_per_step % grpo.micro_batches == 0 else 1
    update = {
        "steps": GRPO_STEPS,
        "tasks_per_step": grpo.tasks_per_step // parts,
        "micro_batches": grpo.micro_batches // parts,
        "replace_uniform": 0,
    }
    steps: list[GrpoStep] = []
    if not model.config.name_or_path:  # TRL loads the policy to stay near to from there, as a run does
        model.save_pretrained(folder / "start")
        model.config.name_or_path = str(folder / "start")

    def note(step: GrpoStep) -> bool:
        steps.append(step)
        return True

    train_grpo(
        GrpoRun(
            model=model,
            tokenizer=tokenizer,
            choice=grpo.model_copy(update=update),
            columns=bench.assignment.columns,
            seed=0,
            folder=folder,
            save_every=NEVER,
            play=lambda _, ordinals: _as_groups(rollouts, ordinals, grpo.group_size),
            on_step=note,
            columns_of=bench.assignment.columns_of if bench.assignment.is_mixed else None,
            hardware=hardware,
        )
    )
    return Range.of([(step.seconds["step"] - step.seconds["rollouts"]) * parts for step in steps[1:]])


def _as_groups(rollouts: Sequence[Rollout], ordinals: Sequence[int], size: int) -> list[Rollout]:
    """Copies in the places of a step's rollouts, from the first again where there are fewer."""
    source = cycle(rollouts)
    return [_placed(next(source), group, member) for group in ordinals for member in range(size)]


def _placed(rollout: Rollout, group: int, member: int) -> Rollout:
    """A script tells no log-probabilities; any will do for the time that learning takes."""
    length = len(rollout.completion_mask or ())
    logprobs = rollout.logprobs or [0.0] * length
    return replace(rollout, group=group, member=member, logprobs=list(logprobs), metrics=dict(rollout.metrics))
