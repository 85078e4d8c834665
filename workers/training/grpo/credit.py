"""Whom a reward speaks to when credit is given by turn.

Each episode's reward is divided into what its turns brought, so that the parts sum to it. A turn's tokens get what came
from that turn on, compared with the group at the same turn:

    G(i,t) = Σ_{u ≥ t} r(i,u)        A(i,t) = (G(i,t) − mean over members k that reached t of G(k,t)) / s

with s = 1, or the spread of the whole episodes' rewards in the group or the step, as `scale_rewards` says. It is the
process supervision of DeepSeekMath (arXiv 2402.03300, §4.1.3: a token gets the normalised rewards of all steps that end
after it) with a baseline for each turn in place of one for all step rewards, so that longer episodes are not paid or
punished for their length; turn-level credit for agents: arXiv 2505.11821. The first turn's advantage is the episode's.
"""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

from backend.domain.environments.manifest import OverEpisode, RewardColumn
from backend.domain.rollouts.rollout import Rollout
from workers.training.examples import BrokenStep

_TINY = 1e-4
"""TRL's, added to a spread before it divides."""
ColumnsFor = Callable[[Rollout], Sequence[RewardColumn]]


def contributions(rollout: Rollout, columns: Sequence[RewardColumn]) -> list[float]:
    """What each turn brought of the weighted reward. What no turn accounts for, such as the length, belongs to the
    last."""
    brought = [0.0] * max(1, len(rollout.steps))
    for column in columns:
        for turn, value in enumerate(_shares(rollout, column)):
            brought[turn] += column.weight * value
    brought[-1] += (rollout.reward or 0.0) - math.fsum(brought)
    return brought


def _shares(rollout: Rollout, column: RewardColumn) -> list[float]:
    """A column's value over the episode, divided among its turns."""
    steps = rollout.steps
    if column.name == "format":
        return [(step.action is not None) / len(steps) for step in steps]
    shares = [0.0] * len(steps)
    sent = [(turn, step.rewards[column.name]) for turn, step in enumerate(steps) if column.name in step.rewards]
    if column.over_episode is OverEpisode.LAST:
        sent = sent[-1:]
    before = 0.0
    for turn, value in sent:
        if column.over_episode is OverEpisode.MAX:
            highest = value if turn == sent[0][0] else max(before, value)
            shares[turn], before = highest - before, highest
        else:
            shares[turn] = value
    return shares


def turns_of_tokens(mask: Sequence[int]) -> list[int]:
    """The turn, from 0, that each of the policy's tokens belongs to; -1 where the environment wrote."""
    turns, turn, was_policy = [], -1, False
    for counts in mask:
        if counts and not was_policy:
            turn += 1
        turns.append(turn if counts else -1)
        was_policy = bool(counts)
    return turns


def token_advantages(rollout: Rollout) -> list[float]:
    """One a token of the completion; none where the rollout does not count."""
    if rollout.turn_advantages is None:
        return []
    turns = turns_of_tokens(rollout.completion_mask or [])
    return [rollout.turn_advantages[turn] if turn >= 0 else 0.0 for turn in turns]


def to_go(rollout: Rollout, columns: Sequence[RewardColumn], turns: int) -> list[float]:
    """What came from each turn on. A step without tokens of its own (the context was full) belongs to the last turn."""
    brought = contributions(rollout, columns)
    if len(brought) < turns:
        raise BrokenStep(
            f"rollout {rollout.group}/{rollout.member} has tokens of {turns} turns, but {len(brought)} steps"
        )
    brought = [*brought[: turns - 1], math.fsum(brought[turns - 1 :])]
    return list(accumulate(reversed(brought)))[::-1]


def turn_advantages(members: Sequence[Sequence[float]], spread: float | None) -> list[list[float]]:
    """Of one group, by member and turn, from what came from each turn on; nothing for members that do not count.
    `spread` None: nothing divides."""
    means = []
    for turn in range(max(map(len, members), default=0)):
        reached = [gains[turn] for gains in members if len(gains) > turn]
        means.append(math.fsum(reached) / len(reached))
    divisor = 1.0 if spread is None else spread + _TINY
    return [[(gain - mean) / divisor for gain, mean in zip(gains, means, strict=False)] for gains in members]


def spread_of(rewards: Sequence[float]) -> float | None:
    """Standard deviation (of the sample); None where there is none to speak of."""
    if len(rewards) < 2:
        return None
    mean = math.fsum(rewards) / len(rewards)
    return math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))


def credit_turns(
    rollouts: Sequence[Rollout], masked: set[int], *, size: int, columns_for: ColumnsFor, scale: str
) -> None:
    """Give every rollout that counts its advantages by turn. The rollouts are groups of `size`, one after the other."""
    gains = [
        _gains(rollout, columns_for) if rollout.is_completed and place not in masked else []
        for place, rollout in enumerate(rollouts)
    ]
    overall = spread_of([gain[0] for gain in gains if gain])
    for first in range(0, len(rollouts), size):
        group = gains[first : first + size]
        spread = {"group": spread_of([gain[0] for gain in group if gain]), "batch": overall}.get(scale)
        for rollout, advantages in zip(rollouts[first:], turn_advantages(group, spread), strict=False):
            rollout.turn_advantages = advantages or None


def _gains(rollout: Rollout, columns_for: ColumnsFor) -> list[float]:
    turns = max(turns_of_tokens(rollout.completion_mask or [])) + 1
    return to_go(rollout, columns_for(rollout), turns)
