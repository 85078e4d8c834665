"""How GRPO's episodes are sampled, on whichever rank."""

from collections.abc import Sequence
from typing import Any

from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.grpo import GrpoChoice
from backend.domain.vocabulary import Phase
from workers.models.policy import LocalPolicy
from workers.rollouts.engine import GroupPlan
from workers.training.env_pool import EnvPool
from workers.training.hardware import Hardware
from workers.training.ranks.playing import PlayPlans


def training_sampler(model: Any, tokenizer: Any, choice: GrpoChoice, hardware: Hardware) -> LocalPolicy:
    """The model as it is trained, as a policy."""
    policy = LocalPolicy(
        model, tokenizer, temperature=choice.temperature, top_p=choice.top_p, top_k=choice.top_k, lockstep=True
    )
    policy.set_precision(is_bf16=hardware.is_bf16)
    return policy


def training_player(env_pool: EnvPool, policy: LocalPolicy, seed: int) -> PlayPlans:
    """Plays a step's plans in lockstep."""

    def play(step: int, plans: Sequence[GroupPlan]) -> list[Rollout]:
        return env_pool.play_in_lockstep(plans, policy, phase=Phase.TRAIN, seed=seed, training_step=step)

    return play
