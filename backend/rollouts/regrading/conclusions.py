"""How regrading changes the conclusions of a history: the order of policies, best checkpoints, means that moved.

Only rollouts that completed on both sides count, so that every difference comes from the reward alone.
"""

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from sqlalchemy import bindparam, select, text
from sqlalchemy.dialects.postgresql import ARRAY, UUID
from sqlalchemy.orm import Session, joinedload

from backend.checkpoints.tables import Checkpoint
from backend.domain.notifications.notices import NoticeKind
from backend.domain.rollouts.regrading import RegradingPlan
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.statistics import TIE, Estimate, estimate_mean, estimate_of, paired_difference
from backend.domain.vocabulary import Phase, PolicyKind, RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.notifications import outbox
from backend.operations.schemas import Response
from backend.rollouts.regrading.history import HistoryPart, history_of
from backend.rollouts.regrading.weights import rank_correlation
from backend.runs.tables import Run

MIN_COVERAGE = 0.95
"""Fraction of an evaluation's tasks that need both scores. A policy with less is not ranked."""
MIN_TASKS = 2
MAX_TURNED = 12
"""Pairs of policies that are listed with their intervals, the largest change first."""


class EvaluationKey(NamedTuple):
    """Settings that two evaluations must share to be ranked together."""

    version_id: uuid.UUID
    split: str
    tasks: tuple[int, ...]
    group_size: int
    max_tokens_per_turn: int


class RegradedTask(NamedTuple):
    """A task of a run; of a training run, at one step."""

    step: int
    split: str
    number: int
    seed: int


TaskScores = dict[RegradedTask, tuple[float, float]]
"""Mean reward before and after, over the rollouts of a task that completed on both sides."""


class RegradedPolicy(Response):
    """A policy in one evaluation, on the tasks that all ranked policies share."""

    run_id: uuid.UUID
    name: str
    before: Estimate
    after: Estimate
    place_before: int
    place_after: int


class TurnedPair(Response):
    """Two policies whose order reversed. Differences are first minus second, paired by task."""

    first: str
    """The better one before."""
    second: str
    before: Estimate
    after: Estimate
    is_clear: bool
    """Both intervals exclude zero."""


class UnrankedPolicy(Response):
    """A policy that is not ranked."""

    run_id: uuid.UUID
    name: str
    reason: str


class PolicyRanking(Response):
    """The policies of one evaluation."""

    label: str
    tasks: int
    """Tasks that all policies share."""
    contenders: list[RegradedPolicy]
    """In the new order."""
    rank_correlation: float | None
    """Kendall's tau-b of the two orders; null if all policies earn the same on one side."""
    turned: list[TurnedPair]
    turned_count: int
    apart: list[UnrankedPolicy]
    is_changed: bool


class RegradedCheckpoint(Response):
    """A checkpoint that is the best of its run on one side."""

    checkpoint_id: uuid.UUID
    stage: str
    step: int
    before: Estimate
    after: Estimate
    is_pruned: bool


class BestCheckpointChange(Response):
    """The best checkpoint of a training run before and after."""

    run_id: uuid.UUID
    name: str
    before: RegradedCheckpoint
    after: RegradedCheckpoint
    examinations: int
    """Number of held-out evaluations."""
    difference: Estimate | None
    """New best minus old best by the new reward, paired by task; null if they are the same."""
    is_changed: bool


class MovedMean(Response):
    """A run whose new mean is outside the 95% interval of the old one."""

    run_id: uuid.UUID
    rescore_id: uuid.UUID
    name: str
    phase: Phase | None
    before: Estimate
    after: Estimate
    difference: Estimate
    """Paired by group."""
    rollouts: int


class Conclusions(Response):
    """Changed conclusions over all parts that are regraded."""

    is_changed: bool
    compared: int
    """Parts that were compared for means that moved."""
    rankings: list[PolicyRanking]
    """The largest first."""
    checkpoints: list[BestCheckpointChange]
    moved: list[MovedMean]
    """The largest change first."""


class HistoryPartResponse(Response):
    """A run of the environment, or one phase of a training run."""

    run_id: uuid.UUID
    name: str
    kind: RunKind
    version: int
    phase: Phase | None
    rescore_id: uuid.UUID | None
    """The regrading run; null if none was started."""
    status: RunStatus | None
    reason: str | None
    """Why the regrading was refused, was stopped or failed."""
    done: int
    total: int


class HistoryResponse(Response):
    """The history of an environment by one version's rewards."""

    environment: str
    version: int
    parts: list[HistoryPartResponse]
    missing: int
    """Parts without a regrading."""
    graded: int
    open: int
    unended: int
    """Refused, stopped or failed."""
    rollouts_done: int
    rollouts_asked: int
    conclusions: Conclusions


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


