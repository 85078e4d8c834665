"""GRPO with TRL, the only module that knows TRL's names for GRPO.

TRL calls back for rollouts, rewards and logs. It silently accepts wrong lengths, misnamed masks and missing
completions, so inputs are checked before, and the mean reward and number of tokens that it reports must match ours.

`GrpoTrainer` overrides private methods of TRL 1.16, which is pinned exactly. Tests cover each of them.
"""

import inspect
import logging
import math
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from types import CellType
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel
from torch.optim.lr_scheduler import LRScheduler
from transformers import PreTrainedModel, TrainerControl, TrainerState
from transformers.trainer_callback import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from workers.models.load import unrounded
from workers.training.ahead import truncated_weights
from workers.training.checkpoints import newest_complete
from workers.training.examples import BrokenStep
from workers.training.grpo_batch import STEP_PARTS, GrpoRun, GrpoStep, PlayedBatch, play_batch, rows_of
from workers.training.heartbeats import ACTIVITY
from workers.training.ranks import play_for_leader
from workers.training.sharding import gather_weights, shard_weights
from workers.training.shared_prompts import can_share_prompts, score_completions
from workers.training.teacher import TEACHER_KL
from workers.training.trl_base import StageListener, TimedTrainer, parts_of_step, shared_arguments, timed

TOLERANCE = 1e-3  # relative difference between TRL's figures and ours that is accepted
HIGHEST_LOG_RATIO = 20.0
LOGGED = {
    "loss": "loss",
    "entropy": "entropy",
    "kl": "divergence",
    "clip_ratio/low_mean": "ratio/low_clip",
    "cispo_clip_ratio": "ratio/high_clip",
    "clip_ratio/high_mean": "ratio/high_clip",
}
"""Our curves by TRL's names. A loss logs at most one of the last two."""

RatioSums = tuple[float, float, float, float]
"""Sum of ratios, number of tokens, highest ratio, and number of tokens whose importance weight was limited."""
NO_RATIOS: RatioSums = (0.0, 0.0, 0.0, 0.0)

logging.getLogger("trl").setLevel(logging.ERROR)


def train_grpo(run: GrpoRun) -> None:
    """Train until the last step or until `on_step` returns False. Resumes from the newest complete state."""
    bridge = _Bridge(run)
    # one row per group; TRL passes only the prompt to `rollout_func`, so it contains the group's number
    groups = range(run.choice.steps * run.choice.tasks_per_step)
    prompts = [[{"role": "user", "content": "", "group": number}] for number in groups]
    rewards = [partial(bridge.values_of_column, column.name) for column in run.columns]
    for function, column in zip(rewards, run.columns, strict=True):
        function.__name__ = column.name  # type: ignore[attr-defined]  # TRL names its figures by it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with unrounded(run.model):
            bridge.trainer = trainer = GrpoTrainer(
                model=run.model,
                args=grpo_arguments(run),
                train_dataset=Dataset.from_dict({"prompt": prompts}),
                processing_class=run.tokenizer,
                reward_funcs=rewards,
                rollout_func=bridge.rollouts,
                callbacks=[bridge],
                is_sharded=run.hardware.is_sharded,
                token_advantages=lambda: bridge.token_advantages,
                importance_limit=run.choice.importance_limit if run.ahead is not None else None,
            )
        trainer.remove_callback(PrinterCallback)
        if run.vllm is not None and run.policy is not None:
            run.policy.sample_with(trainer.vllm_generation)
        newest = newest_complete(run.folder)
        if newest is not None and run.ahead is not None:
            run.ahead.restore(newest)
        trainer.train(resume_from_checkpoint=str(newest) if newest else None)
        gather_weights(run.model)


def grpo_arguments(run: GrpoRun) -> GRPOConfig:
    """Return our settings as TRL's. One step here is `updates` steps of TRL.

    States are saved only between sets of rollouts, because TRL does not keep the set it is working on.
    """
    choice = run.choice
    sampling: dict[str, object] = {}
    if run.vllm is not None:  # TRL starts vLLM and sends it the weights before each step
        sampling = {"use_vllm": True, "vllm_mode": run.vllm.mode, "top_p": choice.top_p, "top_k": choice.top_k}
        if run.vllm.mode == "server":
            sampling["vllm_server_base_url"] = run.vllm.server
        else:
            sampling["vllm_gpu_memory_utilization"] = run.vllm.memory
    return GRPOConfig(
        max_steps=choice.steps * choice.updates,
        per_device_train_batch_size=choice.episodes_per_step // (choice.micro_batches * run.ranks.count),
        gradient_accumulation_steps=choice.micro_batches,
        steps_per_generation=choice.micro_batches,
        num_generations=choice.group_size,
        num_iterations=choice.updates,
        shuffle_dataset=False,  # the tasks are laid out in order, with mixed levels
        lr_scheduler_type=choice.schedule,
        warmup_steps=choice.warmup_steps * choice.updates,
        loss_type=choice.loss_type,
        importance_sampling_level=choice.ratio_level,
        epsilon=choice.epsilon,
        epsilon_high=choice.ratio_ceiling,
        multi_objective_aggregation=choice.aggregation,
        scale_rewards=choice.scale_rewards,
        reward_weights=[1.0 if run.columns_of else column.weight for column in run.columns],
        beta=choice.beta,
        temperature=choice.temperature,
        entropy_coef=choice.entropy_bonus,
        max_completion_length=run.longest_completion,
        logging_steps=1,
        log_completions=False,
        save_steps=run.save_every * choice.updates,
        **shared_arguments(run.model, choice, seed=run.seed, folder=run.folder, hardware=run.hardware),
        **sampling,
    )


