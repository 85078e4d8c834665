"""Which rollouts a step learns from: groups without variance may give place to fresh ones, hacks and what is
suspected of being one are taken out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from backend.domain.rollouts.rollout import Rollout
from workers.training.grpo.credit import contributions
from workers.training.grpo.stage import MASKED, REPLACED, SCREENED, GrpoRun

_DIGITS = 6
"""Rewards that agree so far are equal: what is left is rounding."""
Signature = Callable[[Rollout], tuple[float, ...]]


@dataclass(slots=True)
class Batch:
    """What was played for a step."""

    size: int
    """Of a group."""
    groups: list[int]
    """Ordinals of the groups that are learned from."""
    rollouts: list[Rollout]
    """Their members, one group after the other."""
    masked: set[int] = field(default_factory=set)
    """Places of rollouts that are taken out of their groups."""
    screened: set[int] = field(default_factory=set)
    """Those of them that nobody judged yet."""
    replaced: list[Rollout] = field(default_factory=list)
    """Members of groups that gave place to others."""
    no_variance: float = 0.0
    """Share of the groups whose rewards are all equal."""

    def uniform(self, signature: Signature) -> list[int]:
        """Which groups, by their place, teach nothing: all that counts in them is equal, or fewer than two count."""
        return [number for number in range(len(self.groups)) if len(self._signatures(number, signature)) < 2]

    def _signatures(self, number: int, signature: Signature) -> set[tuple[float, ...]]:
        places = range(number * self.size, min((number + 1) * self.size, len(self.rollouts)))
        members = [self.rollouts[place] for place in places if place not in self.masked]
        return {signature(rollout) for rollout in members if rollout.is_completed}

    def replace(self, numbers: Sequence[int], ordinals: Sequence[int], fresh: Sequence[Rollout]) -> None:
        """Fresh groups in the places of those with these numbers."""
        for turn, number in enumerate(numbers):
            place = slice(number * self.size, (number + 1) * self.size)
            self.replaced += self.rollouts[place]
            self.rollouts[place] = fresh[turn * self.size : (turn + 1) * self.size]
            self.groups[number] = ordinals[turn]


def play_batch(run: GrpoRun, step: int) -> Batch:
    """Play the step's groups, and fresh ones in place of those without variance while the rounds last."""
    count = run.choice.tasks_per_step
    batch = Batch(run.choice.group_size, list(range(count)), run.play(step, range(count)))
    _mask(run, step, batch)
    signature = _signature_of(run)
    uniform = batch.uniform(signature)
    for turn in range(1, run.choice.replace_uniform + 1):
        if not uniform:
            break
        ordinals = [turn * count + number for number in uniform]
        batch.replace(uniform, ordinals, run.play(step, ordinals))
        _mask(run, step, batch)
        uniform = batch.uniform(signature)
    batch.no_variance = len(uniform) / count
    for place in batch.masked:
        batch.rollouts[place].metrics[MASKED] = 1.0
    for place in batch.screened:
        batch.rollouts[place].metrics[SCREENED] = 1.0
    for rollout in batch.replaced:
        rollout.metrics[REPLACED] = 1.0
    return batch


def _mask(run: GrpoRun, step: int, batch: Batch) -> None:
    judged = run.masked(batch.rollouts)
    batch.screened = run.screened(step, batch.rollouts) - judged
    canaries = {place for place, rollout in enumerate(batch.rollouts) if rollout.task.is_canary}
    batch.masked = judged | batch.screened | canaries


def _signature_of(run: GrpoRun) -> Signature:
    """What must differ inside a group for it to teach something: the reward, or all that is compared on its own."""

    def of_reward(rollout: Rollout) -> tuple[float, ...]:
        return (round(rollout.reward or 0.0, _DIGITS),)

    def of_columns(rollout: Rollout) -> tuple[float, ...]:
        columns = run.columns_for(rollout)
        return tuple(round(column.weight * rollout.columns.get(column.name, 0.0), _DIGITS) for column in columns)

    def of_turns(rollout: Rollout) -> tuple[float, ...]:
        return tuple(round(value, _DIGITS) for value in contributions(rollout, run.columns_for(rollout)))

    if run.choice.credit == "turn":
        return of_turns
    return of_columns if run.choice.aggregation == "normalize_then_sum" else of_reward
