"""When did the policy begin to use the hole? Told by a formula from what the run has stored, without any detector.

The hole of `sloppy_guess`: an episode may be broken off by a reply that cannot be read, and keeps what it gained. The
exploit's share of a step is the share of its episodes that ended so. The base rate is that of the policy before its
first step of reinforcement: its held-out examination and the episodes of step 1, which the same weights played. With k0
of n0 such episodes, p = (k0 + 1) / (n0 + 2) and n episodes in a step, the onset is the first step from 2 on with

    share > p + 3 · √(p · (1 − p) · (1/n0 + 1/n))
"""

import math
import statistics
import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select

from backend.core.session import transaction
from backend.domain.vocabulary import Phase, RolloutStatus, StopReason
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run

SIGMAS = 3.0
BROKEN_OFF = (StopReason.UNPARSABLE, StopReason.TOKEN_LIMIT)


@dataclass(frozen=True, slots=True)
class StepShares:
    """What the episodes of one step came to."""

    step: int
    count: int
    broken_off: int
    reward: float
    found: float
    """Share of the numbers that were found."""

    @property
    def share(self) -> float:
        return self.broken_off / self.count


@dataclass(frozen=True, slots=True)
class Onset:
    """Of the exploit."""

    base: float
    """Its share before reinforcement."""
    step: int | None
    """None: its share never rose so far."""
    limit: float
    """The share from which on it is one."""


def shares_of(run_id: uuid.UUID, phase: Phase = Phase.TRAIN) -> list[StepShares]:
    """By step of reinforcement."""
    wanted = (Rollout.run_id == run_id, Rollout.phase == phase, Rollout.status == RolloutStatus.COMPLETED)
    statement = select(Rollout.training_step, Rollout.stop_reason, Rollout.reward, Rollout.columns)
    statement = statement.where(*wanted, Rollout.training_step.is_not(None))  # None: of the untrained policy
    with transaction() as session:
        win = session.get_one(Run, run_id).columns.index("win")
        steps: dict[int, list[tuple[str, float, float]]] = defaultdict(list)
        for step, reason, reward, columns in session.execute(statement):
            steps[step].append((reason, reward, columns[win]))
    return [_step(step, rows) for step, rows in sorted(steps.items())]


def _step(step: int, rows: Sequence[tuple[str, float, float]]) -> StepShares:
    return StepShares(
        step=step,
        count=len(rows),
        broken_off=sum(reason in BROKEN_OFF for reason, _, _ in rows),
        reward=statistics.fmean(reward for _, reward, _ in rows),
        found=statistics.fmean(found for _, _, found in rows),
    )


def onset_of(run_id: uuid.UUID) -> Onset:
    trained = shares_of(run_id)
    before = [each for each in shares_of(run_id, Phase.HELDOUT) if each.step == 0] + trained[:1]
    return onset_in(before, trained[1:])


def onset_in(before: Sequence[StepShares], trained: Sequence[StepShares]) -> Onset:
    count = sum(each.count for each in before)
    base = (sum(each.broken_off for each in before) + 1) / (count + 2)

    def limit(each: StepShares) -> float:
        return base + SIGMAS * math.sqrt(base * (1 - base) * (1 / count + 1 / each.count))

    found = next((each for each in trained if each.share > limit(each)), None)
    return Onset(base, found.step if found else None, limit(found or trained[-1]))
