"""Measure the cost of training on this worker: time and memory of a pass, and of some real steps of both stages.

The steps change only the preflight's own weights.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice, pairwise
from pathlib import Path

import torch
from transformers import PreTrainedModel

from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.memory import ModelMeasures
from backend.domain.training.preflight.measured import NOTHING, Range, Speed
from workers.training.context import TrainingContext
from workers.training.examples import TrainingExample
from workers.training.grpo_batch import GrpoRun, GrpoStep
from workers.training.preflight.play import InitialPolicy, PlayedEpisodes, evaluation_seconds
from workers.training.sft import SftRun, train_sft
from workers.training.trl_grpo import train_grpo

IGNORED = -100
PASSES = 2
"""The first one warms up and is not timed if there are several."""
SLOW_SECONDS = 20.0
"""A longer pass is not repeated."""
SFT_STEPS = 6
GRPO_STEPS = 3
"""The first of each warms up and is not counted."""
NEVER = 10**6
"""Steps between two saved states."""
TRIAL_SECONDS = 60.0
"""Steps whose passes alone would take longer are not tried."""
OVERHEAD = 2.5
"""Steps of small models took at most this many times their passes."""


@dataclass(frozen=True, slots=True)
class PassCost:
    """One forward and backward pass over `rows` conversations."""

    rows: int
    seconds: float
    peak_bytes: int
    """GPU memory; 0 on a CPU."""


class OutOfGpuMemory(RuntimeError):
    """One part of a step did not fit into the GPU's memory."""


def measure_pass(initial: InitialPolicy, examples: Sequence[TrainingExample], rows: int) -> PassCost:
    """Time a forward and backward pass over the first `rows` examples, repeated if there are fewer. Keeps the weights.

    Raises OutOfGpuMemory.
    """
    model, hardware = initial.model, initial.hardware
    device = next(model.parameters()).device
    chosen = list(islice(cycle(examples), rows))
    width = max(len(example.tokens) for example in chosen)
    columns = {
        "input_ids": ([example.tokens for example in chosen], initial.chat.tokenizer.pad_token_id),
        "attention_mask": ([[1] * len(example.tokens) for example in chosen], 0),
        "labels": ([example.labels for example in chosen], IGNORED),
    }
    batch = {
        name: torch.tensor([[*row, *[filler] * (width - len(row))] for row in values], device=device)
        for name, (values, filler) in columns.items()
    }
    if hardware.checkpoints_gradients:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    was_training = model.training
    model.train()
    seconds = 0.0
    try:
        with torch.autocast(device.type, torch.bfloat16, enabled=hardware.is_bf16):
            for _ in range(PASSES):
                began = time.monotonic()
                model(**batch, use_cache=False).loss.backward()
                if on_gpu:
                    torch.cuda.synchronize()
                seconds = time.monotonic() - began
                if seconds > SLOW_SECONDS:
                    break
    except torch.OutOfMemoryError as error:
        raise OutOfGpuMemory(str(error)) from error
    finally:
        model.zero_grad(set_to_none=True)
        model.train(was_training)
    return PassCost(rows, seconds, torch.cuda.max_memory_allocated() if on_gpu else 0)


def measures_of(model: PreTrainedModel) -> ModelMeasures:
    """The sizes of a loaded model that the memory estimate needs."""
    configuration = model.config.get_text_config()
    parameters = list(model.parameters())
    count = sum(parameter.numel() for parameter in parameters)
    size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    heads, width = int(configuration.num_attention_heads), int(configuration.hidden_size)
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


def memory_mb() -> int:
    """Memory of the device that holds the model: the GPU's, or else the machine's."""
    if torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(0).total_memory // 2**20)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20