def conclusions_of(session: Session, history: Sequence[HistoryPart]) -> Conclusions:
    """Compute what changes by the version's rewards, over the parts that are regraded."""
    graded = [part for part in history if part.state == "graded"]
    evaluations = [part for part in graded if part.source.kind is RunKind.EVALUATION]
    heldout = [part for part in graded if part.phase is Phase.HELDOUT]
    copies = [part.copy.id for part in (*evaluations, *heldout) if part.copy]
    scores: defaultdict[uuid.UUID, TaskScores] = defaultdict(dict)
    for row in session.execute(_SCORES, {"runs": copies}):
        scores[row.run_id][RegradedTask(row.step, row.split, row.number, row.seed)] = row.before, row.after
    rankings = sorted(_rank_policies(evaluations, scores), key=lambda each: (-len(each.contenders), each.label))
    checkpoints = list(_best_checkpoints(session, heldout, scores))

    moved = []
    by_copy = {part.copy.id: part for part in graded if part.copy}
    for row in session.execute(_MEANS, {"runs": list(by_copy)}):
        before = estimate_of(row.before, row.before_spread, row.groups)
        after = estimate_of(row.after, row.after_spread, row.groups)
        if not before.low - TIE <= after.mean <= before.high + TIE:
            part = by_copy[row.run_id]
            moved.append(
                MovedMean(
                    run_id=part.source.id,
                    rescore_id=row.run_id,
                    name=part.name,
                    phase=part.phase,
                    before=before,
                    after=after,
                    difference=estimate_of(row.gain, row.gain_spread, row.groups),
                    rollouts=row.rollouts,
                )
            )
    return Conclusions(
        is_changed=bool(moved)
        or any(each.is_changed for each in rankings)
        or any(each.is_changed for each in checkpoints),
        compared=len(graded),
        rankings=rankings,
        checkpoints=checkpoints,
        moved=sorted(moved, key=lambda each: -abs(each.difference.mean)),
    )


def _rank_policies(
    evaluations: Sequence[HistoryPart], scores: Mapping[uuid.UUID, TaskScores]
) -> Iterator[PolicyRanking]:
    """A ranking for each set of comparable evaluations, with the newest evaluation of every policy."""
    comparable: defaultdict[EvaluationKey, dict[tuple[object, ...], HistoryPart]] = defaultdict(dict)
    for part in evaluations:
        source = part.source
        if source.policy is None:
            continue
        plan = EvaluationPlan.model_validate(source.configuration)
        sampling = plan.sampling
        key = EvaluationKey(
            source.version_id, str(plan.split), tuple(plan.task_indexes), plan.group_size, sampling.max_tokens_per_turn
        )
        temperature = None if source.policy.kind is PolicyKind.SCRIPTED else sampling.temperature
        comparable[key][source.policy_id, source.checkpoint_id, temperature] = part

    for key, newest in comparable.items():
        parts = list(newest.values())
        own = {part.source.id: scores.get(part.copy.id, {}) if part.copy else {} for part in parts}
        ranked = [part for part in parts if len(own[part.source.id]) >= MIN_COVERAGE * len(key.tasks)]
        if len(ranked) < 2:
            continue
        common = sorted(set.intersection(*(set(own[part.source.id]) for part in ranked)))
        if len(common) < MIN_TASKS:
            continue
        rewards = {
            part.source.id: [[own[part.source.id][task][side] for task in common] for side in (0, 1)] for part in ranked
        }
        policies = _place_policies(ranked, rewards)
        turned = _turned_pairs(policies)
        listed = []
        for first, second in turned[:MAX_TURNED]:
            sides = zip(rewards[second.run_id], rewards[first.run_id], strict=True)
            before, after = (paired_difference(*side) or _estimate(()) for side in sides)
            is_clear = before.excludes_zero and after.excludes_zero
            listed.append(
                TurnedPair(first=first.name, second=second.name, before=before, after=after, is_clear=is_clear)
            )
        split = "held-out" if key.split == "heldout" else key.split
        number = ranked[0].source.version.number
        apart = [
            UnrankedPolicy(
                run_id=part.source.id,
                name=part.name,
                reason=f"{len(own[part.source.id])} of {len(key.tasks)} tasks have both scores",
            )
            for part in parts
            if part not in ranked
        ]
        yield PolicyRanking(
            label=f"v{number}: {len(key.tasks):,} {split} tasks, {key.group_size} per task",
            tasks=len(common),
            contenders=policies,
            rank_correlation=rank_correlation(
                [each.place_before for each in policies], [each.place_after for each in policies]
            ),
            turned=listed,
            turned_count=len(turned),
            apart=apart,
            is_changed=bool(turned),
        )


Rewards = Mapping[uuid.UUID, Sequence[Sequence[float]]]
"""By run: rewards of the common tasks before and after, in the same order."""


def _place_policies(parts: Sequence[HistoryPart], rewards: Rewards) -> list[RegradedPolicy]:
    """Policies in the new order. Policies with equal rewards share a place."""
    estimates = {run_id: [_estimate(values) for values in sides] for run_id, sides in rewards.items()}
    policies = []
    for part in parts:
        own = estimates[part.source.id]
        places = [1 + sum(other[side].mean > own[side].mean + TIE for other in estimates.values()) for side in (0, 1)]
        policies.append(
            RegradedPolicy(
                run_id=part.source.id,
                name=part.name,
                before=own[0],
                after=own[1],
                place_before=places[0],
                place_after=places[1],
            )
        )
    return sorted(policies, key=lambda each: (each.place_after, each.place_before, each.name))


