"""The configuration of a training run: every setting, with a default that works.

The launch form, the JSON API and the command line derive from it. Tested configurations are in `presets`.
"""

import math
import uuid
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from backend.domain.environments.manifest import Manifest
from backend.domain.training.adapter import AdapterChoice, AdapterKind
from backend.domain.training.alarms import AlarmsChoice, DetectorsChoice
from backend.domain.training.blocks import Block, Card, setting
from backend.domain.training.budget import BudgetChoice
from backend.domain.training.distillation import DistillationChoice
from backend.domain.training.grpo import CurriculumChoice, GrpoChoice
from backend.domain.training.mix import Mix
from backend.domain.training.preferences import PreferenceChoice
from backend.domain.training.rejection import RejectionChoice
from backend.domain.training.self_play import SelfPlayChoice
from backend.domain.training.warm_up import GateChoice, SftChoice

Engine = Literal["transformers", "vllm", "unsloth"]
Pieces = Literal["signs", "phrases"]


class Recipe(StrEnum):
    """Which stages a training run has."""

    SFT_THEN_GRPO = "sft_then_grpo"
    SFT = "sft"
    GRPO = "grpo"
    REJECTION_SAMPLING = "rejection_sampling"
    DPO = "dpo"
    DISTILLATION = "distillation"

    @property
    def has_sft(self) -> bool:
        """Whether it has the warm-up."""
        return self in {Recipe.SFT_THEN_GRPO, Recipe.SFT}

    @property
    def has_grpo(self) -> bool:
        """Whether it has the stage that learns from its own rollouts at each step."""
        return self in {Recipe.SFT_THEN_GRPO, Recipe.GRPO, Recipe.DISTILLATION}


class Stage(StrEnum):
    """The stage after which a checkpoint was saved."""

    UNTRAINED = "untrained"
    SFT = "sft"
    GRPO = "grpo"
    ROUND = "round"
    """A round of rejection sampling."""
    DPO = "dpo"


STEPPED = frozenset({Stage.GRPO, Stage.ROUND, Stage.DPO})
"""Stages whose held-out results are points of the run's curves at the checkpoint's own step. Those of a warm-up are at
step 0 of the stage that follows."""


class ModelChoice(Block):
    """Weights to start from."""

    title: ClassVar[str] = "Policy"

    source: Literal["scratch", "checkpoint", "base"] = setting(
        "scratch",
        "Start from",
        is_basic=True,
        cards=(
            Card("scratch", "From scratch", "A small model created here. Nothing is downloaded."),
            Card("base", "Hugging Face model or folder", "A Hugging Face name or a folder on the worker."),
            Card("checkpoint", "Checkpoint", "Weights of an earlier run."),
        ),
    )
    """scratch: a small model created here; nothing is downloaded. checkpoint: weights of an earlier run. base: a
    Hugging Face model or a folder on the worker, for tasks that need a model that can read and reason. Lower the
    learning rates for a base; the presets show suitable values."""
    size: Literal["tiny", "mini", "small", "medium"] = setting("tiny", is_basic=True, only="model.source=scratch")
    """Models from scratch only: about 0.1, 0.2, 0.9 or 4 million parameters. tiny learns a small game in minutes on one
    core. Use a larger model if the training reward stays low although replies are parsed."""
    architecture: Literal["gpt2", "llama"] = setting("gpt2", only="model.source=scratch")
    """Models from scratch only. gpt2 is faster on a CPU. Use llama to test tools on the architecture of larger
    models."""
    context: int = setting(256, "Context length", only="model.source=scratch", ge=64, le=4096)
    """Models from scratch only: maximum length of a conversation in tokens. Raise it if the pre-flight finds
    conversations that do not fit. Memory and time depend on the actual length, not on this limit."""
    vocabulary: int = setting(384, "Vocabulary size", only="model.source=scratch", ge=300, le=4096)
    """Models from scratch only: maximum number of tokens, learned from the text of the environment. More tokens make
    conversations shorter and the model larger."""
    pieces: Pieces = setting("signs", "Tokenization", only="model.source=scratch")
    """Models from scratch only. signs: tags, digits, capitals and punctuation are separate tokens, so the model can
    read numbers and boards. phrases: only tags are separate, so a whole message becomes one token; faster to learn if
    the environment has few different messages, such as `O plays 5.`. Rare messages are encoded as bytes."""
    initializer_range: float = setting(0.1, only="model.source=scratch", gt=0, le=1)
    """Models from scratch only: standard deviation of the initial weights. Tiny models do not leave the plateau at the
    usual 0.02. Try 0.15 if the SFT loss stays flat."""
    checkpoint: uuid.UUID | None = setting(
        None, is_basic=True, only="model.source=checkpoint", is_wide=True, chosen_from="checkpoints"
    )
    """Checkpoint to start from. Usually the best one by held-out reward; an earlier one if the reward was hacked."""
    base: str = setting(
        "", "Model name or folder", is_basic=True, only="model.source=base", is_wide=True, max_length=300
    )
    """Hugging Face name or folder of the base model. Weights must be safetensors; code of the model is never run.
    Prefer an instruct model: it has a chat template and learns the format of the environment sooner."""

    @model_validator(mode="after")
    def _complete(self) -> "ModelChoice":
        if self.source == "checkpoint" and self.checkpoint is None:
            raise ValueError("choose the checkpoint to start from")
        if self.source == "base" and not self.base.strip():
            raise ValueError("name the base model to start from")
        return self


