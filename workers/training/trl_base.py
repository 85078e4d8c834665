"""Shared by both trainers of TRL: where their time goes, and a learning rate that changes between two steps."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class Clock:
    """Seconds by name since they were last taken. Each moment counts once, for the innermost activity."""

    def __init__(self, wait: Callable[[], None] = lambda: None) -> None:
        """`wait`: returns when the accelerator is idle, so that its work is counted where it was started."""
        self._wait = wait
        self._seconds: dict[str, float] = defaultdict(float)
        self._stack: list[list[float]] = []
        """For each activity in progress: its start, and the seconds of activities inside it."""

    @contextmanager
    def counts(self, name: str) -> Iterator[None]:
        self.begin()
        try:
            yield
        finally:
            self.end(name)

    def begin(self) -> None:
        """Start an activity whose name is given when it ends."""
        self._wait()
        self._stack.append([perf_counter(), 0.0])

    def end(self, name: str) -> None:
        self._wait()
        began, inner = self._stack.pop()
        seconds = perf_counter() - began
        self._seconds[name] += seconds - inner
        if self._stack:
            self._stack[-1][1] += seconds

    def take(self) -> dict[str, float]:
        """Return the seconds by name, and start again from zero."""
        seconds, self._seconds = self._seconds, defaultdict(float)
        return seconds


class TimedTrainer:
    """Mixin for a trainer of TRL: counts learning, the optimizer, padding and saved states."""

    def __init__(self, **arguments: object) -> None:
        super().__init__(**arguments)
        is_cuda = self.accelerator.device.type == "cuda"  # type: ignore[attr-defined]
        self.clock = Clock(torch.cuda.synchronize if is_cuda else lambda: None)
        self.learning_rate = LearningRate(self.clock)
        self.add_callback(self.learning_rate)  # type: ignore[attr-defined]

    def training_step(self, *arguments: object, **named: object) -> torch.Tensor:
        with self.clock.counts("backward"):
            return super().training_step(*arguments, **named)  # type: ignore[misc, no-any-return]

    def _prepare_inputs(self, *arguments: object) -> object:
        with self.clock.counts("other"):
            return super()._prepare_inputs(*arguments)  # type: ignore[misc]

    def _clip_grad_norm(self, *arguments: object) -> object:
        with self.clock.counts("optimiser"):
            return super()._clip_grad_norm(*arguments)  # type: ignore[misc]

    def _save_checkpoint(self, *arguments: object) -> None:
        with self.clock.counts("other"):
            super()._save_checkpoint(*arguments)  # type: ignore[misc]

    def create_model_card(self, *_: object, **__: object) -> None:
        """Render no model card with each state: they are only for a resume."""


class LearningRate(TrainerCallback):  # type: ignore[misc]
    """Multiplies the schedule's rate by `factor` during an update, and counts the optimizer's time.

    The rates are restored after each update, so that the schedule stays as planned.
    """

    def __init__(self, clock: Clock) -> None:
        self.factor = 1.0
        self._clock = clock
        self._planned: list[float] = []

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        optimizer: torch.optim.Optimizer,
        **_: object,
    ) -> None:
        self._planned = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] *= self.factor
        self._clock.begin()

    def on_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        optimizer: torch.optim.Optimizer,
        **_: object,
    ) -> None:
        self._clock.end("optimiser")
        for group, rate in zip(optimizer.param_groups, self._planned, strict=True):
            group["lr"] = rate