def _turned_pairs(policies: Sequence[RegradedPolicy]) -> list[tuple[RegradedPolicy, RegradedPolicy]]:
    """Pairs whose better policy, which comes first, became the worse one; the largest change first."""
    turned = []
    for one, other in combinations(policies, 2):
        before, after = one.before.mean - other.before.mean, one.after.mean - other.after.mean
        if min(abs(before), abs(after)) > TIE and before * after < 0:
            turned.append((abs(before - after), (one, other) if before > 0 else (other, one)))
    return [pair for _, pair in sorted(turned, key=lambda each: -each[0])]


def _best_checkpoints(
    session: Session, parts: Sequence[HistoryPart], scores: Mapping[uuid.UUID, TaskScores]
) -> Iterator[BestCheckpointChange]:
    for part in parts:
        by_step: defaultdict[int, TaskScores] = defaultdict(dict)
        for task, pair in (scores.get(part.copy.id, {}) if part.copy else {}).items():
            by_step[task.step][task._replace(step=0)] = pair
        evaluated = select(Checkpoint).where(
            Checkpoint.run_id == part.source.id, Checkpoint.heldout_reward.is_not(None)
        )
        checkpoints: list[tuple[RegradedCheckpoint, TaskScores]] = []
        for checkpoint in session.scalars(evaluated.order_by(Checkpoint.created_at, Checkpoint.id)):
            step = checkpoint.heldout.get("training_step")
            if step is not None and (own := by_step.get(step)):
                before, after = ([pair[side] for pair in own.values()] for side in (0, 1))
                regraded = RegradedCheckpoint(
                    checkpoint_id=checkpoint.id,
                    stage=checkpoint.stage,
                    step=checkpoint.step,
                    before=_estimate(before),
                    after=_estimate(after),
                    is_pruned=checkpoint.pruned_at is not None,
                )
                checkpoints.append((regraded, own))
        if not checkpoints:
            continue
        old, old_scores = max(checkpoints, key=lambda each: (each[0].before.mean, -each[0].step))
        new, new_scores = max(checkpoints, key=lambda each: (each[0].after.mean, -each[0].step))
        is_changed = old.checkpoint_id != new.checkpoint_id
        common = sorted(old_scores.keys() & new_scores.keys())
        sides = ([each[task][1] for task in common] for each in (old_scores, new_scores))
        yield BestCheckpointChange(
            run_id=part.source.id,
            name=part.source.name,
            before=old,
            after=new,
            examinations=len(checkpoints),
            difference=paired_difference(*sides) if is_changed else None,
            is_changed=is_changed,
        )


def _estimate(values: Sequence[float]) -> Estimate:
    return estimate_mean(values) or Estimate(0.0, 0.0, 0.0, 0)


def describe_history(
    session: Session, environment: str, version: EnvironmentVersion, history: Sequence[HistoryPart]
) -> HistoryResponse:
    """The parts with their progress, and the conclusions."""
    states = Counter(part.state for part in history)
    parts = []
    for part in history:
        source, copy = part.source, part.copy
        progress = copy.progress if copy else {}
        parts.append(
            HistoryPartResponse(
                run_id=source.id,
                name=part.name,
                kind=source.kind,
                version=source.version.number,
                phase=part.phase,
                rescore_id=copy.id if copy else None,
                status=copy.status if copy else None,
                reason=copy.reason if copy else None,
                done=int(progress.get("done") or 0),
                total=int(progress.get("total") or 0),
            )
        )
    return HistoryResponse(
        environment=environment,
        version=version.number,
        parts=parts,
        missing=states["missing"],
        graded=states["graded"],
        open=states["open"],
        unended=states["unended"],
        rollouts_done=sum(part.done for part in parts),
        rollouts_asked=sum(part.total for part in parts),
        conclusions=conclusions_of(session, history),
    )


def notify_of_history(session: Session, run: Run) -> None:
    """Notify the team if the regrading run that ended completes its history and a conclusion changes."""
    if run.kind is not RunKind.RESCORE or not RegradingPlan.model_validate(run.configuration).plays:
        return
    version = session.get_one(EnvironmentVersion, run.version_id, options=[joinedload(EnvironmentVersion.environment)])
    history = history_of(session, version)
    states = Counter(part.state for part in history)
    if states["open"] or states["missing"] or states["graded"] < 2:
        return
    found = conclusions_of(session, history)
    if found.is_changed:
        name = version.environment.name
        checkpoints = sum(each.is_changed for each in found.checkpoints)
        outbox.announce(
            session,
            kind=NoticeKind.RESCORING,
            title=f"{name} v{version.number} changes conclusions about its history",
            text=(
                f"Pairs of policies that turned: {sum(each.turned_count for each in found.rankings)}; training runs "
                f"with another best checkpoint: {checkpoints} of {len(found.checkpoints)}; means outside their old "
                f"interval: {len(found.moved)} of {found.compared}. "
                f"{states['graded']} of {len(history)} parts are graded."
            ),
            path=f"/environments/{name}/versions/{version.number}/history",
        )