class GrpoTrainer(TimedTrainer, GRPOTrainer):  # type: ignore[misc]
    """TRL's trainer with advantages by token, a temperature that changes, and the ratio to the sampler."""

    temperature: float
    _calculate_rewards = timed("_calculate_rewards", "reward")

    def __init__(
        self,
        *,
        token_advantages: Callable[[], list[list[float]] | None],
        importance_limit: float | None = None,
        **arguments: Any,
    ) -> None:
        """`token_advantages`: for each rollout one value per token or none; None keeps TRL's own advantages.

        `importance_limit`: correct for the policy that sampled, with weights up to this limit.
        """
        super().__init__(**arguments)
        for model in (self.model, self.ref_model):
            if model is not None:
                _skip_padding_positions(model)
        self._token_advantages, self._importance_limit = token_advantages, importance_limit
        self._scored: dict[str, torch.Tensor] | None = None
        self._can_share = self.accelerator.num_processes == 1 and can_share_prompts(self.model)
        self.ratios = NO_RATIOS
        """Training probabilities divided by sampling probabilities, in this step."""

    def set_temperature(self, temperature: float) -> None:
        """Set the temperature of log-probabilities, which must match the distribution that was sampled from.

        TRL compiles it into the forward method of the models; mixed precision may have wrapped that since.
        """
        if temperature == self.temperature:
            return
        for model in (self.model, self.ref_model):
            if model is not None:
                base = model.get_base_model() if isinstance(model, PeftModel) else model
                forward = getattr(base, "_original_forward", base.forward).__func__
                cells: dict[str, CellType] = dict(zip(forward.__code__.co_freevars, forward.__closure__, strict=True))
                cells["temperature"].cell_contents = temperature
        self.temperature = temperature

    def _generate_and_score_completions(self, inputs: list[dict[str, object]]) -> dict[str, torch.Tensor]:
        scored: dict[str, torch.Tensor] = super()._generate_and_score_completions(inputs)
        rows = self._token_advantages()
        if rows is not None:
            width = scored["completion_ids"].size(1)
            padded = [row + [0.0] * (width - len(row)) for row in rows]
            scored["advantages"] = torch.tensor(padded, device=scored["completion_ids"].device)
        return scored

    def _compute_loss(self, model: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        self._scored = inputs = dict(inputs)  # a copy: the weights of one update must not stay for the next
        try:
            with self.clock.counts("forward"):
                return super()._compute_loss(model, inputs)  # type: ignore[no-any-return]
        finally:
            self._scored = None

    def _get_per_token_logps_and_entropies(
        self, model: PreTrainedModel, *arguments: Any, **named: object
    ) -> tuple[torch.Tensor | None, ...]:
        result: tuple[Any, ...] | None = None
        with self.clock.counts("forward"):
            if self._scored is not None and self._can_share:
                with self.accelerator.autocast():
                    shared = score_completions(model, *arguments)
                result = None if shared is None else (*shared, None)
            result = result or super()._get_per_token_logps_and_entropies(model, *arguments, **named)
        if (scored := self._scored) is not None:
            mask_BT = scored["completion_mask"] * scored.get("tool_mask", 1)
            change_BT = (result[0].detach() - scored["sampling_per_token_logps"]).clamp(max=HIGHEST_LOG_RATIO)
            ratio_BT = change_BT.exp() * mask_BT
            figures = torch.stack([ratio_BT.sum(), mask_BT.sum().float(), ratio_BT.max()]).tolist()
            limited = 0.0
            if self._importance_limit is not None:
                limited = self._weight(scored, result[0], mask_BT, self._importance_limit)
            total, count, highest, before = self.ratios
            self.ratios = (total + figures[0], count + figures[1], max(highest, figures[2]), before + limited)
        return result

    def _weight(
        self, scored: dict[str, torch.Tensor], logps_BT: torch.Tensor, mask_BT: torch.Tensor, limit: float
    ) -> float:
        """Weight the advantages of the loss that is being computed. Returns the number of limited tokens.

        TRL multiplies the policy's part of a token's loss by such a weight only for vLLM. All losses but vespo are
        proportional to the advantage, so a weighted advantage is the same; vespo takes the weight itself.
        """
        old_BT = scored.get("old_per_token_logps", logps_BT)  # before the first of several updates
        weight_BT = truncated_weights(old_BT, scored["sampling_per_token_logps"], mask_BT, limit)
        if self.loss_type == "vespo":
            scored["importance_sampling_ratio"] = weight_BT
        else:
            advantages = scored["advantages"]
            scored["advantages"] = (advantages[:, None] if advantages.dim() == 1 else advantages) * weight_BT
        return float(((weight_BT >= limit) * mask_BT).sum())


def ratio_figures(sums: Sequence[RatioSums], *, is_weighted: bool = False) -> dict[str, float]:
    """Combine the ratios of all ranks. They are 1 if no token counted."""
    totals, counts, highest, limited = zip(*sums, strict=True)
    count = sum(counts)
    figures = {"ratio/mean": sum(totals) / count if count else 1.0, "ratio/max": max(highest) if count else 1.0}
    return figures | ({"ratio/truncated": sum(limited) / max(count, 1.0)} if is_weighted else {})


def _skip_padding_positions(model: PreTrainedModel) -> None:
    """Give the model position ids that do not count padding when it gets a mask but no positions.

    TRL pads short prompts on the left and passes no positions. A model then reads such episodes at other positions than
    it sampled them, and one with learned positions may run out of them.
    """

    def with_positions(
        _: torch.nn.Module, arguments: tuple[object, ...], named: dict[str, Any]
    ) -> tuple[tuple[object, ...], dict[str, Any]]:
        mask_BT = named.get("attention_mask")
        if mask_BT is None or mask_BT.dim() != 2:
            return arguments, named
        if named.get("position_ids") is not None or named.get("past_key_values"):
            return arguments, named
        return arguments, {**named, "position_ids": (mask_BT.long().cumsum(1) - 1).clamp(min=0)}

    base = model.get_base_model() if isinstance(model, PeftModel) else model
    if "position_ids" in inspect.signature(type(base).forward).parameters:
        model.register_forward_pre_hook(with_positions, with_kwargs=True)


class _Bridge(StageListener[GrpoRun]):
    trainer: GrpoTrainer

    def __init__(self, run: GrpoRun) -> None:
        super().__init__(run)
        self.token_advantages: list[list[float]] | None = None
        """Advantages of the rollouts that this rank learns from. None: TRL's own."""
        self._batch = PlayedBatch([], [])
        self._mean_tokens = 0.0
        self._updates: list[dict[str, float]] = []

    def on_train_begin(
        self, _: object, state: TrainerState, *__: object, lr_scheduler: LRScheduler, **___: object
    ) -> None:
        while lr_scheduler.last_epoch < state.global_step:  # a state without an optimizer has no schedule either
            lr_scheduler.step()
        self.reported_at = time.monotonic()

    def on_step_begin(self, _: object, state: TrainerState, *__: object, **___: object) -> None:
        """Apply changed settings before the first update of a step."""
        run = self.run
        if state.global_step % run.choice.updates:
            return
        step = state.global_step // run.choice.updates + 1
        ACTIVITY.begin(f"learning in step {step}")
        changed = run.controls.temperature

        def temperature_of(step: int) -> float:
            return run.choice.temperature_at(step) if changed is None else changed

        ahead = run.ahead
        planned = temperature_of(step) if ahead is None else ahead.order(step, run.model, temperature_of)
        self.rate_factor, temperature = run.ranks.decide(lambda: (run.controls.learning_rate_factor, planned))
        if run.policy is not None:
            run.policy.sampler.temperature = temperature
        self.trainer.set_temperature(temperature)

    def rollouts(self, prompts: list[list[dict[str, Any]]], trainer: GrpoTrainer) -> dict[str, Any]:
        """Return this rank's share of a step: TRL's `rollout_func`. The prompts repeat each group per member."""
        run = self.run
        step = trainer.state.global_step // run.choice.updates + 1
        with trainer.clock.counts("rollouts"):
            count = run.choice.tasks_per_step
            own = range(count)[run.ranks.shares(count)[run.ranks.number]]
            expected = [(step - 1) * count + ordinal for ordinal in own for _ in range(run.choice.group_size)]
            actual = [prompt[-1]["group"] for prompt in prompts]
            if actual != expected:
                raise BrokenStep(f"step {step}: the trainer sampled groups {actual[:3]}…, expected {expected[:3]}…")
            gather_weights(run.model)
            if not run.ranks.leads:
                rows: dict[str, Any] = play_for_leader(run.ranks, run.play_plans)
            else:
                run.sync_sampler()
                self._batch = play_batch(run, step)
                whole, shares = rows_of(run, self._batch), run.ranks.shares(run.choice.episodes_per_step)
                self._mean_tokens = sum(map(sum, whole["env_mask"])) / len(whole["env_mask"])
                parts = [{name: values and values[share] for name, values in whole.items()} for share in shares]
                rows = run.ranks.scatter(parts)
            shard_weights(run.model)
        self.token_advantages = rows.pop("token_advantages")
        return rows

    def on_save(self, _: object, state: TrainerState, *__: object, **___: object) -> None:
        if self.run.ahead is not None:
            self.run.ahead.save(self.run.folder / f"checkpoint-{state.global_step}")
        super().on_save(_, state)

    @staticmethod
    def values_of_column(column: str, values: list[dict[str, float] | None], **_: object) -> list[float | None]:
        """TRL's reward function of a column."""
        return [None if columns is None else columns.get(column, 0.0) for columns in values]

    def on_log(
        self, _: object, state: TrainerState, control: TrainerControl, logs: dict[str, float], **__: object
    ) -> TrainerControl:
        if "loss" not in logs:
            return control
        run, step = self.run, -(-state.global_step // self.run.choice.updates)
        if run.ranks.leads and not self._updates:
            # other tokens or rewards were counted if masks are wrong or columns are lost
            batch, ours = self._batch, {"completions/mean_length": self._mean_tokens}
            counted = [rollout.reward for place, rollout in enumerate(batch.rollouts) if place not in batch.masked]
            if rewards := [reward for reward in counted if reward is not None]:
                ours["reward"] = math.fsum(rewards) / len(rewards)
            for name, value in ours.items():
                theirs = logs.get(name)
                if theirs is None or abs(theirs - value) > TOLERANCE * max(1.0, abs(value)):
                    raise BrokenStep(f"step {step}: the trainer counted {name} {theirs}, expected {value:.6g}")
        self._updates.append(dict(logs))
        if state.global_step % run.choice.updates == 0:
            ratios = run.ranks.gather(self.trainer.ratios)
            self.trainer.ratios = NO_RATIOS
            gather_weights(run.model)
            if not run.ranks.decide(lambda: self._finish(step, ratios)):
                control.should_save = control.should_training_stop = True
            self._updates = []
        return control

    def _finish(self, step: int, ratios: list[RatioSums]) -> bool:
        """Pass the finished step to the run. Returns whether to continue."""
        rollouts = self._batch.rollouts
        advantages = list(self.trainer._logs["advantages"])[-len(rollouts) :]
        if self.run.score is not None and self.token_advantages is not None and self.run.ranks.count == 1:
            sums = (
                (math.fsum(row), sum(rollout.completion_mask or ()))
                for row, rollout in zip(self.token_advantages, rollouts, strict=True)
            )
            advantages = [total / count if count else 0.0 for total, count in sums]
        for place, (rollout, advantage) in enumerate(zip(rollouts, advantages, strict=True)):
            counts = rollout.is_completed and place not in self._batch.masked
            rollout.advantage = advantage if counts else None
        now = time.monotonic()
        seconds, self.reported_at = now - self.reported_at, now
        should_continue = self.run.on_step(self._step(step, seconds, ratios))
        self._batch = PlayedBatch([], [])
        self.reported_at += time.monotonic() - now  # the listener's time is not part of the step
        return should_continue

    def _step(self, step: int, seconds: float, ratios: list[RatioSums]) -> GrpoStep:
        spent = self.trainer.clock.take()
        figures = {
            "loss": math.nan,
            "entropy": math.nan,
            "grad_norm": max(update.get("grad_norm", math.nan) for update in self._updates),
            "learning_rate": self._updates[-1]["learning_rate"] * self.rate_factor,
            "lr_factor": self.rate_factor,
            "temperature": self.trainer.temperature,
            "groups/no_variance": self._batch.no_variance,
        }
        gaps = [each.metrics[TEACHER_KL] for each in self._batch.rollouts if TEACHER_KL in each.metrics]
        if gaps:
            figures[TEACHER_KL] = math.fsum(gaps) / len(gaps)
        figures |= ratio_figures(ratios, is_weighted=self.run.ahead is not None)
        if self.run.ahead is not None:
            figures |= self.run.ahead.figures()
        for name, curve in LOGGED.items():  # averages over the updates
            if values := [update[name] for update in self._updates if update.get(name) is not None]:
                figures[curve] = math.fsum(values) / len(values)
        parts = parts_of_step(spent, seconds, STEP_PARTS)
        return GrpoStep(step, [*self._batch.rollouts, *self._batch.replaced], figures, parts)
