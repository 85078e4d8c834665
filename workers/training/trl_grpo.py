"""TRL's GRPOTrainer behind one door. Nothing else of the product knows TRL's names for GRPO.

TRL calls back for rollouts, rewards and logs. What it takes in silence (wrong lengths, misnamed masks, missing
completions) is checked here before, and what it made of a step is checked after: its mean reward and the number of
tokens that it counted must be ours.
"""

import logging
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from backend.domain.manifest import RewardColumn
from backend.domain.reinforcement import GrpoChoice
from backend.domain.rollouts import Rollout
from workers.training.lessons import BrokenStep, lessons_of_step
from workers.training.resume import mark_complete, newest_complete

_TOLERANCE = 1e-3

Play = Callable[[int, Sequence[int]], list[Rollout]]
"""(training step from 1, ordinals of the step's groups) → all members of each group, in order."""


@dataclass(slots=True)
class GrpoStep:
    """One optimiser step, after it was taken."""

    step: int
    rollouts: list[Rollout]
    """In order, with their advantages."""
    loss: float
    grad_norm: float
    learning_rate: float
    entropy: float
    divergence: float | None
    """From the policy before GRPO; None unless `beta` is above 0."""
    no_variance: float
    """Share of groups whose rewards were all equal: they teach nothing."""
    rollout_seconds: float
    seconds: float


OnStep = Callable[[GrpoStep], bool]
"""Returns whether to go on."""


@dataclass(slots=True)
class GrpoRun:
    """What a GRPO stage is made of."""

    model: Any
    tokenizer: Any
    choice: GrpoChoice
    columns: Sequence[RewardColumn]
    seed: int
    folder: Path
    """Where the trainer's own states are kept."""
    save_every: int
    play: Play
    on_step: OnStep
    longest_completion: int = 256
    """Only a scale of the `dr_grpo` loss."""


def train_grpo(run: GrpoRun) -> None:
    """Train until the last step or until `on_step` says stop; goes on from the newest complete state in the folder."""
    bridge = _Bridge(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = GRPOTrainer(
            model=run.model,
            args=_arguments(run),
            train_dataset=_prompts(run.choice),
            processing_class=run.tokenizer,
            reward_funcs=[bridge.reward_function(column.name) for column in run.columns],
            rollout_func=bridge.rollouts,
            callbacks=[bridge],
        )
        trainer.remove_callback(PrinterCallback)
        bridge.trainer = trainer
        newest = newest_complete(run.folder)
        trainer.train(resume_from_checkpoint=str(newest) if newest else None)


def _prompts(choice: GrpoChoice) -> Dataset:
    """One row a group. TRL hands `rollout_func` nothing but the prompt, so the group's number travels inside it."""
    count = choice.steps * choice.tasks_per_step
    return Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": "", "group": number}] for number in range(count)]}
    )


def _arguments(run: GrpoRun) -> GRPOConfig:
    choice = run.choice
    on_cpu = next(run.model.parameters()).device.type == "cpu"
    return GRPOConfig(
        output_dir=str(run.folder),
        max_steps=choice.steps,
        per_device_train_batch_size=choice.episodes_per_step // choice.micro_batches,
        gradient_accumulation_steps=choice.micro_batches,
        steps_per_generation=choice.micro_batches,
        num_generations=choice.group_size,
        num_iterations=1,  # the same rollouts twice would not survive a resume: TRL does not save them
        shuffle_dataset=False,  # the tasks are laid out in order, levels mixed
        learning_rate=choice.learning_rate,
        lr_scheduler_type=choice.schedule,
        warmup_steps=choice.warmup_steps,
        adam_beta2=choice.adam_beta2,
        max_grad_norm=choice.max_grad_norm,
        weight_decay=0.0,
        loss_type=choice.loss_type,
        scale_rewards=choice.scale_rewards,
        reward_weights=[column.weight for column in run.columns],
        beta=choice.beta,
        temperature=choice.temperature,
        entropy_coef=choice.entropy_bonus,
        max_completion_length=run.longest_completion,
        seed=run.seed,
        # TRL turns these on unasked, also on a CPU
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=on_cpu,
        report_to="none",
        logging_steps=1,
        log_completions=False,
        disable_tqdm=True,
        dataloader_pin_memory=not on_cpu,
        save_strategy="steps",
        save_steps=run.save_every,
        save_total_limit=2,
    )


