"""The settings of GRPO: tasks, sampling, loss and optimizer, and how it selects levels."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from backend.domain.environments.manifest import Manifest
from backend.domain.results.pass_at_k import REWARD, SuccessRule, default_rule
from backend.domain.training.blocks import Block, Share, setting

LossType = Literal["dapo", "grpo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"]
_OF_SEQUENCES = frozenset({"grpo", "sapo", "luspo"})
"""Losses that average by episode, which a sequence-level ratio needs."""
CISPO_CEILING = 5.0
"""Maximum ratio, from ScaleRL (arXiv 2510.13786)."""


class GrpoChoice(Block):
    """Sample groups of episodes of the same task, and make the better ones of each group more likely."""

    title: ClassVar[str] = "GRPO"
    only: ClassVar[str] = "recipe=sft_then_grpo|grpo|distillation"

    steps: int = setting(100, is_basic=True, ge=1, le=1_000_000)
    """Training steps. Each step samples tasks × group size new episodes. Raise it while the held-out reward still
    rises; the best checkpoint is kept anyway."""
    tasks_per_step: int = setting(20, is_basic=True, ge=1, le=4096)
    """Number of different tasks in a step. More tasks reduce the variance of the gradient, which helps most with noisy
    rewards or if the format collapses late."""
    group_size: int = setting(8, is_basic=True, ge=2, le=256)
    """Number of episodes of the same task, which are compared with each other. Larger groups find rare successes and
    failures: raise it if many groups have no variance."""
    levels: list[Annotated[float, Field(ge=0)]] | None = setting(None)
    """Relative share of each level in every step, from level 0, such as `2,1,1`. Default: equal shares. Use a small
    share for levels that always or never succeed."""
    replace_uniform: int = setting(0, "Rounds of dynamic sampling", ge=0, le=20)
    """Rounds in which groups with equal rewards are replaced by groups of new tasks (dynamic sampling, DAPO). 0: they
    are kept. Use it if many groups have no variance and episodes are cheap, because each round samples more."""
    learning_rate: float = setting(5e-4, is_basic=True, gt=0, le=1)
    """Peak learning rate. Use 5e-4 for tiny models from scratch, 1e-6 to 1e-5 for pretrained models, and 10 times that
    for adapters. The format collapses late if it is too high."""
    schedule: Literal["cosine", "linear", "constant"] = setting("cosine", "Learning rate schedule")
    """How the learning rate decays over the run. Use constant if the number of steps is not known."""
    warmup_steps: int = Field(default=0, ge=0)
    """Steps until the learning rate reaches its peak. Use some, such as 10, for large models."""
    updates: int = setting(1, "Updates per step", ge=1, le=64)
    """Optimizer updates per batch of episodes. 1 stays on-policy and is the most stable. 2 to 4 learn more from
    expensive episodes; `epsilon` and the importance level then limit each update, and have no effect with 1."""
    loss_type: LossType = setting("dapo", "Loss", is_basic=True)
    """How token losses are aggregated. dapo: all tokens of the step have equal weight. grpo: all episodes have equal
    weight, so tokens of long episodes count less. dr_grpo: divided by a fixed length. bnpo: as dapo, within each
    micro-batch. cispo: the ratio is clipped, but every token keeps its gradient. sapo: a soft gate instead of clipping.
    luspo: whole episodes, weighted by length. vespo: whole episodes, softly weighted. With one update, cispo and vespo
    equal dapo, and sapo equals grpo. Choose dr_grpo or dapo if replies get longer without earning more."""
    importance_level: Literal["auto", "token", "sequence"] = setting("auto", "Importance ratio", only="grpo.updates!=1")
    """Importance ratio of each token, or of the whole episode (GSPO), which is more stable for long replies and
    mixture-of-experts models. auto: as the loss requires. Change it if `updates` is above 1 and the ratio is
    unstable."""
    epsilon: float = setting(0.2, "Clip range", only="grpo.updates!=1", gt=0, lt=1)
    """How far the importance ratio may be from 1 before a token is clipped. Smaller is more stable; GSPO uses 3e-4 for
    sequence ratios. Only with more than one update; sapo and vespo do not clip."""
    epsilon_high: float | None = setting(None, "Upper clip range", only="grpo.updates!=1", gt=0, le=100)
    """Separate limit above 1, so that rare tokens can become more likely; DAPO uses 0.28. Default: the same as below.
    Raise it if the entropy falls with several updates. For cispo it is the maximum ratio; default: 5."""
    aggregation: Literal["sum_then_normalize", "normalize_then_sum"] = setting(
        "sum_then_normalize", "Reward aggregation"
    )
    """How reward columns become one advantage. sum_then_normalize: the weighted sum is normalized within its group.
    normalize_then_sum: each column is normalized first (GDPO), which keeps columns with small values from being drowned
    out; it always divides by the standard deviation, regardless of `scale_rewards`. Use it if such columns matter."""
    credit: Literal["episode", "turn"] = setting("episode", "Credit assignment")
    """Which tokens a reward applies to. episode: all tokens. turn: the tokens of a turn get the reward from that turn
    on, compared with the group at the same turn; use it if reward columns differ between turns."""
    scale_rewards: Literal["none", "group", "batch"] = setting("none", "Reward scaling")
    """Divide advantages by the standard deviation of the group or of the step. group gives easy and hard tasks equal
    weight, and amplifies noise if all rewards are nearly equal."""
    beta: float = setting(0.01, "KL coefficient (β)", is_basic=True, ge=0, le=10)
    """Weight of the KL divergence from the policy before GRPO. A small value keeps the reply format from drifting;
    raise it if the format degrades. 0 saves the memory of the reference model."""
    temperature: float = setting(1.0, is_basic=True, gt=0, le=5)
    """Sampling temperature during training. Higher explores more. A group that always plays the same learns nothing."""
    temperature_end: float | None = setting(None, "Final temperature", gt=0, le=5)
    """Temperature of the last step, reached linearly. Default: constant. Use a lower one to explore first, or a higher
    one against entropy collapse."""
    top_p: float = setting(1.0, "Top-p", gt=0, le=1)
    """Sample from the most likely tokens with this total probability. Below 1 avoids rare slips in training episodes.
    The loss still covers all tokens, so stay above 0.9. Use it only if rare slips spoil episodes."""
    top_k: int = setting(0, "Top-k", ge=0, le=1_000_000)
    """Sample from this many most likely tokens. 0: all. Like `top_p`, it makes sampling differ from the loss. Use 50 or
    more, and only if rare tokens of a large vocabulary spoil episodes."""
    staleness: int = setting(0, "Steps to sample ahead", ge=0, le=8)
    """0: sampling and learning take turns. 1: a second process samples the next step while this one learns, so episodes
    are one step old; importance weights correct for that. Use 1 if sampling and learning take similar time and a core
    or GPU is idle. More than 1 only helps if steps take uneven time. The second process needs memory for the model and
    its own env servers."""
    importance_limit: float = setting(2.0, "Importance weight limit", only="grpo.staleness!=0", ge=1, le=100)
    """Limit of the weight of a token that an older policy sampled: its probability now divided by its probability then.
    Lower values reduce the variance of the gradient and correct less."""
    mask_truncated: bool = False
    """Exclude episodes with a truncated reply from the gradient; they still count in the mean of their group. Use it if
    good long replies are cut; not if rambling should be unlearned."""
    max_grad_norm: float = setting(0.1, "Maximum gradient norm", gt=0)
    """Gradients are clipped to this norm. Raise it if the gradient norm is always above it and learning is slow."""
    adam_beta2: float = Field(default=0.99, gt=0, lt=1)
    """Decay rate of Adam's second moment (β₂). Lower adapts sooner and is noisier; 0.999 suits long runs of large
    models."""
    entropy_bonus: float = Field(default=0.0, ge=0, le=1)
    """Reward for token entropy. It can destroy the reply format, most quickly with dr_grpo. Try 0.001 if the entropy
    collapses and neither a higher temperature nor a lower learning rate helps."""
    micro_batches: int = setting(1, "Micro-batches", ge=1, le=4096)
    """Number of parts in which the gradient of a step is computed, to save memory. Raise it if a step runs out of
    memory; the result is the same."""

    @property
    def episodes_per_step(self) -> int:
        return self.tasks_per_step * self.group_size

    @property
    def ratio_level(self) -> Literal["token", "sequence"]:
        """`importance_level` with `auto` resolved."""
        if self.importance_level == "auto":
            return "sequence" if self.loss_type == "luspo" else "token"
        return self.importance_level

    @property
    def ratio_ceiling(self) -> float | None:
        """`epsilon_high` as the loss type reads it."""
        return CISPO_CEILING if self.loss_type == "cispo" and self.epsilon_high is None else self.epsilon_high

    def temperature_at(self, step: int) -> float:
        """The temperature of a step, from 1."""
        if self.temperature_end is None or self.steps == 1:
            return self.temperature
        share = (step - 1) / (self.steps - 1)
        return self.temperature + share * (self.temperature_end - self.temperature)

    @model_validator(mode="after")
    def _fits_together(self) -> "GrpoChoice":
        episodes, parts, ceiling = self.episodes_per_step, self.micro_batches, self.ratio_ceiling
        if episodes % parts:  # also if there are more parts than episodes
            raise ValueError(f"{episodes} episodes per step cannot be divided into {parts} micro-batches")
        if self.levels is not None and sum(self.levels) <= 0:
            raise ValueError("at least one level needs a share above 0")
        if self.loss_type == "luspo" and self.ratio_level == "token":
            raise ValueError("luspo needs sequence-level ratios: set importance_level to sequence or auto")
        if self.ratio_level == "sequence" and self.loss_type not in _OF_SEQUENCES:
            fitting = f"a loss that averages by episode ({', '.join(sorted(_OF_SEQUENCES))})"
            raise ValueError(f"importance_level sequence needs {fitting}; {self.loss_type} does not")
        if self.loss_type == "cispo" and ceiling is not None and ceiling <= 1:
            raise ValueError("for cispo, epsilon_high is the maximum ratio: it must be above 1, such as 5, or empty")
        if self.credit == "turn" and (self.ratio_level == "sequence" or self.loss_type == "vespo"):
            problem = "credit by turn needs token-level ratios"
            raise ValueError(f"{problem}: use credit episode, or another loss and importance level")
        if self.staleness and self.replace_uniform:
            raise ValueError("replacing groups needs the latest policy: set staleness or replace_uniform to 0")
        if self.credit == "turn" and self.aggregation == "normalize_then_sum":
            raise ValueError("credit by turn sums the columns first: set aggregation to sum_then_normalize")
        return self


# After RLVE (Zeng et al. 2025, arXiv:2511.07317).
class CurriculumChoice(Block):
    """Which levels are played: a fixed mix, or a window that rises with the success of the policy."""

    title: ClassVar[str] = "Curriculum"
    only: ClassVar[str] = "recipe=sft_then_grpo|grpo|rejection_sampling|distillation"

    kind: Literal["fixed", "adaptive"] = setting("fixed", "Levels")
    """fixed: every step has the mix of `grpo.levels`. adaptive: a window of levels starts at `start`, rises when its
    top level is mastered and falls back when success collapses. Use it if hard levels are hopeless at first: groups
    that always fail teach nothing."""
    start: int = setting(0, "First level", only="curriculum.kind=adaptive", ge=0, lt=100)
    """Adaptive only: the top level at the start. Raise it if the model already succeeds on the first levels."""
    mastery: Share = setting(0.8, only="curriculum.kind=adaptive")
    """Adaptive only: share of the last `window` episodes of the top level that must succeed before the next level is
    added. Lower values climb sooner."""
    collapse: Share = setting(0.1, only="curriculum.kind=adaptive")
    """Adaptive only: if fewer of the last `window` episodes succeed, at the top level or the one below, the window
    falls back by one level, and waits twice as long before it tries that level again. 0: never, for rewards that carry
    signal before anything succeeds."""
    window: int = setting(128, only="curriculum.kind=adaptive", ge=4, le=100_000)
    """Adaptive only: number of recent episodes of a level to consider. Fewer react sooner and are noisier."""
    lower: float = setting(0.5, "Share of lower levels", only="curriculum.kind=adaptive", ge=0, le=0.9)
    """Adaptive only: share of tasks below the top level, so that they are not forgotten. Raise it if the success on
    lower levels falls."""
    width: int = setting(4, "Window width", only="curriculum.kind=adaptive", ge=1, le=100)
    """Adaptive only: number of levels in the window. Levels below it are no longer played. Raise it if lower levels are
    forgotten; lower it if many easy levels need no practice."""
    success_at: float | None = setting(None, "Success threshold", only="curriculum.kind=adaptive", allow_inf_nan=False)
    """Adaptive only: reward at which an episode counts as a success. Default: the success column (`win`, `correct`, …)
    at its maximum, else half of the maximum reward. Use it if part of the reward is enough to move on to
    harder levels."""

    def rule(self, manifest: Manifest) -> SuccessRule:
        """Return the rule by which an episode of this environment succeeds."""
        return default_rule(manifest) if self.success_at is None else SuccessRule(REWARD, self.success_at)
