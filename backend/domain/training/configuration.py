"""What a training run is told: every choice with a default that works.

The launch form, the JSON API and the command line all read this; `resolved` writes every default out.
Presets that were tried are in `training_presets`.
"""

import math
import uuid
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Literal

from pydantic import Field, model_validator

from backend.domain.training.adapter import AdapterChoice, AdapterKind
from backend.domain.training.alarms import AlarmsChoice
from backend.domain.training.blocks import Block
from backend.domain.training.budget import BudgetChoice
from backend.domain.training.curriculum import CurriculumChoice
from backend.domain.training.detector_actions import DetectorsChoice
from backend.domain.training.grpo import GrpoChoice
from backend.domain.training.hardware import HardwareChoice, VllmChoice
from backend.domain.training.mix import Mix
from backend.domain.training.warm_up import GateChoice, SftChoice

Engine = Literal["transformers", "vllm", "unsloth"]
Pieces = Literal["signs", "phrases"]


class Recipe(StrEnum):
    """Which stages a training run has."""

    SFT_THEN_GRPO = "sft_then_grpo"
    SFT = "sft"
    GRPO = "grpo"

    @property
    def has_sft(self) -> bool:
        return self is not Recipe.GRPO

    @property
    def has_grpo(self) -> bool:
        return self is not Recipe.SFT


class Stage(StrEnum):
    """The stage after which a checkpoint was saved."""

    UNTRAINED = "untrained"
    SFT = "sft"
    GRPO = "grpo"


class ModelChoice(Block):
    """Which weights the run starts from."""

    source: Literal["scratch", "checkpoint", "base"] = "scratch"
    """scratch: a small model made here, nothing is downloaded. checkpoint: weights of an earlier run, to go on from
    what it learned. base: a Hugging Face name or a folder on the worker, where the task needs a model that can read and
    reason; lower the learning rates and see the presets for one."""
    size: Literal["tiny", "mini", "small", "medium"] = "tiny"
    """Only from scratch: about 0.1, 0.2, 0.9 or 4 million parameters. tiny learns a small game in minutes on one core;
    take a larger one when the training reward stays low although replies are understood."""
    architecture: Literal["gpt2", "llama"] = "gpt2"
    """Only from scratch. gpt2 is the faster one on a CPU; choose llama to try tools on what larger models look like."""
    context: int = Field(default=256, ge=64, le=4096)
    """Only from scratch: the longest conversation in tokens. Raise it when the pre-flight finds conversations that do
    not fit; memory and time grow with what is played, not with this."""
    vocabulary: int = Field(default=384, ge=300, le=4096)
    """Only from scratch: at most this many tokens, learned from the environment's own text. More make conversations
    shorter and the model larger; small worlds need few."""
    pieces: Pieces = "signs"
    """Only from scratch: what stays a token of its own. signs: tags, digits, capitals and punctuation, so that numbers
    and boards can be read. phrases: only tags, so that a whole message becomes one token; sooner learned where the
    environment says few different things, such as `O plays 5.`; rare messages are read in bytes."""
    initializer_range: float = Field(default=0.1, gt=0, le=1)
    """Only from scratch: spread of the first weights. Tiny models do not leave the plateau at the usual 0.02; try 0.15
    when the warm-up's loss stays flat."""
    checkpoint: uuid.UUID | None = None
    """Only from a checkpoint: its id. The best one by held-out reward is usually the one to go on from; an earlier one
    where the reward was hacked."""
    base: str = Field(default="", max_length=300)
    """Only from a base: its name or folder. Its weights must be safetensors; its code is never run. Choose an instruct
    model: it has a chat template, and keeps to the environment's format sooner."""

    @model_validator(mode="after")
    def _complete(self) -> "ModelChoice":
        if self.source == "checkpoint" and self.checkpoint is None:
            raise ValueError("choose the checkpoint to start from")
        if self.source == "base" and not self.base.strip():
            raise ValueError("name the base model to start from")
        return self


