"""Measure a training run before it starts: play a few episodes, and take some passes and real steps of both stages.

The steps change only the preflight's own weights.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice, pairwise
from pathlib import Path

import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl.trainer.utils import add_fused_lm_head

from backend.domain.results.pass_at_k import SuccessRule
from backend.domain.rollouts.rollout import Rollout
from backend.domain.training.memory import EpisodeLengths, ModelMeasures
from backend.domain.training.preflight.measured import NOTHING, Range, Speed, TaskSuccess
from backend.domain.vocabulary import Phase
from workers.models.chat import ChatTokens
from workers.models.policy import LocalPolicy
from workers.policies.base import Policy
from workers.rollouts.engine import GroupPlan, TooManyFailures
from workers.training.assignment import TrainingEnv
from workers.training.context import TrainingContext
from workers.training.curriculum import single_plans
from workers.training.examples import TrainingExample, example_of
from workers.training.grpo_batch import GrpoRun, GrpoStep
from workers.training.hardware import Hardware
from workers.training.sft import SftRun, train_sft
from workers.training.trl_grpo import train_grpo

EVALUATED = 32
MAX_SECONDS = 180.0  # then the episodes so far must suffice
_EPSILON = 1e-6
IGNORED = -100
PASSES = 2  # the first one warms up and is not timed if there are several
MEASURED_ROWS, MEASURED_TOKENS = (1, 3), 256  # of the passes that show what a token stores
SLOW_SECONDS = 20.0  # a longer pass is not repeated
SFT_STEPS = 6
GRPO_STEPS = 3  # the first of each warms up and is not counted
NEVER = 10**6  # steps between two saved states
TRIAL_SECONDS = 60.0  # steps whose passes alone would take longer are not tried
OVERHEAD = 2.5  # steps of small models took at most this many times their passes


@dataclass(slots=True)
class InitialPolicy:
    """The policy as training would start it."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    chat: ChatTokens
    hardware: Hardware


@dataclass(frozen=True, slots=True)
class PlayedEpisodes:
    rollouts: Sequence[Rollout]
    seconds: Range  # of one episode, played together with others
    failure: str  # why there are none
    examples: Sequence[TrainingExample]  # the completed ones as tokens

    @property
    def completed(self) -> list[Rollout]:
        return [rollout for rollout in self.rollouts if rollout.is_completed]

    @property
    def lengths(self) -> EpisodeLengths:
        """The longest episode, with the mean numbers of tokens before and from the first reply."""
        if not self.examples:
            return EpisodeLengths(0)
        count = len(self.examples)
        prompt = sum(len(example.prompt) for example in self.examples) // count
        scored = sum(len(example.completion) for example in self.examples) / count
        return EpisodeLengths(max(len(example.tokens) for example in self.examples), prompt, scored)

    @property
    def sampled_tokens(self) -> float:
        """Mean number of tokens that the policy wrote in an episode."""
        return sum(sum(each.mask) for each in self.examples) / len(self.examples) if self.examples else 0.0


def play_episodes(
    context: TrainingContext, parts: Sequence[Sequence[GroupPlan]], policy: Policy, chat: ChatTokens, phase: str
) -> PlayedEpisodes:
    """Play part after part, as training does: the episodes of a step run together and wait for the slowest."""
    rollouts: list[Rollout] = []
    seconds: list[float] = []
    total = sum(len(plan.members) for plans in parts for plan in plans)
    began = time.monotonic()

    def record(rollout: Rollout) -> None:
        rollouts.append(rollout)
        context.recorder.progress(phase=phase, done=len(rollouts), total=total)

    failure = ""
    try:
        for plans in parts:
            before, started = len(rollouts), time.monotonic()
            context.env_pool.play(
                plans,
                policy,
                phase=Phase.CHECK,
                seed=context.configuration.seed,
                on_rollout=record,
                should_stop=lambda: time.monotonic() - began > MAX_SECONDS,
            )
            seconds.append((time.monotonic() - started) / max(1, len(rollouts) - before))
    except TooManyFailures as error:
        failure = str(error)
    finally:
        context.env_pool.close_policy(policy)
    examples = [example_of(rollout, end=chat.end) for rollout in rollouts if rollout.is_completed]
    return PlayedEpisodes(rollouts, Range.of(seconds) if seconds else NOTHING, failure, examples)


def evaluation_seconds(context: TrainingContext, initial: InitialPolicy) -> float:
    """Seconds per episode of a held-out evaluation, measured on training tasks."""
    heldout = context.configuration.heldout
    is_bf16, temperature = initial.hardware.is_bf16, heldout.temperature
    policy = LocalPolicy(initial.model, initial.tokenizer, temperature=temperature, lockstep=True, is_bf16=is_bf16)
    plans = single_plans(context.assignment.envs, min(EVALUATED, heldout.tasks))
    context.recorder.progress(phase="measuring a held-out evaluation", done=0, total=len(plans))
    began = time.monotonic()
    try:
        context.env_pool.play_in_lockstep(plans, policy, phase=Phase.CHECK, seed=context.configuration.seed)
    finally:
        context.env_pool.close_policy(policy)
    return (time.monotonic() - began) / len(plans)


