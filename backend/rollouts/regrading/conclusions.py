"""How a re-score changes what follows from a history: the order of policies, the best checkpoints, means that moved.

Only rollouts that completed on both sides count, so that a difference comes from the reward alone. scipy is imported
where it is used: it takes longer than the web's own start.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

from sqlalchemy import bindparam, select, text
from sqlalchemy.dialects.postgresql import ARRAY, UUID
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.statistics import TIE, Estimate, estimate_mean, estimate_of, paired_difference
from backend.domain.vocabulary import Phase, PolicyKind, RunKind
from backend.environments.tables import EnvironmentVersion
from backend.rollouts.regrading.history import History, Part

LEAST_COVERAGE = 0.95
"""Of an examination's tasks that have both scores: with less, a contender stands apart."""
FEWEST_TASKS = 2
MOST_TURNED = 12
"""Pairs of contenders that are told with their intervals, the largest change first."""


class Exam(NamedTuple):
    """What has to be the same for two evaluations to be ranked together."""

    version_id: uuid.UUID
    split: str
    tasks: tuple[int, ...]
    group_size: int
    tokens: int
    """A turn."""


class Task(NamedTuple):
    """A task of a run, in a training run at one step."""

    step: int
    split: str
    number: int
    seed: int


Scores = dict[Task, tuple[float, float]]
"""Mean reward before and after, over the rollouts of a task that completed on both sides."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy in one examination, on the tasks that all its rivals have too."""

    run_id: uuid.UUID
    name: str
    before: Estimate
    after: Estimate
    place_before: int
    place_after: int


@dataclass(frozen=True, slots=True)
class Turned:
    """Two contenders whose order turned. Differences are first less second, paired by task."""

    first: str
    """Was the better one."""
    second: str
    before: Estimate
    after: Estimate

    @property
    def is_clear(self) -> bool:
        """Both intervals exclude zero: chance did not turn them."""
        return self.before.excludes_zero and self.after.excludes_zero


@dataclass(frozen=True, slots=True)
class Apart:
    """What is not ranked, and why."""

    run_id: uuid.UUID
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Ranking:
    """Of one examination."""

    label: str
    tasks: int
    """That all have in common."""
    contenders: Sequence[Contender]
    """In the new order."""
    rank_correlation: float | None
    """Kendall's tau-b of the two orders; None where all earn the same on one side."""
    turned: Sequence[Turned]
    turned_count: int
    apart: Sequence[Apart]

    @property
    def is_changed(self) -> bool:
        return self.turned_count > 0


@dataclass(frozen=True, slots=True)
class Best:
    """A checkpoint that is the best of its run on one side."""

    checkpoint_id: uuid.UUID
    stage: str
    step: int
    before: Estimate
    after: Estimate
    is_pruned: bool


@dataclass(frozen=True, slots=True)
class BestCheckpoint:
    """Of a training run."""

    run_id: uuid.UUID
    name: str
    before: Best
    after: Best
    examinations: int
    difference: Estimate | None
    """New best less old best by the new reward, paired by task; None where they are the same."""

    @property
    def is_changed(self) -> bool:
        return self.before.checkpoint_id != self.after.checkpoint_id


@dataclass(frozen=True, slots=True)
class Moved:
    """A run whose mean lies outside its own 95 % interval by the new reward."""

    run_id: uuid.UUID
    copy_id: uuid.UUID
    name: str
    phase: Phase | None
    before: Estimate
    after: Estimate
    difference: Estimate
    """Paired by group."""
    rollouts: int


@dataclass(frozen=True, slots=True)
class Conclusions:
    """All that follows from the parts of a history that are graded."""

    rankings: Sequence[Ranking]
    """The largest first; only those with two contenders or more."""
    checkpoints: Sequence[BestCheckpoint]
    moved: Sequence[Moved]
    """The largest change first."""
    compared: int
    """Parts that were looked at for means that moved."""

    @property
    def is_changed(self) -> bool:
        is_turned = any(each.is_changed for each in self.rankings)
        return is_turned or bool(self.moved) or any(each.is_changed for each in self.checkpoints)


def conclusions_of(session: Session, history: History) -> Conclusions:
    graded = history.graded
    evaluations = [part for part in graded if part.source.kind is RunKind.EVALUATION]
    examinations = [part for part in graded if part.phase is Phase.HELDOUT]
    scores = _scores(session, [part.copy.id for part in (*evaluations, *examinations) if part.copy])
    numbers = _version_numbers(session, {part.source.version_id for part in evaluations})
    return Conclusions(
        rankings=sorted(_rankings(evaluations, scores, numbers), key=lambda each: (-len(each.contenders), each.label)),
        checkpoints=list(_best_checkpoints(session, examinations, scores)),
        moved=_moved(session, graded),
        compared=len(graded),
    )


