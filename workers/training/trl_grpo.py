"""The GRPO stage through TRL. It and `workers.training.grpo.trainer` and `arguments` alone know TRL's names for GRPO.

TRL calls back for rollouts, rewards and logs. What it takes in silence (wrong lengths, misnamed masks, missing
completions) is checked here before, and what it made of a step is checked after: its mean reward and the number of
tokens that it counted must be ours.
"""

import logging
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback

from backend.domain.training.grpo import GrpoChoice
from workers.models.load import unrounded
from workers.training.examples import BrokenStep
from workers.training.grpo.arguments import grpo_arguments
from workers.training.grpo.groups import Batch, play_batch
from workers.training.grpo.rows import rows_of
from workers.training.grpo.stage import GrpoControls, GrpoRun, GrpoStep, Ratio
from workers.training.grpo.trainer import Counted, Trainer, mean_and_highest
from workers.training.ranks.playing import play_for_leader
from workers.training.ranks.weights import check_same
from workers.training.rate import Rate
from workers.training.resume import mark_complete, newest_complete, step_of

__all__ = ["GrpoControls", "GrpoRun", "GrpoStep", "reached_step", "train_grpo"]

_TOLERANCE = 1e-3


def train_grpo(run: GrpoRun) -> None:
    """Train until the last step or until `on_step` says stop; goes on from the newest complete state in the folder."""
    bridge = _Bridge(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with unrounded(run.model):
            trainer = Trainer(
                model=run.model,
                args=grpo_arguments(run),
                train_dataset=_prompts(run.choice),
                processing_class=run.tokenizer,
                reward_funcs=[bridge.reward_function(column.name) for column in run.columns],
                rollout_func=bridge.rollouts,
                callbacks=[bridge],
                advantages_of_tokens=bridge.advantages_of_tokens,
            )
        trainer.remove_callback(PrinterCallback)
        bridge.trainer = trainer
        if run.vllm is not None:
            run.set_generation(trainer.vllm_generation)
        newest = newest_complete(run.folder)
        trainer.train(resume_from_checkpoint=str(newest) if newest else None)


def reached_step(folder: Path, choice: GrpoChoice) -> int:
    """Our step after which the newest complete state was saved; 0 when there is none."""
    return step_of(newest_complete(folder)) // choice.updates


def _prompts(choice: GrpoChoice) -> Dataset:
    """One row a group. TRL hands `rollout_func` nothing but the prompt, so the group's number travels inside it."""
    count = choice.steps * choice.tasks_per_step
    return Dataset.from_dict(
        {"prompt": [[{"role": "user", "content": "", "group": number}] for number in range(count)]}
    )


class _Bridge(TrainerCallback):  # type: ignore[misc]
    """TRL's callbacks, turned into ours."""

    def __init__(self, run: GrpoRun) -> None:
        self.run = run
        self.trainer: Any = None
        self._batch = Batch(run.choice.group_size, [], [])
        self._counted_tokens = 0.0
        self._token_advantages: list[list[float]] | None = None
        """Of the rollouts that this rank learns from; None: TRL's stay."""
        self._updates: list[dict[str, Any]] = []
        """What TRL logged of each update of the step under way."""
        self._rate = Rate()
        self._last_step_at = time.monotonic()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Before the first update of our step: what may change between steps."""
        choice = self.run.choice
        if state.global_step % choice.updates:
            return
        step = state.global_step // choice.updates + 1
        self._rate.factor, temperature = self.run.ranks.agree(lambda: self._controls_of(step))
        self.run.set_temperature(temperature)
        self.trainer.set_temperature(temperature)

    def _controls_of(self, step: int) -> tuple[float, float]:
        """Factor of the rate, and temperature."""
        choice, controls = self.run.choice, self.run.controls
        temperature = choice.temperature_at(step) if controls.temperature is None else controls.temperature
        return controls.learning_rate_factor, temperature

    def rollouts(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """TRL's `rollout_func`. The prompts come with each group already repeated for its members."""
        step = trainer.state.global_step // self.run.choice.updates + 1
        with trainer.clock.counts("rollouts"):
            self._check_groups(step, [prompt[-1]["group"] for prompt in prompts])
            learned = self._learned(step)
        self._token_advantages = learned.pop("token_advantages")
        return learned

    def _learned(self, step: int) -> dict[str, Any]:
        """What this rank learns from: its share of what the leader made of all that was played."""
        ranks = self.run.ranks
        if self.run.play_share is not None:
            told: dict[str, Any] = play_for_leader(ranks, self.run.play_share)
            return told
        self._batch = play_batch(self.run, step)
        whole, shares = rows_of(self.run, self._batch), ranks.shares(self.run.choice.episodes_per_step)
        self._counted_tokens = sum(map(sum, whole["env_mask"])) / len(whole["env_mask"])
        own: dict[str, Any] = ranks.deal(
            [{name: rows and rows[share] for name, rows in whole.items()} for share in shares]
        )
        return own

    def _check_groups(self, step: int, numbers: list[int]) -> None:
        """Raises BrokenStep when TRL's sampler gave anything but this rank's share of the step's groups."""
        size, count = self.run.choice.group_size, self.run.choice.tasks_per_step
        first = (step - 1) * count
        own = range(count)[self.run.ranks.shares(count)[self.run.ranks.number]]
        wanted = [first + ordinal for ordinal in own for _ in range(size)]
        if numbers != wanted:
            raise BrokenStep(f"step {step}: the trainer asks for groups {numbers[:3]}…, not for {wanted[:3]}…")

    def reward_function(self, column: str) -> Callable[..., list[float | None]]:
        """TRL's reward function of one column."""

        def values_of_column(values: list[dict[str, float] | None], **_: Any) -> list[float | None]:
            return [None if columns is None else columns.get(column, 0.0) for columns in values]

        values_of_column.__name__ = column
        return values_of_column

    def advantages_of_tokens(self) -> list[list[float]] | None:
        return self._token_advantages

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any, **_: Any) -> None:
        self._rate.lower(optimizer)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any, **_: Any) -> None:
        self._rate.put_back(optimizer)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> Any:
        if logs is None or "loss" not in logs:
            return control
        run = self.run
        if run.ranks.leads and not self._updates:
            self._check(-(-state.global_step // run.choice.updates), logs)
        self._updates.append(dict(logs))
        if state.global_step % run.choice.updates == 0:
            ratios = run.ranks.gather(self.trainer.ratios.take())
            if not run.ranks.agree(lambda: self._finish(state.global_step // run.choice.updates, ratios)):
                control.should_save = True
                control.should_training_stop = True
            self._updates = []
        return control

    def _finish(self, step: int, ratios: list[Counted]) -> bool:
        """Our step is over: hand it to the listener. Returns whether to go on."""
        rollouts = self._batch.rollouts
        advantages = list(self.trainer._logs["advantages"])[-len(rollouts) :]
        for place, (rollout, advantage) in enumerate(zip(rollouts, advantages, strict=True)):
            counts = rollout.is_completed and place not in self._batch.masked
            rollout.advantage = advantage if counts else None
        now = time.monotonic()
        seconds, self._last_step_at = now - self._last_step_at, now
        goes_on = self.run.on_step(self._step(step, seconds, ratios))
        self._batch = Batch(self.run.choice.group_size, [], [])
        self._last_step_at += time.monotonic() - now  # what the listener does is no part of the step
        return goes_on

    def _step(self, step: int, seconds: float, ratios: list[Counted]) -> GrpoStep:
        spent, (mean_ratio, highest_ratio) = self.trainer.clock.take(), mean_and_highest(ratios)
        return GrpoStep(
            step=step,
            rollouts=[*self._batch.rollouts, *self._batch.replaced],
            loss=_figure(self._updates, "loss"),
            grad_norm=max(update.get("grad_norm", math.nan) for update in self._updates),
            learning_rate=self._updates[-1]["learning_rate"] * self._rate.factor,
            learning_rate_factor=self._rate.factor,
            temperature=self.trainer.temperature,
            entropy=_figure(self._updates, "entropy"),
            divergence=_mean(self._updates, "kl"),
            no_variance=self._batch.no_variance,
            ratio=Ratio(
                mean_ratio,
                highest_ratio,
                low_clip=_mean(self._updates, "clip_ratio/low_mean"),
                high_clip=_mean(self._updates, "clip_ratio/high_mean", "cispo_clip_ratio"),
            ),
            rollout_seconds=spent["rollouts"],
            reward_seconds=spent["reward"],
            forward_seconds=spent["forward"],
            backward_seconds=spent["backward"],
            optimiser_seconds=spent["optimiser"],
            other_seconds=spent["other"],
            seconds=seconds,
        )

    def _check(self, step: int, logs: dict[str, Any]) -> None:
        """Did TRL see what was played? Wrong masks and lost rewards show here."""
        counted = [rollout for place, rollout in enumerate(self._batch.rollouts) if place not in self._batch.masked]
        rewards = [rollout.reward for rollout in counted if rollout.reward is not None]
        ours = {"completions/mean_length": self._counted_tokens}
        if rewards:
            ours["reward"] = math.fsum(rewards) / len(rewards)
        for name, value in ours.items():
            theirs = logs.get(name)
            if theirs is None or abs(theirs - value) > _TOLERANCE * max(1.0, abs(value)):
                raise BrokenStep(f"step {step}: the trainer counted {name} {theirs}, played was {value:.6g}")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        check_same(self.run.ranks, self.run.model)
        if self.run.ranks.leads:
            self.run.before_save()
            mark_complete(self.run.folder / f"checkpoint-{state.global_step}")

    def on_train_begin(self, args: Any, state: Any, control: Any, lr_scheduler: Any, **_: Any) -> None:
        """A state without an optimiser has no schedule either: it is brought to where the step is."""
        while lr_scheduler.last_epoch < state.global_step:
            lr_scheduler.step()
        self._last_step_at = time.monotonic()


def _figure(updates: list[dict[str, Any]], name: str) -> float:
    value = _mean(updates, name)
    return math.nan if value is None else value


def _mean(updates: list[dict[str, Any]], *names: str) -> float | None:
    """Over the updates, of the first of the names that TRL logged."""
    for name in names:
        values = [update[name] for update in updates if update.get(name) is not None]
        if values:
            return math.fsum(values) / len(values)
    return None


logging.getLogger("trl").setLevel(logging.ERROR)