class HeldoutChoice(Block):
    """The examination: the same held-out tasks, again and again, never trained on."""

    every: int = Field(default=20, ge=1)
    """GRPO steps between two examinations. The best checkpoint is chosen by them: fewer steps miss less, and cost more
    time."""
    tasks: int = Field(default=100, ge=1, le=100_000)
    """Held-out tasks, one episode each; the same ones every time. A hundred tell shares apart that differ by ten
    points, a thousand by three: more when the best checkpoint has to be told from a lucky one, fewer when examinations
    take most of the time."""
    temperature: float = Field(default=1.0, ge=0, le=5)
    """Sampling temperature; 0 takes the likeliest token. Leave it at 1 to see the policy that trains; 0 when it will be
    used greedily."""


class CheckpointChoice(Block):
    """How much work a crash may cost, and which checkpoints keep their weights: a run deletes those of the others by
    itself, after each examination and without asking."""

    every: int = Field(default=10, ge=1)
    """Steps between two saved states of the trainer; a run that was cut goes on from the last. Fewer lose less work in
    a crash and write more; large models want more."""
    keep_last: int = Field(default=5, ge=1, le=1_000_000)
    """So many of the newest GRPO checkpoints keep their weights. Of older ones the run deletes them for good after each
    examination, and keeps the figures. The untrained one, those of the warm-up, the best one and those that are marked
    or that anything uses always keep them. More when you may want to roll back far, fewer when the weights are
    large."""
    keep_every: int = Field(default=0, ge=0, le=1_000_000)
    """Beside them, the GRPO checkpoint of every so many steps keeps its weights; 0: none, 1: all of them do, and
    nothing is deleted. Set it when you want to look at how the policy changed over a long run, or to branch off far
    back."""