_SCORES = text("""
SELECT r.run_id, coalesce(r.training_step, 0) AS step, t.split, t.index AS number, t.seed,
       avg(s.reward::float8) AS before, avg(r.reward::float8) AS after
FROM rollouts r
JOIN rollouts s ON s.id = r.source_id
JOIN groups g ON g.id = r.group_id
JOIN tasks t ON t.id = g.task_id
WHERE r.run_id = ANY(:runs) AND r.status = 'completed' AND s.status = 'completed'
GROUP BY 1, 2, 3, 4, 5
""").bindparams(bindparam("runs", type_=ARRAY(UUID(as_uuid=True))))

_MEANS = text("""
WITH by_group AS (
    SELECT r.run_id, avg(s.reward::float8) AS before, avg(r.reward::float8) AS after,
           avg(r.reward::float8 - s.reward) AS gain, count(*) AS rollouts
    FROM rollouts r JOIN rollouts s ON s.id = r.source_id
    WHERE r.run_id = ANY(:runs) AND r.status = 'completed' AND s.status = 'completed'
    GROUP BY r.run_id, r.group_id
)
SELECT run_id, count(*) AS groups, sum(rollouts)::int AS rollouts,
       avg(before) AS before, coalesce(stddev_samp(before), 0) AS before_spread,
       avg(after) AS after, coalesce(stddev_samp(after), 0) AS after_spread,
       avg(gain) AS gain, coalesce(stddev_samp(gain), 0) AS gain_spread
FROM by_group GROUP BY run_id
""").bindparams(bindparam("runs", type_=ARRAY(UUID(as_uuid=True))))


def _scores(session: Session, copies: Sequence[uuid.UUID]) -> dict[uuid.UUID, Scores]:
    found: defaultdict[uuid.UUID, Scores] = defaultdict(dict)
    for row in session.execute(_SCORES, {"runs": list(copies)}):
        found[row.run_id][Task(row.step, row.split, row.number, row.seed)] = row.before, row.after
    return found


def _version_numbers(session: Session, ids: Collection[uuid.UUID]) -> dict[uuid.UUID, int]:
    statement = select(EnvironmentVersion.id, EnvironmentVersion.number).where(EnvironmentVersion.id.in_(ids))
    return dict(session.execute(statement).all())


def _rankings(
    parts: Sequence[Part], scores: Mapping[uuid.UUID, Scores], numbers: Mapping[uuid.UUID, int]
) -> Iterator[Ranking]:
    """Of each examination the newest evaluation of every contender."""
    exams: defaultdict[Exam, dict[tuple[Any, ...], Part]] = defaultdict(dict)
    for part in parts:
        plan = EvaluationPlan.model_validate(part.source.configuration)
        if part.source.policy is None:
            continue
        is_sampled = part.source.policy.kind is not PolicyKind.SCRIPTED
        who = part.source.policy_id, part.source.checkpoint_id, plan.sampling.temperature if is_sampled else None
        exams[_exam(part, plan)][who] = part
    for exam, contenders in exams.items():
        if len(contenders) > 1 and (ranking := _ranking(exam, list(contenders.values()), scores, numbers)):
            yield ranking


def _exam(part: Part, plan: EvaluationPlan) -> Exam:
    tasks = tuple(plan.task_indexes)
    return Exam(part.source.version_id, str(plan.split), tasks, plan.group_size, plan.sampling.max_tokens_per_turn)


def _ranking(
    exam: Exam, parts: Sequence[Part], scores: Mapping[uuid.UUID, Scores], numbers: Mapping[uuid.UUID, int]
) -> Ranking | None:
    """None where fewer than two can be compared."""
    own = {part.source.id: scores.get(part.copy.id, {}) if part.copy else {} for part in parts}
    ranked = [part for part in parts if len(own[part.source.id]) >= LEAST_COVERAGE * len(exam.tasks)]
    if len(ranked) < 2:
        return None
    common = sorted(set.intersection(*(set(own[part.source.id]) for part in ranked)))
    if len(common) < FEWEST_TASKS:
        return None
    series = {
        part.source.id: (
            [own[part.source.id][task][0] for task in common],
            [own[part.source.id][task][1] for task in common],
        )
        for part in ranked
    }
    contenders = _placed(ranked, series)
    turned = _turned(contenders)
    split = "held-out" if exam.split == "heldout" else exam.split
    return Ranking(
        label=f"v{numbers.get(exam.version_id, 0)}: {len(exam.tasks):,} {split} tasks, {exam.group_size} a task",
        tasks=len(common),
        contenders=contenders,
        rank_correlation=_correlation(contenders),
        turned=[_told(first, second, series) for first, second in turned[:MOST_TURNED]],
        turned_count=len(turned),
        apart=[
            Apart(
                part.source.id, name_of(part), f"{len(own[part.source.id])} of {len(exam.tasks)} tasks have both scores"
            )
            for part in parts
            if part not in ranked
        ],
    )


Series = Mapping[uuid.UUID, tuple[Sequence[float], Sequence[float]]]
"""By run: rewards of the common tasks before and after, in the same order."""


