"""What learning costs here: seconds and memory of one forward and backward pass over real conversations."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import torch

from backend.domain.training.memory import ModelMeasures
from workers.training.examples import TrainingExample
from workers.training.hardware import Hardware

IGNORED = -100
PASSES = 2
"""The first one warms up and is not timed, where there are several."""
SLOW_SECONDS = 20.0
"""A pass that takes longer is not repeated."""


@dataclass(frozen=True, slots=True)
class PassCost:
    """One pass over `rows` conversations."""

    rows: int
    seconds: float
    peak_bytes: int
    """Of the GPU's memory; 0 on a CPU."""


class DoesNotFit(RuntimeError):
    """The GPU's memory did not suffice for one part of a step."""


def measure_effort(model: Any, pad: int, lessons: Sequence[TrainingExample], rows: int, hardware: Hardware) -> PassCost:
    """Forward and backward of the first lessons, beginning anew where there are fewer; weights stay as they are."""
    batch = _batch(list(islice(cycle(lessons), rows)), pad, next(model.parameters()).device)
    if hardware.checkpoints_gradients:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    on_gpu = batch["input_ids"].device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    was_training = model.training
    model.train()
    try:
        with torch.autocast(batch["input_ids"].device.type, torch.bfloat16, enabled=hardware.is_bf16):
            seconds = _timed(model, batch)
    except torch.OutOfMemoryError as error:
        raise DoesNotFit(str(error)) from error
    finally:
        model.zero_grad(set_to_none=True)
        model.train(was_training)
    return PassCost(rows, seconds, torch.cuda.max_memory_allocated() if on_gpu else 0)


def _timed(model: Any, batch: dict[str, torch.Tensor]) -> float:
    seconds = 0.0
    for _ in range(PASSES):
        began = time.monotonic()
        model(**batch, use_cache=False).loss.backward()
        if batch["input_ids"].device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.monotonic() - began
        if seconds > SLOW_SECONDS:
            break
    return seconds


def _batch(lessons: Sequence[TrainingExample], pad: int, device: torch.device) -> dict[str, torch.Tensor]:
    width = max(len(lesson.tokens) for lesson in lessons)

    def padded(rows: Sequence[Sequence[int]], filler: int) -> torch.Tensor:
        return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows], device=device)

    return {
        "input_ids": padded([lesson.tokens for lesson in lessons], pad),
        "attention_mask": padded([[1] * len(lesson.tokens) for lesson in lessons], 0),
        "labels": padded([lesson.labels for lesson in lessons], IGNORED),
    }


def measures_of(model: Any) -> ModelMeasures:
    """What the memory estimate asks of a loaded model."""
    configuration = model.config.get_text_config()
    parameters = list(model.parameters())
    count = sum(parameter.numel() for parameter in parameters)
    size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    heads = int(configuration.num_attention_heads)
    width = int(configuration.hidden_size)
    key_value_heads = int(getattr(configuration, "num_key_value_heads", None) or heads)
    head_width = int(getattr(configuration, "head_dim", None) or width // heads)
    return ModelMeasures(
        parameters=count,
        layers=int(configuration.num_hidden_layers),
        width=width,
        heads=heads,
        key_value_width=key_value_heads * head_width,
        vocabulary=int(configuration.vocab_size),
        weight_bytes=size / count,
    )


def trained_count(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def memory_mb() -> int:
    """Where the model lies: the GPU's memory, else the machine's."""
    if torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(0).total_memory // 2**20)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