@dataclass(slots=True)
class _Pending:
    """Rollouts that were played for the step under way."""

    rollouts: list[Rollout] = field(default_factory=list)
    counted_tokens: float = 0.0
    seconds: float = 0.0


class _Bridge(TrainerCallback):  # type: ignore[misc]
    """TRL's callbacks, turned into ours."""

    def __init__(self, run: GrpoRun) -> None:
        self.run = run
        self.trainer: Any = None
        self._pending = _Pending()
        self._last_step_at = time.monotonic()

    def rollouts(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """TRL's `rollout_func`. The prompts come with each group already repeated for its members."""
        began = time.monotonic()
        step = trainer.state.global_step + 1
        groups = self._groups(step, [prompt[-1]["group"] for prompt in prompts])
        rollouts = self.run.play(step, groups)
        lessons = lessons_of_step(
            rollouts, groups=groups, group_size=self.run.choice.group_size, end=self.run.tokenizer.eos_token_id
        )
        counted = sum(sum(lesson.mask) for lesson in lessons) / len(lessons)
        self._pending = _Pending(rollouts, counted, time.monotonic() - began)
        return {
            "prompt_ids": [lesson.prompt for lesson in lessons],
            "completion_ids": [lesson.completion for lesson in lessons],
            "env_mask": [lesson.mask for lesson in lessons],
            "logprobs": None,
            "values": [rollout.columns if rollout.is_completed else None for rollout in rollouts],
        }

    def _groups(self, step: int, numbers: list[int]) -> list[int]:
        """Ordinals of this step's groups. Raises BrokenStep when TRL's sampler gave anything but this step's."""
        size, count = self.run.choice.group_size, self.run.choice.tasks_per_step
        first = (step - 1) * count
        wanted = [first + ordinal for ordinal in range(count) for _ in range(size)]
        if numbers != wanted:
            raise BrokenStep(f"step {step}: the trainer asks for groups {numbers[:3]}…, not for {wanted[:3]}…")
        return list(range(count))

    def reward_function(self, column: str) -> Callable[..., list[float | None]]:
        """TRL's reward function of one column. None keeps a failed rollout out of its group's mean."""

        def values_of_column(values: list[dict[str, float] | None], **_: Any) -> list[float | None]:
            return [None if columns is None else columns[column] for columns in values]

        values_of_column.__name__ = column
        return values_of_column

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> Any:
        if logs is None or "reward" not in logs:
            return control
        pending, self._pending = self._pending, _Pending()
        self._check(state.global_step, logs, pending)
        advantages = list(self.trainer._logs["advantages"])[-len(pending.rollouts) :]
        for rollout, advantage in zip(pending.rollouts, advantages, strict=True):
            rollout.advantage = advantage if rollout.is_completed else None
        now = time.monotonic()
        seconds, self._last_step_at = now - self._last_step_at, now
        if not self.run.on_step(_step(state.global_step, logs, pending, seconds)):
            control.should_save = True
            control.should_training_stop = True
        self._last_step_at += time.monotonic() - now  # what the listener does is no part of the step
        return control

    def _check(self, step: int, logs: dict[str, Any], pending: _Pending) -> None:
        """Did TRL see what was played? Wrong masks and lost rewards show here."""
        rewards = [rollout.reward for rollout in pending.rollouts if rollout.reward is not None]
        ours = {"reward": math.fsum(rewards) / len(rewards), "completions/mean_length": pending.counted_tokens}
        for name, value in ours.items():
            theirs = logs.get(name)
            if theirs is None or abs(theirs - value) > _TOLERANCE * max(1.0, abs(value)):
                raise BrokenStep(f"step {step}: the trainer counted {name} {theirs}, played was {value:.6g}")
        if not math.isfinite(logs["loss"]):
            raise BrokenStep(f"step {step}: the loss is {logs['loss']}; try a lower learning rate")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        mark_complete(self.run.folder / f"checkpoint-{state.global_step}")

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._last_step_at = time.monotonic()


def _step(step: int, logs: dict[str, Any], pending: _Pending, seconds: float) -> GrpoStep:
    return GrpoStep(
        step=step,
        rollouts=pending.rollouts,
        loss=logs["loss"],
        grad_norm=logs.get("grad_norm", math.nan),
        learning_rate=logs["learning_rate"],
        entropy=logs.get("entropy", math.nan),
        divergence=logs.get("kl"),
        no_variance=logs["frac_reward_zero_std"],
        rollout_seconds=pending.seconds,
        seconds=seconds,
    )


logging.getLogger("trl").setLevel(logging.ERROR)