def _placed(parts: Sequence[Part], series: Series) -> list[Contender]:
    estimates = {
        part.source.id: (_estimate(series[part.source.id][0]), _estimate(series[part.source.id][1])) for part in parts
    }
    places = [_places({run_id: pair[side].mean for run_id, pair in estimates.items()}) for side in (0, 1)]
    contenders = [
        Contender(
            part.source.id,
            name_of(part),
            *estimates[part.source.id],
            places[0][part.source.id],
            places[1][part.source.id],
        )
        for part in parts
    ]
    return sorted(contenders, key=lambda each: (each.place_after, each.place_before, each.name))


def _places(means: Mapping[uuid.UUID, float]) -> dict[uuid.UUID, int]:
    """Those that earn the same share a place."""
    return {run_id: 1 + sum(other > mean + TIE for other in means.values()) for run_id, mean in means.items()}


def _turned(contenders: Sequence[Contender]) -> list[tuple[Contender, Contender]]:
    """Pairs, the one that was better first, of which the better one became the worse; the largest change first."""
    found = []
    for one, other in combinations(contenders, 2):
        before, after = one.before.mean - other.before.mean, one.after.mean - other.after.mean
        if min(abs(before), abs(after)) > TIE and before * after < 0:
            found.append((abs(before - after), (one, other) if before > 0 else (other, one)))
    return [pair for _, pair in sorted(found, key=lambda each: -each[0])]


def _told(first: Contender, second: Contender, series: Series) -> Turned:
    before, after = (
        paired_difference(series[second.run_id][side], series[first.run_id][side]) or _estimate(()) for side in (0, 1)
    )
    return Turned(first.name, second.name, before, after)


def _correlation(contenders: Sequence[Contender]) -> float | None:
    from scipy import stats

    before, after = [each.place_before for each in contenders], [each.place_after for each in contenders]
    if len(set(before)) < 2 or len(set(after)) < 2:
        return None
    return float(stats.kendalltau(before, after).statistic)


def _best_checkpoints(
    session: Session, parts: Sequence[Part], scores: Mapping[uuid.UUID, Scores]
) -> Iterator[BestCheckpoint]:
    for part in parts:
        by_step: defaultdict[int, dict[Task, tuple[float, float]]] = defaultdict(dict)
        for task, pair in (scores.get(part.copy.id, {}) if part.copy else {}).items():
            by_step[task.step][task._replace(step=0)] = pair
        found = [_best(checkpoint, by_step[step]) for step, checkpoint in _examined(session, part) if step in by_step]
        if found:
            before = max(found, key=lambda each: (each[0].before.mean, -each[0].step))
            after = max(found, key=lambda each: (each[0].after.mean, -each[0].step))
            yield BestCheckpoint(
                run_id=part.source.id,
                name=part.source.name,
                before=before[0],
                after=after[0],
                examinations=len(found),
                difference=None if before is after else _gain(before[1], after[1]),
            )


def _examined(session: Session, part: Part) -> list[tuple[int, Checkpoint]]:
    """By the training step under which the examination's rollouts are stored."""
    of_run = Checkpoint.run_id == part.source.id, Checkpoint.heldout_reward.is_not(None)
    found = session.scalars(select(Checkpoint).where(*of_run).order_by(Checkpoint.created_at, Checkpoint.id))
    return [(step, each) for each in found if (step := each.heldout.get("training_step")) is not None]


def _best(checkpoint: Checkpoint, scores: Scores) -> tuple[Best, Scores]:
    before, after = ([pair[side] for pair in scores.values()] for side in (0, 1))
    is_pruned = checkpoint.pruned_at is not None
    best = Best(checkpoint.id, checkpoint.stage, checkpoint.step, _estimate(before), _estimate(after), is_pruned)
    return best, scores


def _gain(old: Scores, new: Scores) -> Estimate | None:
    common = sorted(old.keys() & new.keys())
    return paired_difference([old[task][1] for task in common], [new[task][1] for task in common])


def _moved(session: Session, parts: Sequence[Part]) -> list[Moved]:
    by_copy = {part.copy.id: part for part in parts if part.copy}
    found = []
    for row in session.execute(_MEANS, {"runs": list(by_copy)}):
        before = estimate_of(row.before, row.before_spread, row.groups)
        after = estimate_of(row.after, row.after_spread, row.groups)
        if before.low - TIE <= after.mean <= before.high + TIE:
            continue
        part = by_copy[row.run_id]
        difference = estimate_of(row.gain, row.gain_spread, row.groups)
        found.append(
            Moved(part.source.id, row.run_id, name_of(part), part.phase, before, after, difference, row.rollouts)
        )
    return sorted(found, key=lambda each: -abs(each.difference.mean))


def name_of(part: Part) -> str:
    """Of an evaluation who played; of a training run its name."""
    source = part.source
    if source.kind is RunKind.TRAINING or source.policy is None:
        return source.name
    checkpoint = source.checkpoint
    return f"{source.policy.name} {checkpoint.stage} {checkpoint.step}" if checkpoint else source.policy.name


def _estimate(values: Sequence[float]) -> Estimate:
    return estimate_mean(values) or Estimate(0.0, 0.0, 0.0, 0)
