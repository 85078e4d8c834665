"""TRL's SFTTrainer behind one door: lessons in, a warmed-up model out."""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback
from trl import SFTConfig, SFTTrainer

from backend.domain.training.warm_up import SftChoice
from workers.models.load import unrounded
from workers.training.clock import Clock
from workers.training.examples import BrokenStep, TrainingExample, lesson_order
from workers.training.hardware import FLOAT32, Hardware
from workers.training.ranks.ranks import ALONE, Ranks
from workers.training.ranks.weights import check_same
from workers.training.rate import Rate
from workers.training.resume import WithoutCard, mark_complete, newest_complete
from workers.training.timed import Timed

LOG_EVERY = 5
"""Steps."""

OnStep = Callable[[int, dict[str, float]], bool]
"""(step, figures; empty between logs) → whether to go on."""


def _planned(_: int) -> float:
    return 1.0


@dataclass(slots=True)
class SftRun:
    """What a warm-up is made of."""

    model: Any
    tokenizer: Any
    choice: SftChoice
    lessons: Sequence[TrainingExample]
    seed: int
    folder: Path
    """Where the trainer's own states are kept."""
    save_every: int
    on_step: OnStep
    """Of the leader."""
    hardware: Hardware = FLOAT32
    ranks: Ranks = ALONE
    rate_factor: Callable[[int], float] = _planned
    """Of the leader: what the schedule's rate of a step, from 1, is multiplied by."""


class _Trainer(WithoutCard, Timed, SFTTrainer):  # type: ignore[misc]
    """TRL's, with a clock."""

    def compute_loss(self, *arguments: Any, **named: Any) -> Any:
        with self.clock.counts("forward"):
            return super().compute_loss(*arguments, **named)


def train_sft(run: SftRun) -> None:
    """Train until the last step or until `on_step` says stop; goes on from the newest complete state in the folder."""
    listener = _Listener(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with unrounded(run.model):
            trainer = _Trainer(
                model=run.model,
                args=_arguments(run),
                train_dataset=_dataset(run),
                processing_class=run.tokenizer,
                callbacks=[listener],
            )
        trainer.remove_callback(PrinterCallback)
        listener.clock = trainer.clock
        newest = newest_complete(run.folder)
        trainer.train(resume_from_checkpoint=str(newest) if newest else None)


def _dataset(run: SftRun) -> Dataset:
    """Tokens with labels: TRL then neither renders nor masks anything itself."""
    if not run.lessons:
        raise BrokenStep("there are no lessons to learn from")
    order = lesson_order(run.lessons, batch=run.choice.batch, steps=run.choice.steps, seed=run.seed)
    columns = {
        "input_ids": [lesson.tokens for lesson in run.lessons],
        "labels": [lesson.labels for lesson in run.lessons],
    }
    return Dataset.from_dict(columns).select(order)


def _arguments(run: SftRun) -> SFTConfig:
    choice = run.choice
    on_cpu = next(run.model.parameters()).device.type == "cpu"
    return SFTConfig(
        output_dir=str(run.folder),
        max_steps=choice.steps,
        per_device_train_batch_size=choice.batch // run.ranks.count,
        learning_rate=choice.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=min(choice.warmup_steps, choice.steps // 2),
        adam_beta2=choice.adam_beta2,
        max_grad_norm=choice.max_grad_norm,
        weight_decay=0.0,
        seed=run.seed,
        max_length=None,
        packing=False,
        train_sampling_strategy="sequential",  # the lessons are laid out in order
        dataset_kwargs={"skip_prepare_dataset": True},
        # TRL turns these on unasked, also on a CPU
        bf16=run.hardware.is_bf16,
        gradient_checkpointing=run.hardware.checkpoints_gradients,
        use_cpu=on_cpu,
        report_to="none",
        logging_steps=LOG_EVERY,
        logging_nan_inf_filter=False,  # it would hide that the weights are spoiled
        disable_tqdm=True,
        dataloader_pin_memory=not on_cpu,
        save_strategy="steps",
        save_steps=run.save_every,
        save_total_limit=2,
    )


class _Listener(TrainerCallback):  # type: ignore[misc]
    """TRL's callbacks, turned into ours."""

    def __init__(self, run: SftRun) -> None:
        self.run = run
        self.clock = Clock()
        """The trainer's."""
        self._told_at = time.monotonic()
        self._told_step, self._told_tokens = 0, 0.0
        self._rate = Rate()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._told_at, self._told_step = time.monotonic(), state.global_step

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._rate.factor = self.run.ranks.agree(lambda: self.run.rate_factor(state.global_step + 1))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any, **_: Any) -> None:
        self._rate.lower(optimizer)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any, **_: Any) -> None:
        self._rate.put_back(optimizer)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        return self._report(state.global_step, {}, control)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> Any:
        if logs is None or "loss" not in logs:
            return control
        names = ("loss", "grad_norm", "learning_rate", "entropy", "mean_token_accuracy")
        figures = {name: float(logs[name]) for name in names if name in logs}
        if "learning_rate" in figures:
            figures["learning_rate"] *= self._rate.factor
        return self._report(state.global_step, figures | self._time(state.global_step, logs.get("num_tokens")), control)

    def _time(self, step: int, tokens: float | None) -> dict[str, float]:
        """Tokens a second, where the trainer counts them, and where a step's time went, since they were last told."""
        now, spent = time.monotonic(), self.clock.take()
        seconds, steps = now - self._told_at, max(1, step - self._told_step)
        speed = math.nan if tokens is None or seconds <= 0 else (tokens - self._told_tokens) / seconds
        self._told_at, self._told_step, self._told_tokens = now, step, tokens or 0.0
        parts = {name: spent[name] for name in ("forward", "backward", "optimiser", "other")}
        parts |= {"idle": max(0.0, seconds - sum(parts.values())), "step": seconds}
        return {"tokens_per_second": speed, **{f"seconds/{name}": value / steps for name, value in parts.items()}}

    def _report(self, step: int, figures: dict[str, float], control: Any) -> Any:
        began = time.monotonic()
        if not self.run.ranks.agree(lambda: self.run.on_step(step, figures)):
            control.should_save = True
            control.should_training_stop = True
        self._told_at += time.monotonic() - began  # what the listener does is no part of the steps
        return control

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        check_same(self.run.ranks, self.run.model)
        if self.run.ranks.leads:
            mark_complete(self.run.folder / f"checkpoint-{state.global_step}")
