"""The settings of the SFT warm-up: training examples, optimizer, and the gate before GRPO."""

import math
import uuid
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from backend.domain.rollouts.filters import MAX_LENGTH
from backend.domain.training.blocks import Block, Name, Share, setting

Source = Literal["script", "rollouts", "file"]
MAX_RUNS = 50
HOPELESS = 0.02
"""Success rate below which hardly any group has a success to learn from."""
_SCRIPTED = "sft.source=script;sft.also_script!=0"
_STORED = "sft.source=rollouts;sft.also_rollouts!=0"
_LIMITED = "sft.source=rollouts|file;sft.also_rollouts!=0;sft.also_file!=0"


class SftChoice(Block):
    """Learn from examples first, so that GRPO starts with replies that can be parsed."""

    title: ClassVar[str] = "SFT warm-up"
    only: ClassVar[str] = "recipe=sft_then_grpo|sft"

    source: Source = setting("script", is_basic=True)
    """script: episodes of the environment's scripted policy. rollouts: stored episodes, such as a teacher's evaluation
    on training tasks, if no scripted policy plays well. file: uploaded conversations. Only replies that were parsed
    carry loss."""
    script: Name = setting("teacher", "Scripted policy", is_basic=True, only=_SCRIPTED)
    """Scripted policy to learn from; the manifest of the environment lists them. A perfect one teaches the most. Use a
    weak one with `script_where` if the model should find good play on its own."""
    episodes: int = setting(4000, "Scripted episodes", is_basic=True, only=_SCRIPTED, ge=8, le=1_000_000)
    """Number of scripted episodes to collect. Raise it if the warm-up repeats them often (steps × batch size is many
    times larger) and still fails on held-out tasks."""
    noise: Share = setting(0.1, only=_SCRIPTED)
    """Probability of an invalid attempt before each move of the scripted policy. The attempt carries no loss; the
    recovery does. Use 0 if an invalid reply ends the episode, or if `script_where` requires wins. Raise it if the
    policy repeats itself after a rejected reply."""
    script_where: str = setting(
        "", "Filter for scripted episodes", is_basic=True, is_wide=True, only=_SCRIPTED, max_length=MAX_LENGTH
    )
    """Only learn from scripted episodes that pass this filter, such as `win > 0`. Default: all. The scripted policy
    then plays more episodes to collect the same number of examples."""
    runs: list[uuid.UUID] = setting([], is_basic=True, only=_STORED, is_wide=True, max_length=MAX_RUNS)
    """Ids of the runs to learn from, separated by commas. Default: all runs of this environment. Held-out tasks and
    rollouts judged to be hacks are never used. Name runs if not all of them show good play."""
    where: str = setting("", "Filter for rollouts", is_basic=True, is_wide=True, only=_STORED, max_length=MAX_LENGTH)
    """Only learn from rollouts that pass this filter, such as `reward >= 0.9 and turns < 6`. Use a strict filter if the
    quality is mixed: bad replies are learned as well as good ones."""
    file: uuid.UUID | None = setting(
        None, is_basic=True, only="sft.source=file;sft.also_file!=0", chosen_from="example_files"
    )
    """Uploaded conversations to learn from, for demonstrations that neither a scripted policy nor stored rollouts
    provide. Use it for demonstrations from elsewhere."""
    most: int = setting(20_000, "Maximum examples", only=_LIMITED, ge=1, le=1_000_000)
    """Rollouts and files only: maximum number of conversations. If there are more, a random sample is drawn with the
    seed. Raise it if steps × batch size would repeat them often; lower it if reading them takes long."""
    system: Literal["kept", "environment"] = setting("kept", "System prompt", only=_LIMITED)
    """Rollouts and files only. kept: the system prompt of the conversation. environment: the prompt of this
    environment, as the policy will see it later. Use environment if the preview shows a difference."""
    also_script: Share = setting(0.0, "Share of scripted episodes")
    """Share of training examples from the scripted policy, in addition to the main source. Try 0.2 if the main source
    covers few levels or rarely shows the reply format."""
    also_rollouts: Share = setting(0.0, "Share of rollouts")
    """Share of training examples from stored rollouts, in addition to the main source. Use some if they show play that
    the main source lacks."""
    also_file: Share = setting(0.0, "Share of the file")
    """Share of training examples from the uploaded file, in addition to the main source. Use some to keep conversations
    from elsewhere in mind."""
    demonstrations: Share = setting(0.0, "Share of demonstrations")
    """Share of training examples from episodes of this version that people marked as SFT data, repeated as needed. Use
    0.1 to 0.3 for few good episodes; a larger share of few episodes is memorized."""
    steps: int = setting(800, is_basic=True, ge=1, le=1_000_000)
    """Optimizer steps. Raise it while the loss still falls. Too many steps make the policy so certain that GRPO finds
    nothing to choose from."""
    batch: int = setting(32, "Batch size", ge=1, le=4096)
    """Number of episodes per step. Tiny models learn legal moves sooner from many small steps than from few large
    ones."""
    learning_rate: float = setting(2e-3, is_basic=True, gt=0, le=1)
    """Peak learning rate. Use 2e-5 for pretrained models, 10 times that for adapters, and 100 times that for small
    models from scratch."""
    warmup_steps: int = Field(default=20, ge=0)
    """Steps until the learning rate reaches its peak; it then decays as a cosine. Raise it if the loss jumps at the
    start."""
    adam_beta2: float = Field(default=0.95, gt=0, lt=1)
    """Decay rate of Adam's second moment (β₂). Lower values suit short runs; 0.999 suits long runs of large models."""
    max_grad_norm: float = setting(1.0, "Maximum gradient norm", gt=0)
    """Gradients are clipped to this norm. Lower it if the loss has spikes."""
    examine_every: int = setting(0, "Steps between evaluations", ge=0)
    """Steps between held-out evaluations during SFT. GRPO starts from the best checkpoint, so a long warm-up loses
    nothing. 0: evaluate only at the end. Use it if you do not know how many steps are enough."""

    @property
    def scripted_episodes(self) -> int:
        """Approximate number of scripted episodes; fewer if they are mixed into few examples of another source."""
        return self.episodes if self.source == "script" else math.ceil(self.episodes * self.also_script)

    @property
    def shares(self) -> Mapping[str, float]:
        """Share of the training examples by source. The main source has the rest."""
        mixed = {"script": self.also_script, "rollouts": self.also_rollouts, "file": self.also_file}
        mixed["demonstrations"] = self.demonstrations
        return {**mixed, self.source: 1 - sum(mixed.values())}

    def uses(self, source: Source) -> bool:
        return self.shares[source] > 0

    @model_validator(mode="after")
    def _complete(self) -> "SftChoice":
        mixed = {"script": self.also_script, "rollouts": self.also_rollouts, "file": self.also_file}
        if mixed[self.source]:
            raise ValueError(f"also_{self.source} must be 0: {self.source} is the main source")
        if sum(mixed.values()) + self.demonstrations > 1 + 1e-9:
            raise ValueError("the shares of the training examples add up to more than 1")
        if self.uses("rollouts") and not self.runs and not self.where.strip():
            raise ValueError("select rollouts: ids of runs (runs), a filter (where), or both")
        if self.uses("file") and self.file is None:
            raise ValueError("select the uploaded file (file)")
        return self


