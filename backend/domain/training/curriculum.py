"""How the levels of an environment are chosen while GRPO trains, after RLVE (Zeng et al. 2025, arXiv:2511.07317)."""

from typing import Literal

from pydantic import Field

from backend.domain.environments.manifest import Manifest
from backend.domain.results.pass_at_k import REWARD, SuccessRule, default_rule
from backend.domain.training.blocks import Block, Share


class CurriculumChoice(Block):
    """Which levels are played: the same mix all the time, or a window that climbs with what the policy can do."""

    kind: Literal["fixed", "adaptive"] = "fixed"
    """fixed: every step has the mix of `grpo.levels`. adaptive: each environment has a window of levels that begins at
    `start`, rises when its top level is mastered and falls back when success collapses. Choose it where the hard levels
    are hopeless at first: groups that all fail teach nothing."""
    start: int = Field(default=0, ge=0, lt=100)
    """Only adaptive: the top level at the beginning. Higher when the model can do the first levels already."""
    mastery: Share = 0.8
    """Only adaptive: share of the last `window` episodes of the top level that must succeed before the next level is
    added. Lower climbs sooner; the levels beneath stay in the mix."""
    collapse: Share = 0.1
    """Only adaptive: when fewer of the last `window` episodes succeed, at the top level or at the one beneath it, the
    window falls back by one level, and waits twice as long each time before it tries that level again. 0 never falls
    back: for rewards that teach before anything succeeds."""
    window: int = Field(default=128, ge=4, le=100_000)
    """Only adaptive: how many episodes of a level are looked at. Fewer decide sooner, and by chance more often."""
    lower: float = Field(default=0.5, ge=0, le=0.9)
    """Only adaptive: share of each step's tasks for the levels beneath the top one, so that they are not forgotten.
    Raise it when their success falls while the window climbs; lower it to spend more on what is not mastered."""
    width: int = Field(default=4, ge=1, le=100)
    """Only adaptive: levels in the window; the ones below it are not played any more. Raise it when lower levels are
    forgotten; lower it when there are many easy ones that need no practice."""
    success_at: float | None = Field(default=None, allow_inf_nan=False)
    """Only adaptive: the reward from which an episode succeeds. Empty: as everywhere else, the column that is named for
    it (`win`, `correct`, …) at its highest, else half of the highest reward. Set it when a part of the reward is enough
    to go on to harder levels."""

    @property
    def is_adaptive(self) -> bool:
        return self.kind == "adaptive"

    def rule(self, manifest: Manifest) -> SuccessRule:
        """When an episode of this environment succeeds."""
        return default_rule(manifest) if self.success_at is None else SuccessRule(REWARD, self.success_at)