class HeldoutChoice(Block):
    """Evaluate on the same held-out tasks, which are never trained on."""

    title: ClassVar[str] = "Held-out evaluation"

    every: int = setting(20, "Steps between evaluations", is_basic=True, ge=1)
    """Steps of GRPO or DPO between held-out evaluations, which select the best checkpoint. Fewer steps miss less and
    take more time."""
    tasks: int = setting(100, "Held-out tasks", is_basic=True, ge=1, le=100_000)
    """Number of held-out tasks, one episode each, the same every time. 100 tasks distinguish success rates that differ
    by 10 points; 1,000 by 3. Raise it to distinguish the best checkpoint from a lucky one; lower it if evaluations
    take most of the time."""
    temperature: float = Field(default=1.0, ge=0, le=5)
    """Sampling temperature. Use 1 to evaluate the policy that is trained; 0 (greedy) if it will be used greedily."""


class CheckpointChoice(Block):
    """How often the trainer saves its state, and which checkpoints keep their weights. The run deletes the weights of
    the others after each held-out evaluation."""

    title: ClassVar[str] = "Checkpoints"

    every: int = setting(10, "Steps between saved states", ge=1)
    """Steps between saved trainer states, from which an interrupted run resumes. Lower it to lose less work in a crash;
    raise it for large models."""
    keep_last: int = setting(5, "Latest checkpoints to keep", ge=1, le=1_000_000)
    """Number of latest GRPO checkpoints that keep their weights. The run deletes the weights of older ones after each
    held-out evaluation and keeps their results. The untrained, warm-up and best checkpoints, and marked ones and ones
    in use, are always kept."""
    keep_every: int = setting(0, "Keep every Nth step", ge=0, le=1_000_000)
    """Also keep the weights of the GRPO checkpoint of every Nth step. 0: none; 1: all. Use it to study a long run or to
    branch from far back."""


