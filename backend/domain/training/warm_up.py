"""The choices of the SFT warm-up: what is imitated, for how long, and what it must reach before GRPO begins."""

import math
import uuid
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from backend.domain.rollouts.filters import MAX_LENGTH
from backend.domain.training.blocks import Block, Name, Share

Source = Literal["script", "rollouts", "file"]
MAX_RUNS = 50
HOPELESS = 0.02
"""Share of successes below which a group hardly ever holds one to make likelier."""


class SftChoice(Block):
    """The warm-up: imitate what is good, so that GRPO finds replies that are understood."""

    source: Source = "script"
    """script: play of the environment's own script. rollouts: stored episodes, such as a teacher's evaluation on
    training tasks; choose them where no script plays well. file: uploaded conversations. Only replies are learned, and
    only those that were understood."""
    script: Name = "teacher"
    """Only a script: the scripted policy that is imitated; the environment's manifest lists what it offers. A perfect
    one teaches the most; a weak one, with `script_where`, when the model should find good play by itself."""
    episodes: int = Field(default=4000, ge=8, le=1_000_000)
    """Only a script: scripted episodes to collect. More when the warm-up repeats them often (steps × batch is many
    times as large) and still errs on held-out tasks."""
    noise: Share = 0.1
    """Only a script: chance, before each move, of an attempt that cannot be accepted. It is not imitated, the recovery
    after it is. 0 where a refused reply ends the episode, or where `script_where` asks for wins; more when the policy
    repeats itself after a refusal."""
    script_where: str = Field(default="", max_length=MAX_LENGTH)
    """Only a script: a filter that its episodes pass to be imitated, such as `win > 0`; empty: all are. What a weak
    script did well by chance then teaches without what it did badly; it has to play more for as many lessons."""
    runs: list[uuid.UUID] = Field(default_factory=list, max_length=MAX_RUNS)
    """Only rollouts: ids of the runs, with commas between; empty: every run of this environment. Name some when not all
    of them played what should be imitated. Held-out tasks never come in, nor what was judged a hack."""
    where: str = Field(default="", max_length=MAX_LENGTH)
    """Only rollouts: a filter that they pass, such as `reward >= 0.9 and turns < 6`. Ask for more where the episodes
    are of mixed quality: what is bad is imitated as well as what is good."""
    file: uuid.UUID | None = None
    """Only a file: the id of the uploaded conversations. For demonstrations from elsewhere, when neither a script nor
    stored episodes show what is wanted."""
    most: int = Field(default=20_000, ge=1, le=1_000_000)
    """Only rollouts and files: where there are more conversations, so many are drawn by the seed. Raise it when steps ×
    batch would repeat them often; lower it when reading them takes long."""
    system: Literal["kept", "environment"] = "kept"
    """Only rollouts and files: their own system prompt stays, or this environment's takes its place, as the policy will
    read it later. Choose environment when the preview says that they differ."""
    also_script: Share = 0.0
    """Share of the lessons from the script, where another source is the main one. Some, such as 0.2, when the main
    source covers few levels or hardly ever shows the reply's format."""
    also_rollouts: Share = 0.0
    """Share of the lessons from rollouts, where another source is the main one. Some, when earlier episodes show play
    that the main source lacks."""
    also_file: Share = 0.0
    """Share of the lessons from the file, where another source is the main one. Some, when conversations from elsewhere
    should be kept in mind beside the main source."""
    demonstrations: Share = 0.0
    """Share of the lessons taken from episodes of this version that people marked as SFT data, repeated as needed. 0.1
    to 0.3 when what they marked is few and good; more of few episodes is learned by heart."""
    steps: int = Field(default=800, ge=1, le=1_000_000)
    """Optimiser steps. More while the loss still falls; too many make the policy so sure of itself that reinforcement
    finds nothing to choose from."""
    batch: int = Field(default=32, ge=1, le=4096)
    """Episodes in a step. Tiny models learn what is legal sooner from many small steps than from few large ones."""
    learning_rate: float = Field(default=2e-3, gt=0, le=1)
    """Highest learning rate. 2e-5 suits pretrained models, ten times that their adapters; small ones from scratch want
    a hundred times more."""
    warmup_steps: int = Field(default=20, ge=0)
    """Steps until the learning rate is reached; it then falls as a cosine. More when the loss jumps at first."""
    adam_beta2: float = Field(default=0.95, gt=0, lt=1)
    """How long the optimiser remembers the size of gradients (Adam's β₂). Lower suits short runs; 0.999 long ones of
    large models."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Longer gradients are cut to this length. Lower when the loss has spikes."""
    examine_every: int = Field(default=0, ge=0)
    """Steps between two examinations during the warm-up; the best checkpoint goes on, so that a warm-up that is too
    long loses nothing. 0: only at the end. Set it when you do not know how long is long enough: each examination costs
    its tasks."""

    @property
    def scripted_episodes(self) -> int:
        """About how many the script plays; fewer where it is mixed into few lessons of another source."""
        return self.episodes if self.source == "script" else math.ceil(self.episodes * self.also_script)

    @property
    def shares(self) -> Mapping[str, float]:
        """How much of the lessons each source gives; the main one gives the rest."""
        mixed = {"script": self.also_script, "rollouts": self.also_rollouts, "file": self.also_file}
        mixed["demonstrations"] = self.demonstrations
        return {**mixed, self.source: 1 - sum(mixed.values())}

    def uses(self, source: Source) -> bool:
        return self.shares[source] > 0

    @model_validator(mode="after")
    def _complete(self) -> "SftChoice":
        mixed = {"script": self.also_script, "rollouts": self.also_rollouts, "file": self.also_file}
        if mixed[self.source]:
            raise ValueError(f"also_{self.source} mixes another source in; {self.source} is the main one already")
        if sum(mixed.values()) + self.demonstrations > 1 + 1e-9:
            raise ValueError("the shares of the lessons add up to more than 1")
        if self.uses("rollouts") and not self.runs and not self.where.strip():
            raise ValueError("say which rollouts: the ids of runs (runs), a filter (where), or both")
        if self.uses("file") and self.file is None:
            raise ValueError("choose the uploaded file (file)")
        return self


class GateChoice(Block):
    """What the warm-up must reach before GRPO begins: a policy that is never understood learns nothing from rewards."""

    minimum_format: Share = 0.5
    """Mean share of held-out turns that could be parsed. Raise it where an unreadable reply costs the whole episode."""
    minimum_success: Share = HOPELESS
    """Share of held-out tasks that succeed: the column named for it (win, success, solved, …) at its highest value,
    else half of what the reward can be. Where hardly anything succeeds, groups hold no success to make likelier, and
    GRPO trains on noise. Raise it when the warm-up should reach more; 0 lets a run through on purpose, for rewards that
    teach before anything succeeds."""
    minimum_reward: float | None = Field(default=None, allow_inf_nan=False)
    """Mean held-out reward; empty: any. For rewards that say more than success does."""
    retries: int = Field(default=0, ge=0, le=5)
    """Further attempts at the warm-up while the gate stays closed, each with another seed and more steps. The warm-up
    is the fragile step of small models: the same choices reach the plateau's other side with one seed and not with
    another."""
    lengthen: float = Field(default=1.5, ge=1, le=4)
    """Each further attempt has so many times the steps of the one before. 1 changes the seed alone: choose it when
    attempts fail by chance and not by being too short."""
