"""What of a step's rollouts is learned, for TRL: one row a rollout, in the order of the prompts."""

from typing import Any

from backend.domain.rollouts.rollout import Rollout
from workers.training.examples import lessons_of_step
from workers.training.grpo.credit import credit_turns, token_advantages
from workers.training.grpo.groups import Batch
from workers.training.grpo.stage import GrpoRun


def rows_of(run: GrpoRun, batch: Batch) -> dict[str, Any]:
    """Lists by TRL's names; and `token_advantages`, which are None where TRL's own stay."""
    lessons = lessons_of_step(
        batch.rollouts,
        groups=batch.groups,
        group_size=run.choice.group_size,
        end=run.tokenizer.eos_token_id,
        silent=_silent(run, batch),
    )
    return {
        "prompt_ids": [lesson.prompt for lesson in lessons],
        "completion_ids": [lesson.completion for lesson in lessons],
        "env_mask": [lesson.mask for lesson in lessons],
        "logprobs": [rollout.logprobs if rollout.is_completed else [0.0] for rollout in batch.rollouts],
        "values": [
            _values(run, rollout) if rollout.is_completed and place not in batch.masked else None
            for place, rollout in enumerate(batch.rollouts)
        ],
        "token_advantages": _token_advantages(run, batch),
    }


def _silent(run: GrpoRun, batch: Batch) -> set[int]:
    """Rollouts none of whose tokens is learned."""
    cut = {place for place, rollout in enumerate(batch.rollouts) if rollout.is_truncated}
    return batch.masked | cut if run.choice.mask_truncated else batch.masked


def _values(run: GrpoRun, rollout: Rollout) -> dict[str, float]:
    """Reward columns for TRL, which weighs them; in a mix they are weighed here, by the rollout's environment. A failed
    or masked rollout has none, and so keeps out of its group's mean and spread."""
    if run.columns_of is None:
        return rollout.columns
    return {column.name: column.weight * rollout.columns[column.name] for column in run.columns_of(rollout)}


def _token_advantages(run: GrpoRun, batch: Batch) -> list[list[float]] | None:
    choice = run.choice
    if choice.credit == "episode":
        return None
    credit_turns(
        batch.rollouts,
        batch.masked,
        size=choice.group_size,
        columns_for=run.columns_for,
        scale=choice.scale_rewards,
    )
    return [token_advantages(rollout) for rollout in batch.rollouts]