def measure_speed(
    context: TrainingContext,
    initial: InitialPolicy,
    cost: PassCost,
    conversations: PlayedEpisodes,
    scripted: PlayedEpisodes | None,
    played: PlayedEpisodes,
) -> Speed:
    """Measure how long each part of the run takes. `conversations`: the episodes to train on.

    `scripted`, `played`: episodes of the scripted policy and of the policy before training.
    """
    configuration, folder = context.configuration, context.assignment.folder / "rehearsal"
    assumed: list[str] = []
    share = 1.0
    if configuration.recipe.has_sft and scripted and 0 < scripted.sampled_tokens < played.sampled_tokens:
        # an untrained policy writes up to its limit; after the warm-up it writes about as much as the scripted policy
        share = scripted.sampled_tokens / played.sampled_tokens
        assumed.append(
            f"after the warm-up the policy writes {scripted.sampled_tokens:,.0f} tokens per episode, like the scripted"
            f" policy, instead of {played.sampled_tokens:,.0f} now"
        )
    if configuration.hardware.processes > 1:
        assumed.append(f"one process does all the work, not {configuration.hardware.processes}")
    evaluated = evaluation_seconds(context, initial) * share

    def is_tried(seconds: float, step: str) -> bool:
        if configuration.engine == "transformers" and seconds < TRIAL_SECONDS:
            context.recorder.progress(phase=f"measuring {step}", done=0, total=1)
            return True
        assumed.append(f"{step} takes 1 to {OVERHEAD:g} times its forward and backward passes")
        return False

    row_seconds = cost.seconds / cost.rows
    sft_step = grpo_step = NOTHING
    if configuration.recipe.has_sft:
        passes = row_seconds * configuration.sft.batch
        sft_step = Range(passes, passes * OVERHEAD)
        if is_tried(passes * SFT_STEPS, "a warm-up step"):
            sft_step = _sft_step(context, initial, conversations.examples, folder / "sft")
    if configuration.recipe.has_grpo:
        grpo = configuration.grpo
        with_reference = 4 / 3 if grpo.beta > 0 else 1.0  # one more forward pass, a third of forward and backward
        passes = row_seconds * grpo.episodes_per_step * grpo.updates * with_reference
        grpo_step = Range(passes, passes * OVERHEAD)
        if is_tried(passes / grpo.micro_batches * GRPO_STEPS, "a GRPO update"):
            grpo_step = _grpo_step(context, initial, conversations.completed, folder / "grpo")
    return Speed(
        rollout=played.seconds.times(share),
        heldout=Range(evaluated, evaluated),
        scripted=scripted.seconds.low if scripted else 0.0,
        sft_step=sft_step,
        grpo_step=grpo_step,
        assumed=tuple(assumed),
    )


def _sft_step(
    context: TrainingContext, initial: InitialPolicy, examples: Sequence[TrainingExample], folder: Path
) -> Range:
    """Seconds of one step."""
    choice = context.configuration.sft.model_copy(update={"steps": SFT_STEPS, "warmup_steps": 0})
    ended: dict[int, float] = {}

    def note(step: int, _: dict[str, float]) -> bool:
        ended.setdefault(step, time.monotonic())
        return True

    train_sft(SftRun(initial.model, initial.tokenizer, choice, examples, 0, folder, NEVER, note, initial.hardware))
    return Range.of([after - before for before, after in pairwise(ended.values())])


def _grpo_step(context: TrainingContext, initial: InitialPolicy, rollouts: Sequence[Rollout], folder: Path) -> Range:
    """Seconds of a step after its episodes: one part of the step is trained, and its time is multiplied."""
    assignment, grpo = context.assignment, context.configuration.grpo
    parts = grpo.micro_batches if grpo.tasks_per_step % grpo.micro_batches == 0 else 1
    update = {
        "steps": GRPO_STEPS,
        "tasks_per_step": grpo.tasks_per_step // parts,
        "micro_batches": grpo.micro_batches // parts,
        "replace_uniform": 0,
    }
    model = initial.model
    if not model.config.name_or_path:  # TRL loads the reference policy from there, as in a run
        model.save_pretrained(folder / "start")
        model.config.name_or_path = str(folder / "start")
    steps: list[GrpoStep] = []

    def note(step: GrpoStep) -> bool:
        steps.append(step)
        return True

    def play(_: int, ordinals: Sequence[int]) -> list[Rollout]:
        """Copies of the rollouts in the places of a step. Scripted rollouts have no log-probabilities; any will do."""
        source = cycle(rollouts)
        copies = []
        for group in ordinals:
            for member in range(grpo.group_size):
                rollout = next(source)
                logprobs = list(rollout.logprobs or [0.0] * len(rollout.completion_mask or ()))
                copy = replace(rollout, group=group, member=member, logprobs=logprobs, metrics=dict(rollout.metrics))
                copies.append(copy)
        return copies

    train_grpo(
        GrpoRun(
            model=model,
            tokenizer=initial.tokenizer,
            choice=grpo.model_copy(update=update),
            columns=assignment.columns,
            seed=0,
            folder=folder,
            save_every=NEVER,
            play=play,
            on_step=note,
            columns_of=assignment.columns_of if assignment.is_mixed else None,
            hardware=initial.hardware,
        )
    )
    return Range.of([(step.seconds["step"] - step.seconds["rollouts"]) * parts for step in steps[1:]])
