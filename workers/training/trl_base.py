"""Shared by both trainers of TRL: where their time goes, a rate that changes between two steps, complete states."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, Generic, TypeVar

import torch
from accelerate.utils import save_fsdp_optimizer
from transformers import PreTrainedModel, TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer import SCHEDULER_NAME
from trl.trainer import utils as trl_utils

from backend.domain.training.grpo import GrpoChoice
from backend.domain.training.preferences import PreferenceChoice
from backend.domain.training.warm_up import SftChoice
from workers.training import sharding
from workers.training.checkpoints import mark_complete
from workers.training.hardware import Hardware
from workers.training.ranks import StageRun, check_same_weights

AnyRun = TypeVar("AnyRun", bound=StageRun)

# Where there is no Triton, such as on a CPU, TRL also computes the logits of prompts and padding, to discard them. With
# a large vocabulary that took most of a step's time and memory. This choice is the only use of the function there.
if not hasattr(trl_utils, "_use_triton"):
    raise ImportError("This version of TRL computes logits in another way. Install the version in constraints.txt.")
trl_utils._use_triton = lambda _: True


@dataclass(slots=True)
class Clock:
    """Seconds by name since they were last taken. Each moment counts once, for the innermost activity."""

    wait: Callable[[], None] = lambda: None
    """Returns when the accelerator is idle, so that its work is counted where it was started."""
    _seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _stack: list[list[float]] = field(default_factory=list)
    """For each activity in progress: its start, and the seconds of activities inside it."""

    @contextmanager
    def counts(self, name: str) -> Iterator[None]:
        self.begin()
        try:
            yield
        finally:
            self.end(name)

    def begin(self) -> None:
        self.wait()
        self._stack.append([perf_counter(), 0.0])

    def end(self, name: str) -> None:
        self.wait()
        began, inner = self._stack.pop()
        seconds = perf_counter() - began
        self._seconds[name] += seconds - inner
        if self._stack:
            self._stack[-1][1] += seconds

    def take(self) -> dict[str, float]:
        seconds, self._seconds = self._seconds, defaultdict(float)
        return seconds


def parts_of_step(
    spent: Mapping[str, float], seconds: float, names: Sequence[str] = ("forward", "backward", "optimiser", "other")
) -> dict[str, float]:
    """Return the timed parts of a step that took `seconds`, with its `step` and the `idle` rest."""
    parts = {name: spent[name] for name in names}
    return parts | {"idle": max(0.0, seconds - sum(parts.values())), "step": seconds}


def shared_arguments(
    model: PreTrainedModel,
    choice: SftChoice | GrpoChoice | PreferenceChoice,
    *,
    seed: int,
    folder: Path,
    hardware: Hardware,
) -> dict[str, Any]:
    on_cpu = next(model.parameters()).device.type == "cpu"
    return {
        "output_dir": str(folder),
        "learning_rate": choice.learning_rate,
        "adam_beta2": choice.adam_beta2,
        "max_grad_norm": choice.max_grad_norm,
        "weight_decay": 0.0,
        "seed": seed,
        # TRL's default is True, even on a CPU
        "bf16": hardware.is_bf16,
        "gradient_checkpointing": hardware.checkpoints_gradients,
        "use_cpu": on_cpu,
        "report_to": "none",
        "logging_nan_inf_filter": False,  # it would replace a spoiled loss with the mean of other steps
        "disable_tqdm": True,
        "dataloader_pin_memory": not on_cpu,
        "save_strategy": "steps",
        "save_total_limit": 2,
    }


def timed(method: str, name: str) -> Callable[..., object]:
    """Return an override of a trainer's method that counts its time under `name`."""

    def call(self: "TimedTrainer", *arguments: object, **named: object) -> object:
        with self.clock.counts(name):
            result: object = getattr(super(TimedTrainer, self), method)(*arguments, **named)
            return result

    return call


class TimedTrainer:
    """Mixin for a trainer of TRL: counts learning, the optimizer, padding and saved states."""

    training_step = timed("training_step", "backward")
    _prepare_inputs = timed("_prepare_inputs", "other")
    _clip_grad_norm = timed("_clip_grad_norm", "optimiser")
    _save_checkpoint = timed("_save_checkpoint", "other")

    def __init__(self, *, args: TrainingArguments, is_sharded: bool = False, **arguments: Any) -> None:
        self.is_sharded = is_sharded
        if is_sharded:
            sharding.shard(args)
        super().__init__(args=args, **arguments)  # type: ignore[call-arg]
        is_cuda = self.accelerator.device.type == "cuda"  # type: ignore[attr-defined]
        self.clock = Clock(torch.cuda.synchronize if is_cuda else lambda: None)

    def _prepare_for_training(self, *arguments: object, **named: object) -> tuple[torch.nn.Module, object]:
        prepared: tuple[torch.nn.Module, object] = super()._prepare_for_training(*arguments, **named)  # type: ignore[misc]
        if self.is_sharded and self.args.bf16:  # type: ignore[attr-defined]
            for model in filter(None, (prepared[0], getattr(self, "ref_model", None))):
                sharding.autocast(model, self.accelerator.device.type)  # type: ignore[attr-defined]
        return prepared

    def _save_optimizer_and_scheduler(self, folder: str) -> None:
        if not self.is_sharded:
            super()._save_optimizer_and_scheduler(folder)  # type: ignore[misc]
            return
        # transformers would also write the weights a second time, as a pickle
        save_fsdp_optimizer(self.accelerator.state.fsdp_plugin, self.accelerator, self.optimizer, self.model, folder)  # type: ignore[attr-defined]
        if self.args.should_save:  # type: ignore[attr-defined]
            torch.save(self.lr_scheduler.state_dict(), Path(folder) / SCHEDULER_NAME)  # type: ignore[attr-defined]

    def _load_from_checkpoint(self, folder: str, model: torch.nn.Module | None = None) -> None:
        if self.is_sharded:
            sharding.load_weights(self.model, Path(folder), reads=self.args.process_index == 0)  # type: ignore[attr-defined]
        else:
            super()._load_from_checkpoint(folder, model)  # type: ignore[misc]

    def create_model_card(self, *_: object, **__: object) -> None:
        """Render no model card with each state: they are only for a resume."""


class StageListener(TrainerCallback, Generic[AnyRun]):  # type: ignore[misc]
    """Turns TRL's callbacks into those of the run.

    Multiplies the scheduled rate by `rate_factor` during an update, and counts the optimizer's time. The rates are
    restored after each update, so that the schedule stays as planned.
    """

    trainer: TimedTrainer
    rate_factor = 1.0
    _planned_rates: Sequence[float] = ()

    def __init__(self, run: AnyRun) -> None:
        self.run = run
        self.reported_at = monotonic()

    def on_pre_optimizer_step(self, *_: object, optimizer: torch.optim.Optimizer, **__: object) -> None:
        self._planned_rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] *= self.rate_factor
        self.trainer.clock.begin()

    def on_optimizer_step(self, *_: object, optimizer: torch.optim.Optimizer, **__: object) -> None:
        self.trainer.clock.end("optimiser")
        for group, rate in zip(optimizer.param_groups, self._planned_rates, strict=True):
            group["lr"] = rate

    def on_save(self, _: object, state: TrainerState, *__: object, **___: object) -> None:
        check_same_weights(self.run.ranks, self.run.model)
        if self.run.ranks.leads:
            self.run.before_save()
            mark_complete(self.run.folder / f"checkpoint-{state.global_step}")
