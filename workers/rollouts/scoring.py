"""From the steps of a whole episode to its reward columns, the platform's own included."""

import math

from backend.domain.environments.manifest import PLATFORM_COLUMNS, Manifest
from backend.domain.errors import EnvError
from backend.domain.rollouts.rollout import CANARY, Rollout, columns_over_episode, weighted_reward
from backend.domain.vocabulary import RolloutStatus

MAX_METRICS = 64
"""Names beyond the declared columns that one rollout may carry."""


class RewardsMissing(EnvError):
    """The environment sent none of the reward columns that its manifest declares."""

    is_retryable = False


def environment_columns(manifest: Manifest) -> frozenset[str]:
    return frozenset(manifest.column_names) - set(PLATFORM_COLUMNS)


def score(rollout: Rollout, manifest: Manifest, *, parsed_turns: int, is_done: bool) -> None:
    """Completes the rollout. Raises RewardsMissing when the environment was asked to the end and told nothing."""
    declared, names = manifest.columns, set(manifest.column_names)
    rows = [step.rewards for step in rollout.steps]
    sent = {name for row in rows for name in row}
    needed = environment_columns(manifest)
    if is_done and needed and not sent & needed:
        wanted, found = ", ".join(sorted(needed)), ", ".join(sorted(sent)) or "nothing"
        raise RewardsMissing(f"the manifest declares {wanted}; the environment sent {found}")
    turns = max(len(rollout.steps), 1)
    platform = {"format": parsed_turns / turns, "length": rollout.tokens_out / turns}
    rollout.columns = columns_over_episode(declared, rows) | {k: v for k, v in platform.items() if k in names}
    extra = sorted(sent - names)[:MAX_METRICS]
    rollout.metrics = {name: sum(row.get(name, 0.0) for row in rows) for name in extra}
    rollout.metrics |= {name: value for name, value in platform.items() if name not in names}
    if rollout.task.is_canary:
        rollout.metrics[CANARY] = 1.0
    rollout.reward = weighted_reward(declared, rollout.columns)
    if not math.isfinite(rollout.reward):
        rollout.reward = None
        raise EnvError("the weighted sum of the reward columns is not a finite number")
    rollout.status = RolloutStatus.COMPLETED