class GateChoice(Block):
    """Minimum results of the warm-up before GRPO starts. A policy whose replies cannot be parsed learns nothing from
    rewards."""

    title: ClassVar[str] = "Gate before GRPO"
    only: ClassVar[str] = "recipe=sft_then_grpo"

    minimum_format: Share = 0.5
    """Minimum mean share of held-out turns that were parsed. Raise it if an invalid reply costs the whole episode."""
    minimum_success: Share = HOPELESS
    """Minimum share of held-out tasks that succeed: the success column (win, success, solved, …) at its maximum, else
    half of the maximum reward. If hardly any task succeeds, GRPO trains on noise. Use 0 for rewards that carry signal
    before anything succeeds."""
    minimum_reward: float | None = Field(default=None, allow_inf_nan=False)
    """Minimum mean held-out reward. Default: none. Use it for rewards that say more than success does."""
    retries: int = Field(default=0, ge=0, le=5)
    """Further attempts at the warm-up if the gate stays closed, each with another seed and more steps. The warm-up is
    the fragile stage of small models: one seed may leave the plateau where another does not."""
    lengthen: float = setting(1.5, "Step factor per retry", ge=1, le=4)
    """Each retry has this many times the steps of the attempt before. 1 only changes the seed: use it if attempts fail
    by chance."""
