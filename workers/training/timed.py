"""Where the time of a trainer goes. What it counts itself: learning, the optimiser, padding, saved states."""

from typing import Any

import torch
from transformers import TrainerCallback

from workers.training.clock import Clock


class Timed:
    """Of a trainer of TRL."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        is_cuda = self.accelerator.device.type == "cuda"  # type: ignore[attr-defined]
        self.clock = Clock(torch.cuda.synchronize if is_cuda else lambda: None)
        self.add_callback(_OptimiserClock(self.clock))  # type: ignore[attr-defined]

    def training_step(self, *arguments: Any, **named: Any) -> Any:
        with self.clock.counts("backward"):
            return super().training_step(*arguments, **named)  # type: ignore[misc]

    def _prepare_inputs(self, *arguments: Any) -> Any:
        with self.clock.counts("other"):
            return super()._prepare_inputs(*arguments)  # type: ignore[misc]

    def _clip_grad_norm(self, *arguments: Any) -> Any:
        with self.clock.counts("optimiser"):
            return super()._clip_grad_norm(*arguments)  # type: ignore[misc]

    def _save_checkpoint(self, *arguments: Any) -> None:
        with self.clock.counts("other"):
            super()._save_checkpoint(*arguments)  # type: ignore[misc]


class _OptimiserClock(TrainerCallback):  # type: ignore[misc]
    """Around its step."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._clock.begin()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._clock.end("optimiser")
