"""How GRPO selects the levels of an environment, after RLVE (Zeng et al. 2025, arXiv:2511.07317)."""

from typing import ClassVar, Literal

from backend.domain.environments.manifest import Manifest
from backend.domain.results.pass_at_k import REWARD, SuccessRule, default_rule
from backend.domain.training.blocks import Block, Share, setting


class CurriculumChoice(Block):
    """Which levels are played: a fixed mix, or a window that rises with the success of the policy."""

    title: ClassVar[str] = "Curriculum"
    only: ClassVar[str] = "recipe=sft_then_grpo|grpo"

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