class HardwareChoice(Block):
    """Device and precision of the model."""

    title: ClassVar[str] = "Device and precision"

    device: Literal["auto", "cpu", "cuda"] = setting("auto")
    """auto: the GPU if the worker has one. cpu: leave the GPU alone. cuda: fail at once if there is no GPU."""
    precision: Literal["auto", "float32", "bf16"] = setting("auto")
    """Precision of matrix products in training and sampling; weights and optimizer state are not affected. auto: bf16
    on a GPU that supports it, else float32. Use float32 to match a run on a CPU, and bf16 for a pretrained model on a
    CPU with bf16 instructions; on other CPUs it is float32, which is faster there."""
    gradient_checkpointing: bool = setting(False)
    """Recompute activations in the backward pass instead of storing them: about a third slower, with much less memory.
    Try more `grpo.micro_batches` first."""
    processes: int = setting(1, ge=1, le=64)
    """Number of processes that train together, one per GPU of the worker. They share the groups of a step and the batch
    of the warm-up evenly, so `grpo.tasks_per_step` and `sft.batch` must be divisible by it. Each has its own
    `concurrency` and `servers`. The first process runs the held-out evaluations. On a CPU only for testing. Raise it if
    the worker has several GPUs."""
    nodes: int = setting(1, ge=1, le=64)
    """Number of machines over which the processes are divided evenly. More than one needs a worker that leads such a
    group, with a shared data folder. Use it if one machine has too few GPUs."""
    rank_timeout: int = setting(300, "Rank timeout", ge=2, le=86_400)
    """Several processes only: seconds without a sign of life after which a process counts as hung. The attempt then
    ends, names the process, and the run continues from its last saved state. Raise it if the shared folder is slow."""
    start_timeout: int = setting(300, "Start timeout", ge=2, le=86_400)
    """Several processes only: seconds until the first sign of life of each process, in which it starts Python and loads
    its libraries. The attempt then ends, names the process, and is tried again. Raise it if the libraries are on a slow
    disk."""
    sharding: Literal["none", "fsdp2"] = setting("none")
    """Several processes only. none: each process holds the whole model, its gradients and the optimizer state. fsdp2:
    each holds only its part and the layer it works on while it learns, and the whole weights while it samples. Use
    fsdp2 if a model does not fit into the memory of one GPU to train but does to sample; it is slower."""

    @property
    def processes_per_node(self) -> int:
        return max(1, self.processes // self.nodes)


class VllmChoice(Block):
    """How vLLM samples training episodes. Only for the engine vllm."""

    title: ClassVar[str] = "vLLM"
    only: ClassVar[str] = "engine=vllm"

    mode: Literal["colocate", "server", "lora"] = setting("colocate", "vLLM mode")
    """colocate: in the training process, on the same GPU. server: a running `trl vllm-serve` on separate GPUs, which
    receives the weights before each step. lora: a running `vllm serve --enable-lora`, which receives only the adapter,
    through a folder that both see. Use server or lora with several GPUs if sampling takes most of the time."""
    memory: float = setting(0.3, "vLLM GPU memory", only="vllm.mode=colocate", gt=0, lt=1)
    """Colocate only: share of GPU memory for vLLM. Raise it if vLLM cannot start or samples few episodes at a time;
    lower it if the training step runs out of memory."""
    server: str = setting("", "vLLM server", only="vllm.mode=server|lora", max_length=300)
    """Server and lora only: its URL, such as `http://127.0.0.1:8000`. Use it if vLLM runs on GPUs that this run does
    not train on."""


class TrainingConfiguration(Block):
    """All settings of a training run."""

    recipe: Recipe = setting(
        Recipe.SFT_THEN_GRPO,
        is_basic=True,
        cards=(
            Card(
                "sft_then_grpo",
                "SFT, then GRPO",
                "Learn from examples, then from rewards. For models that know nothing of the task.",
            ),
            Card("sft", "SFT only", "Learn from examples only. For a warm-up for other runs, or to copy good play."),
            Card("grpo", "GRPO only", "Learn from rewards only. For a model or checkpoint that sometimes succeeds."),
            Card(
                "rejection_sampling",
                "Rejection sampling",
                "Sample, keep the best episodes, learn from them by SFT, repeat. Simple and stable.",
            ),
            Card(
                "distillation",
                "Distillation",
                "Play, and learn from a better model that scores each token. For a small model with a strong teacher.",
            ),
            Card("dpo", "Preferences (DPO)", "Learn from pairs of stored episodes: verdicts, or better rewards."),
        ),
    )
    """Stages of the run. Start with SFT if the model knows nothing of the task, use GRPO alone if it sometimes
    succeeds, and SFT alone to copy good play. Rejection sampling also needs a model that sometimes succeeds; it learns
    more slowly than GRPO and is harder to break. DPO needs stored episodes of the same tasks that differ in verdict or
    reward."""
    model: ModelChoice = ModelChoice()
    """Weights to start from."""
    adapter: AdapterChoice = AdapterChoice()
    """Weights that are trained."""
    sft: SftChoice = SftChoice()
    """The warm-up."""
    gate: GateChoice = GateChoice()
    """Minimum results of the warm-up."""
    grpo: GrpoChoice = GrpoChoice()
    """GRPO."""
    curriculum: CurriculumChoice = CurriculumChoice()
    """Levels of the tasks."""
    self_play: SelfPlayChoice = SelfPlayChoice()
    """Opponents in games."""
    rejection: RejectionChoice = RejectionChoice()
    """Rounds of rejection sampling."""
    distillation: DistillationChoice = DistillationChoice()
    """Teacher of a distillation."""
    preferences: PreferenceChoice = PreferenceChoice()
    """Pairs for DPO."""
    mix: Mix = setting([], "Environments and weights", is_wide=True, section="mix")
    """Further environments to train on, as `name@3=0.5`, separated by commas; version and weight are optional. The
    run's own environment has weight 1. Every step and every held-out evaluation has tasks of all environments. Use it
    if one policy should play them all, or if it forgets one while it learns another."""
    heldout: HeldoutChoice = HeldoutChoice()
    """Held-out evaluation."""
    checkpoints: CheckpointChoice = CheckpointChoice()
    """Saved weights and states."""
    budget: BudgetChoice = BudgetChoice()
    """Limits."""
    alarms: AlarmsChoice = AlarmsChoice()
    """Problems to watch for."""
    detectors: DetectorsChoice = DetectorsChoice()
    """Actions of detectors."""
    hardware: HardwareChoice = HardwareChoice()
    """Device and precision."""
    vllm: VllmChoice = VllmChoice()
    """Sampling with vLLM."""
    seed: int = setting(0, is_basic=True, ge=0, lt=2**31)
    """The same seed on the same machine gives the same run. Repeat a run with another seed to see how much of its
    result is chance."""
    engine: Engine = setting("transformers", section="machine")
    """Selects the worker queue: gpu (transformers, any machine), gpu-vllm or gpu-unsloth. Use vllm or unsloth only if
    such a worker is online."""
    concurrency: int = setting(256, "Concurrent episodes", section="machine", ge=1, le=4096)
    """Maximum number of episodes sampled at the same time. Raise it to use the processor better, until memory runs out
    or the environment is overloaded."""
    max_tokens_per_turn: int | None = setting(None, "Longest reply (tokens)", section="machine", ge=1, le=131072)
    """Replies are cut after this number of tokens; empty for the environment's own limit. Lower it if right replies are
    short: a model that does not know the task yet writes at length, and a batch waits for its longest reply."""
    servers: int = setting(1, "Env servers", section="machine", ge=1, le=64)
    """Number of env servers. More help if stepping the environment takes most of the time (see the time split of the
    run); each needs memory."""
    threads: int = setting(1, "CPU threads", section="machine", ge=1, le=256)
    """CPU threads of the trainer. More than one only helps if nothing else needs the cores."""

    @classmethod
    def of_run(cls, configuration: Mapping[str, Any]) -> "TrainingConfiguration":
        """Read the settings from the stored configuration of a run, which also has other keys."""
        return cls.model_validate({name: configuration[name] for name in cls.model_fields if name in configuration})

    def resolved(self) -> dict[str, Any]:
        """Return all settings with their defaults, as JSON."""
        return self.model_dump(mode="json")

    def played(self, manifest: Manifest) -> Manifest:
        """Return the environment as the run plays it: never with longer replies than the environment's own limit."""
        own = manifest.proctor.episode.max_tokens_per_turn
        return manifest.with_reply_limit(min(own, self.max_tokens_per_turn or own))

    def problems(self, *, scripts: list[str], levels: int, has_seats: bool = False) -> list[str]:
        found = self._problems_of_self_play(has_seats=has_seats)
        if self.recipe.has_sft and self.sft.uses("script") and self.sft.script not in scripts:
            offered = ", ".join(scripts) or "none"
            found.append(f"The environment has no scripted policy `{self.sft.script}`; it has: {offered}.")
        given, environments = self.grpo.levels, len(self.mix) + 1
        if given is not None and self.curriculum.kind == "adaptive":
            found.append(
                "The adaptive curriculum selects the levels. Leave grpo.levels empty, or set curriculum.kind=fixed."
            )
        elif given is not None and len(given) > levels and not self.mix:
            found.append(f"grpo.levels has {len(given)} shares; the environment has {levels} levels.")
        elif given is not None and sum(given[:levels]) <= 0:
            found.append(f"grpo.levels gives no share to any of the environment's {levels} levels.")
        if self.recipe.has_grpo and self.grpo.tasks_per_step < environments:
            found.append(f"A step of {self.grpo.tasks_per_step} tasks is too small for {environments} environments.")
        if not self.recipe.has_sft and self.model.source == "scratch":
            found.append("An untrained model cannot write replies. Start with SFT, or start from a checkpoint.")
        if self.adapter.kind is not AdapterKind.FULL and self.model.source == "scratch":
            found.append("A model from scratch has no pretrained weights to adapt. Set adapter.kind=full.")
        if self.engine == "vllm" and self.vllm.mode != "colocate" and not self.vllm.server:
            found.append("Set vllm.server to the URL of the vLLM server.")
        if self.engine == "vllm" and self.vllm.mode == "lora" and self.adapter.kind is not AdapterKind.LORA:
            found.append("With vllm.mode=lora, the server receives an adapter. Set adapter.kind=lora.")
        elif self.engine == "vllm" and self.vllm.mode != "lora" and self.hardware.device == "cpu":
            found.append("vLLM needs a GPU. Set hardware.device=auto, or use another engine.")
        count = self.hardware.processes
        if count > 1 and self.engine != "transformers":
            found.append(f"Several processes need the engine transformers, not {self.engine}. Change one of the two.")
        if self.samples_ahead:
            where = "Sampling ahead (grpo.staleness) needs"
            if self.engine != "transformers":
                found.append(f"{where} the engine transformers, not {self.engine}. Change one of the two.")
            if count > 1:
                found.append(f"{where} hardware.processes=1: the second process samples.")
            if self.recipe is Recipe.DISTILLATION:
                found.append("Distillation scores episodes of the latest policy. Set grpo.staleness=0.")
        if count % self.hardware.nodes:
            found.append(
                f"{count} processes cannot be divided among {self.hardware.nodes} nodes. Set hardware.processes to a "
                "multiple of hardware.nodes."
            )
        if self.hardware.sharding != "none":
            if count == 1:
                found.append("Sharding divides a model among several processes. Raise hardware.processes.")
            if self.adapter.kind is AdapterKind.QLORA:
                found.append("A 4-bit base cannot be sharded. Set adapter.kind=lora or hardware.sharding=none.")
        if self.recipe is Recipe.DISTILLATION:
            if missing := self.distillation.problem():
                found.append(missing)
            grpo = self.grpo
            if (grpo.temperature, grpo.temperature_end or 1.0, grpo.top_p, grpo.top_k) != (1.0, 1.0, 1.0, 0):
                found.append("A teacher scores samples at temperature 1, without top-p and top-k. Reset them (grpo).")
            if grpo.ratio_level == "sequence" or grpo.loss_type == "vespo":
                found.append("Distillation needs token-level ratios: use the loss dapo (grpo.loss_type).")
        if self.recipe is Recipe.DPO and count > 1:
            found.append("DPO trains in one process. Set hardware.processes=1.")
        if self.recipe is Recipe.DPO and self.preferences.batch % self.preferences.micro_batches:
            found.append("preferences.batch cannot be divided into preferences.micro_batches.")
        if self.imitates and self.imitation.batch % count:
            name = "sft.batch" if self.recipe.has_sft else "rejection.batch"
            found.append(f"The batch of {self.imitation.batch} cannot be divided among {count} processes ({name}).")
        if self.recipe.has_grpo and self.grpo.tasks_per_step % count:
            found.append(
                f"{self.grpo.tasks_per_step} groups per step cannot be divided among {count} processes. Set "
                f"grpo.tasks_per_step to a multiple of {count}."
            )
        elif self.recipe.has_grpo and self.grpo.episodes_per_step // count % self.grpo.micro_batches:
            found.append(
                f"Each of {count} processes learns from {self.grpo.episodes_per_step // count} episodes per step, which"
                f" cannot be divided into {self.grpo.micro_batches} micro-batches (grpo.micro_batches)."
            )
        return found

    def _problems_of_self_play(self, *, has_seats: bool) -> list[str]:
        if not self.self_play.every:
            return []
        found = []
        if not has_seats:
            found.append("The environment declares no seats, so there is no opponent. Set self_play.every=0.")
        if self.recipe not in {Recipe.GRPO, Recipe.SFT_THEN_GRPO}:
            found.append("Self-play is a part of GRPO. Set recipe=grpo or sft_then_grpo, or self_play.every=0.")
        if self.engine == "vllm":
            found.append("Self-play samples several models. Use another engine than vllm.")
        if self.grpo.staleness:
            found.append("Self-play needs the latest ratings. Set grpo.staleness=0.")
        if self.hardware.processes > 1:
            found.append("Self-play runs in one process. Set hardware.processes=1.")
        if self.mix:
            found.append("Self-play trains on one environment. Leave mix empty.")
        return found

    @property
    def samples_ahead(self) -> bool:
        """Whether a second process samples while the first learns."""
        return self.recipe.has_grpo and self.grpo.staleness > 0

    @property
    def imitates(self) -> bool:
        """Whether a stage of the run learns examples by SFT."""
        return self.recipe.has_sft or self.recipe is Recipe.REJECTION_SAMPLING

    @property
    def imitation(self) -> SftChoice:
        """The settings of the stage that learns examples by SFT."""
        return self.rejection.sft if self.recipe is Recipe.REJECTION_SAMPLING else self.sft

    @property
    def total_steps(self) -> int:
        if self.recipe is Recipe.REJECTION_SAMPLING:
            return self.rejection.rounds
        if self.recipe is Recipe.DPO:
            return self.preferences.steps_for(self.preferences.most)
        sft = self.sft.steps if self.recipe.has_sft else 0
        return sft + (self.grpo.steps if self.recipe.has_grpo else 0)

    @property
    def sampled_rollouts(self) -> int:
        """Number of episodes that the policy samples to learn from."""
        if self.recipe is Recipe.REJECTION_SAMPLING:
            return self.rejection.episodes
        return self.grpo.steps * self.grpo.episodes_per_step if self.recipe.has_grpo else 0

    @property
    def total_rollouts(self) -> int:
        """Approximate number of episodes."""
        count = self.heldout.tasks
        if self.recipe.has_sft:
            count += self.sft.scripted_episodes + self.heldout.tasks
        count += self.sampled_rollouts
        if self.recipe.has_grpo:
            count += math.ceil(self.grpo.steps / self.heldout.every) * self.heldout.tasks
        if self.recipe is Recipe.REJECTION_SAMPLING:
            count += self.rejection.rounds * self.heldout.tasks
        return count + (self.heldout.tasks if self.recipe is Recipe.DPO else 0)


def batch_in_words(configuration: TrainingConfiguration) -> str:
    """`20 tasks × 8 episodes = 160 rollouts per step; 100 steps = 16,000 rollouts; 4 micro-batches of 40`"""
    parts = []
    if configuration.recipe.has_sft:
        sft = configuration.sft
        parts.append(f"SFT: {sft.steps:,} steps × {sft.batch:,} = {sft.steps * sft.batch:,} conversations")
    if configuration.recipe.has_grpo:
        grpo, processes = configuration.grpo, configuration.hardware.processes
        step = grpo.episodes_per_step
        micro_batches = "one batch" if grpo.micro_batches == 1 else f"{grpo.micro_batches:,} micro-batches"
        parts += [
            f"{grpo.tasks_per_step:,} tasks × {grpo.group_size:,} episodes = {step:,} rollouts per step",
            f"{grpo.steps:,} steps = {grpo.steps * step:,} rollouts",
            f"{micro_batches} of {step // grpo.micro_batches:,}"
            + ("" if processes == 1 else f", divided among {processes:,} processes"),
        ]
    if configuration.recipe is Recipe.REJECTION_SAMPLING:
        choice = configuration.rejection
        parts += [
            f"{choice.tasks:,} tasks × {choice.samples:,} episodes = {choice.tasks * choice.samples:,} per round",
            f"{choice.rounds:,} rounds = {choice.episodes:,} rollouts",
            f"at most {choice.most_steps:,} SFT steps of {choice.batch:,} per round",
        ]
    if configuration.recipe is Recipe.DPO:
        preferences = configuration.preferences
        times = "once" if preferences.epochs == 1 else f"{preferences.epochs:,} times"
        parts.append(f"DPO: at most {preferences.most:,} pairs, {preferences.batch:,} per step, each {times}")
    return "; ".join(parts)