def successes(env: TrainingEnv, rule: SuccessRule, played: PlayedEpisodes) -> list[TaskSuccess]:
    """How often each task of this environment succeeded."""
    groups: dict[int, list[Rollout]] = defaultdict(list)
    for rollout in played.completed:
        if rollout.task.version_id == env.tag:
            groups[rollout.group].append(rollout)
    tasks = []
    for group in groups.values():
        succeeded = sum(rule.is_met(rollout.reward, rollout.columns) for rollout in group)
        rewards = [rollout.reward or 0.0 for rollout in group]
        is_uniform = max(rewards) - min(rewards) < _EPSILON
        tasks.append(TaskSuccess(group[0].task.level, succeeded, len(group), is_uniform))
    return tasks


@dataclass(frozen=True, slots=True)
class PassCost:
    """One forward and backward pass over `rows` conversations."""

    rows: int
    seconds: float
    peak_bytes: int  # GPU memory; 0 on a CPU


class OutOfGpuMemory(RuntimeError):
    """One part of a step did not fit into the GPU's memory."""


def measure_pass(initial: InitialPolicy, examples: Sequence[TrainingExample], rows: int) -> PassCost:
    """Time a forward and backward pass over the first `rows` examples, repeated if there are fewer. Keeps the weights.

    As in training, logits are computed only for learned tokens. Raises OutOfGpuMemory.
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
    _compute_learned_logits(model)
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
                model(**batch, use_cache=False, fused_lm_head=True).log_probs.mean().backward()
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


def _compute_learned_logits(model: PreTrainedModel) -> None:
    """Let the model compute logits as TRL's trainers do, with `fused_lm_head=True`."""
    add_fused_lm_head(model.get_base_model() if isinstance(model, PeftModel) else model)


def measures_of(initial: InitialPolicy, longest: int) -> ModelMeasures:
    """The sizes of a loaded model that the memory estimate needs, for episodes of up to `longest` tokens.

    The bytes that a token stores for the backward pass depend on architecture, adapter and precision, so they are
    measured with two forward passes of different size.
    """
    model = initial.model
    configuration = model.config.get_text_config()
    parameters = list(model.parameters())
    count = sum(parameter.numel() for parameter in parameters)
    size = sum(parameter.numel() * parameter.element_size() for parameter in parameters)
    heads, width = int(configuration.num_attention_heads), int(configuration.hidden_size)
    key_value_heads = int(getattr(configuration, "num_key_value_heads", None) or heads)
    head_width = int(getattr(configuration, "head_dim", None) or width // heads)
    tokens = min(longest, MEASURED_TOKENS)
    few, many = (_stored_bytes(initial, rows, tokens) for rows in MEASURED_ROWS)
    token_bytes = (many - few) / ((MEASURED_ROWS[1] - MEASURED_ROWS[0]) * tokens)
    return ModelMeasures(
        parameters=count,
        layers=int(configuration.num_hidden_layers),
        width=width,
        key_value_width=key_value_heads * head_width,
        vocabulary=int(configuration.vocab_size),
        token_bytes=token_bytes,
        rounded_bytes=max(0.0, few - token_bytes * MEASURED_ROWS[0] * tokens),
        weight_bytes=size / count,
    )


def _stored_bytes(initial: InitialPolicy, rows: int, tokens: int) -> int:
    """Return the number of bytes that the layers store for the backward pass, without the weights themselves."""
    model = initial.model
    _compute_learned_logits(model)
    device = next(model.parameters()).device
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    stored: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            stored[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.zeros((rows, tokens), dtype=torch.long, device=device)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": torch.full_like(ids, IGNORED)}
    was_training = model.training
    model.train()
    try:
        with (
            torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor),
            torch.autocast(device.type, torch.bfloat16, enabled=initial.hardware.is_bf16),
        ):
            model(**batch, use_cache=False, fused_lm_head=True)
    finally:
        model.train(was_training)
    return sum(stored.values())


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
    if configuration.imitates:
        passes = row_seconds * configuration.imitation.batch
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
    choice = context.configuration.imitation.model_copy(update={"steps": SFT_STEPS, "warmup_steps": 0})
    ended: dict[int, float] = {}

    def note(step: int, _: dict[str, float]) -> bool:
        ended.setdefault(step, time.monotonic())
        return True

    train_sft(
        SftRun(
            model=initial.model,
            tokenizer=initial.tokenizer,
            choice=choice,
            examples=examples,
            seed=0,
            folder=folder,
            save_every=NEVER,
            on_step=note,
            hardware=initial.hardware,
        )
    )
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