class TrainingConfiguration(Block):
    """All of a training run's choices."""

    recipe: Recipe = Recipe.SFT_THEN_GRPO
    """Which stages: imitation, reinforcement, or the one after the other. Choose imitation first when the model
    knows nothing of the task, reinforcement alone when it succeeds sometimes, and imitation alone to copy good play."""
    model: ModelChoice = ModelChoice()
    """Which weights it starts from."""
    adapter: AdapterChoice = AdapterChoice()
    """Which weights are trained."""
    sft: SftChoice = SftChoice()
    """The warm-up."""
    gate: GateChoice = GateChoice()
    """What the warm-up must reach."""
    grpo: GrpoChoice = GrpoChoice()
    """The reinforcement."""
    curriculum: CurriculumChoice = CurriculumChoice()
    """Which levels are played when."""
    heldout: HeldoutChoice = HeldoutChoice()
    """The examination."""
    checkpoints: CheckpointChoice = CheckpointChoice()
    """What is saved when."""
    budget: BudgetChoice = BudgetChoice()
    """What it may use up."""
    mix: Mix = Field(default_factory=list)
    """Further environments to train on at once, as `name@3=0.5` (version and weight may be left out), set apart by
    commas. The run's own environment has the weight 1; every step and every examination has tasks of all. Add some when
    one policy should play them all, or when it forgets one while it learns another."""
    alarms: AlarmsChoice = AlarmsChoice()
    """What looks unhealthy, and what the run does about it."""
    detectors: DetectorsChoice = DetectorsChoice()
    """What happens when a detector of reward hacking flags something."""
    hardware: HardwareChoice = HardwareChoice()
    """Where the model computes, and how exactly."""
    vllm: VllmChoice = VllmChoice()
    """How vLLM samples, where it is the engine."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Same seed, same machine: the same run. Repeat a run with another to see how much of its result is luck."""
    engine: Engine = "transformers"
    """Which workers take the run up: those of the queue gpu (transformers: any machine), gpu-vllm or gpu-unsloth. Their
    installations differ, because the engines' pins conflict; choose another one only where such a worker reports."""
    concurrency: int = Field(default=256, ge=1, le=4096)
    """Episodes played at a time, at most. More fill the processor better until memory ends it; fewer when the
    environment bears no more."""
    servers: int = Field(default=1, ge=1, le=64)
    """Env servers. More help when stepping the environment is what takes the time (see the run's time split), and cost
    memory each."""
    threads: int = Field(default=1, ge=1, le=256)
    """CPU threads of the trainer. More than one only pays when nothing else wants the cores."""

    @classmethod
    def of_run(cls, configuration: Mapping[str, Any]) -> "TrainingConfiguration":
        """The choices of a run's stored configuration, which holds other things beside them."""
        return cls.model_validate({name: configuration[name] for name in cls.model_fields if name in configuration})

    def resolved(self) -> dict[str, Any]:
        """Every default written out, as JSON for the run's row."""
        return self.model_dump(mode="json")

    def problems(self, *, scripts: list[str], levels: int) -> list[str]:
        """What cannot work with this environment, in words for a person."""
        found = []
        if self.recipe.has_sft and self.sft.uses("script") and self.sft.script not in scripts:
            offered = ", ".join(scripts) or "none"
            found.append(f"The environment offers no script `{self.sft.script}` to imitate; it offers: {offered}.")
        found.extend(self._problems_of_levels(levels))
        if not self.recipe.has_sft and self.model.source == "scratch":
            found.append("An untrained model knows no words: warm it up by SFT, or start GRPO from a checkpoint.")
        if self.adapter.kind is not AdapterKind.FULL and self.model.source == "scratch":
            found.append("A model made here has no pretrained weights to adapt: train it whole (adapter.kind=full).")
        if self.engine == "vllm" and self.vllm.mode == "server" and not self.vllm.server:
            found.append("vLLM is to sample on a server: say where it is (vllm.server).")
        if self.engine == "vllm" and self.hardware.device == "cpu":
            found.append("vLLM samples on a GPU: leave hardware.device at auto, or choose another engine.")
        found.extend(self._problems_of_processes())
        return found

    def _problems_of_processes(self) -> Iterator[str]:
        count = self.hardware.processes
        if count == 1:
            return
        if self.engine != "transformers":
            yield f"Several processes train with the engine transformers, not with {self.engine}: set one of the two."
        grpo, parts = self.grpo, self.grpo.micro_batches
        if self.recipe.has_sft and self.sft.batch % count:
            yield f"A warm-up's batch of {self.sft.batch} does not divide among {count} processes (sft.batch)."
        if self.recipe.has_grpo and grpo.tasks_per_step % count:
            yield (
                f"{grpo.tasks_per_step} groups a step do not divide among {count} processes: choose a multiple of "
                f"{count} (grpo.tasks_per_step)."
            )
        elif self.recipe.has_grpo and grpo.episodes_per_step // count % parts:
            yield (
                f"Each of {count} processes learns from {grpo.episodes_per_step // count} episodes a step, which do "
                f"not divide into {parts} parts (grpo.micro_batches)."
            )

    def _problems_of_levels(self, levels: int) -> Iterator[str]:
        given = self.grpo.levels
        if given is not None and self.curriculum.is_adaptive:
            yield "The adaptive curriculum chooses the levels by itself: leave grpo.levels empty, or choose fixed."
        elif given is not None and len(given) > levels and not self.mix:
            yield f"{len(given)} level shares are given; the environment has {levels} levels."
        elif given is not None and sum(given[:levels]) <= 0:
            yield f"None of the environment's {levels} levels has a share in grpo.levels."
        if self.grpo.tasks_per_step <= len(self.mix):
            yield f"{len(self.mix) + 1} environments do not fit into steps of {self.grpo.tasks_per_step} tasks."

    @property
    def total_steps(self) -> int:
        """Optimiser steps of all stages."""
        sft = self.sft.steps if self.recipe.has_sft else 0
        return sft + (self.grpo.steps if self.recipe.has_grpo else 0)

    @property
    def total_rollouts(self) -> int:
        """About how many episodes it plays."""
        count = self.heldout.tasks
        if self.recipe.has_sft:
            count += self.sft.scripted_episodes + self.heldout.tasks
        if self.recipe.has_grpo:
            examinations = math.ceil(self.grpo.steps / self.heldout.every)
            count += self.grpo.steps * self.grpo.episodes_per_step + examinations * self.heldout.tasks
        return count
