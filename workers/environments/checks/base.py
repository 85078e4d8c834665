"""Declare a check: `@Check(…)` above the function that inspects a `CheckSubject` and returns a `CheckFinding`.

Certificates, their page, the command line and the reference in the docs derive from this declaration. The function's
docstring states the method and the threshold. `registry.py` collects the checks and runs them.
"""

import inspect
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from statistics import fmean

from backend.domain.environments.manifest import Manifest
from backend.domain.environments.reward_bounds import floor_of, gold_bounds, reward_range
from backend.domain.rollouts.rollout import Rollout
from backend.domain.statistics import Estimate, estimate_mean
from backend.domain.vocabulary import CheckStatus
from workers.environments.checks.subject import CheckSubject

TOLERANCE = 1e-6


class Cost(StrEnum):
    """Work of a check in the env host. Rollouts of earlier checks are free."""

    STORED = "none: reads rollouts of other checks"
    RESETS = "resets and single steps"
    REPLAYS = "replays of stored episodes"
    EPISODES = "new episodes"


@dataclass(frozen=True, slots=True)
class CheckFinding:
    status: CheckStatus
    evidence: str
    """One or two sentences with numbers."""
    details: dict[str, object] = field(default_factory=dict)
    rollouts: tuple[Rollout, ...] = ()
    """Rollouts that show it best."""
    applies: bool = True


CheckFunction = Callable[[CheckSubject], Awaitable[CheckFinding]]


@dataclass(slots=True, kw_only=True)
class Check:
    """One condition that an environment version must meet. Decorates the function that inspects it."""

    label: str
    sentence: str
    """The condition."""
    advice: str
    """How an author can fix a failure."""
    example: str
    """Code that meets the condition, indented like the declaration."""
    cost: Cost
    needs: tuple[str, ...] = ("steps_and_ends",)
    """Checks without which this one has no meaning. If one of them fails, this one is skipped."""
    theme: str = ""
    """Section of the certificate. Default: the name of the function's module."""
    id: str = field(init=False)
    run: CheckFunction = field(init=False)

    def __call__(self, run: CheckFunction) -> "Check":
        self.run, self.id = run, run.__name__
        self.theme = self.theme or run.__module__.rpartition(".")[2]
        return self

    @property
    def method(self) -> str:
        """How the condition is measured, and the threshold."""
        return " ".join((inspect.getdoc(self.run) or "").split())


def conclude(
    status: CheckStatus, evidence: str, rollouts: Rollout | Iterable[Rollout] = (), /, **details: object
) -> CheckFinding:
    """Make a finding that links to the first five of the rollouts. A single one brings its task into the details."""
    if isinstance(rollouts, Rollout):
        details = {"task": rollouts.task.reset_arguments(), **details}
        rollouts = [rollouts]
    return CheckFinding(status, evidence, details, tuple(rollouts)[:5])


passed = partial(conclude, CheckStatus.PASSED)
warned = partial(conclude, CheckStatus.WARNED)
failed = partial(conclude, CheckStatus.FAILED)
skipped = partial(CheckFinding, CheckStatus.SKIPPED)
"""The author can provide the missing part, so the certificate warns."""
does_not_apply = partial(CheckFinding, CheckStatus.SKIPPED, applies=False)
"""There is nothing to check in this environment, so the certificate does not warn."""


def listed(names: Iterable[object], limit: int = 5) -> str:
    """Join names for a sentence, with the number of those beyond the limit."""
    texts = [str(name) for name in names]
    return ", ".join(texts[:limit]) + (f" and {len(texts) - limit} more" if len(texts) > limit else "")


def clipped(value: object, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def floor_limit(manifest: Manifest) -> float | None:
    """Return the most that a policy may earn without trying: the floor and 5% of the range; None without a floor."""
    floor, span, gold = floor_of(manifest), reward_range(manifest), gold_bounds(manifest)
    if span is None and floor is not None and gold is not None:
        span = floor, max(gold)
    return floor if floor is None or span is None else floor + 0.05 * (span[1] - span[0])


def success_bounds(manifest: Manifest) -> list[float] | None:
    """Return the reward that counts as success by level: halfway from the floor to the gold bound."""
    floor, gold = floor_limit(manifest), gold_bounds(manifest)
    return None if floor is None or gold is None else [(floor + bound) / 2 for bound in gold]


def by_level(rollouts: Sequence[Rollout]) -> dict[int, Estimate]:
    """Estimate the mean reward of each level over its groups, which often have one member, in the order of levels."""
    groups: dict[tuple[int, int], list[float]] = defaultdict(list)
    means: dict[int, list[float]] = defaultdict(list)
    for rollout in rollouts:
        groups[rollout.task.level, rollout.group].append(rollout.reward or 0.0)
    for (level, _), rewards in sorted(groups.items()):
        means[level].append(fmean(rewards))
    return {level: estimate for level, values in means.items() if (estimate := estimate_mean(values))}
