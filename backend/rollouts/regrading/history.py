"""The history of an environment by one version's rewards: regrade it, and read how that changes its conclusions.

Conclusions are the order of policies, best checkpoints and means. Only rollouts that completed on both sides count, so
that every difference comes from the reward alone.
"""

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from sqlalchemy import bindparam, select, text
from sqlalchemy.dialects.postgresql import ARRAY, UUID
from sqlalchemy.orm import Session, contains_eager, joinedload

from backend.checkpoints.tables import Checkpoint
from backend.domain.notifications.notices import NoticeKind
from backend.domain.rollouts.regrading import RegradingPlan
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.statistics import TIE, Estimate, estimate_mean, estimate_of, paired_difference
from backend.domain.vocabulary import UNDER_WAY, Phase, PolicyKind, RolloutStatus, RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.errors import Conflict
from backend.notifications import outbox
from backend.rollouts.regrading.schemas import (
    MAX_RUNS,
    BestCheckpointChange,
    Conclusions,
    HistoryPartResponse,
    HistoryResponse,
    MovedMean,
    PolicyRanking,
    RegradedCheckpoint,
    RegradedPolicy,
    StartRegrading,
    TurnedPair,
    UnrankedPolicy,
)
from backend.rollouts.regrading.service import start_regrading
from backend.rollouts.regrading.weights import rank_correlation
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from backend.web.audit import Requester

TRAINING_PHASES = (Phase.HELDOUT, Phase.TRAIN)
"""Phases of a training run that are regraded, one run each."""


class NothingToRegrade(Conflict):
    """Everything that this version can regrade is regraded or queued."""


@dataclass(frozen=True, slots=True)
class HistoryPart:
    """A run of the environment, or one phase of a training run, with its regraded copy."""

    source: Run
    phase: Phase | None
    """Training runs only."""
    copy: Run | None
    """The newest regrading of the whole part; None if none was started."""

    @property
    def name(self) -> str:
        """The policy of an evaluation; the name of a training run."""
        source, checkpoint = self.source, self.source.checkpoint
        if source.kind is RunKind.TRAINING or source.policy is None:
            return source.name
        return f"{source.policy.name} {checkpoint.stage} {checkpoint.step}" if checkpoint else source.policy.name

    @property
    def state(self) -> Literal["missing", "open", "graded", "unended"]:
        """`unended`: the regrading was refused, was stopped or failed."""
        if self.copy is None:
            return "missing"
        if self.copy.status is RunStatus.COMPLETED:
            return "graded"
        return "unended" if self.copy.status.is_over else "open"


def history_of(session: Session, version: EnvironmentVersion) -> list[HistoryPart]:
    """Finished evaluations and training runs of the environment's other versions, oldest first.

    Without runs on several environments, and without imported runs, whose episodes were played elsewhere.
    """
    copies: dict[tuple[uuid.UUID, Phase | None], Run] = {}
    regraded = select(Run).where(Run.version_id == version.id, Run.kind == RunKind.RESCORE).order_by(Run.id)
    for run in session.scalars(regraded.options(joinedload(Run.policy), joinedload(Run.checkpoint))):
        plan = RegradingPlan.model_validate(run.configuration)
        if run.source_run_id and plan.plays and not plan.where and not plan.rollout_ids:
            copies[run.source_run_id, plan.phase] = run

    sources = (
        select(Run)
        .join(Run.version)
        .options(contains_eager(Run.version), joinedload(Run.policy), joinedload(Run.checkpoint))
        .where(
            EnvironmentVersion.environment_id == version.environment_id,
            Run.version_id != version.id,
            Run.kind.in_((RunKind.EVALUATION, RunKind.TRAINING)),
            Run.status.not_in(UNDER_WAY),
        )
        .order_by(Run.created_at, Run.id)
    )
    parts = []
    for run in session.scalars(sources).all():
        if run.is_imported or run.configuration.get("mix"):
            continue
        phases: tuple[Phase | None, ...] = (None,) if run.kind is RunKind.EVALUATION else TRAINING_PHASES
        for phase in phases:
            stored = select(Rollout.id).where(Rollout.run_id == run.id, Rollout.status == RolloutStatus.COMPLETED)
            stored = stored.where(Rollout.phase == phase) if phase else stored
            if session.scalar(stored.limit(1)) is not None:
                parts.append(HistoryPart(run, phase, copies.get((run.id, phase))))
    return parts


def regrade_history(session: Session, actor: Requester, version: EnvironmentVersion) -> list[Run]:
    """Queue a regrading of every part that has none. A part whose regrading was refused is not queued again.

    Raises NothingToRegrade if no part is missing.
    """
    missing = [part for part in history_of(session, version) if part.state == "missing"]
    if not missing:
        raise NothingToRegrade
    started: list[Run] = []
    for phase in dict.fromkeys(part.phase for part in missing):
        ids = [part.source.id for part in missing if part.phase == phase]
        for start in range(0, len(ids), MAX_RUNS):
            request = StartRegrading(run_ids=ids[start : start + MAX_RUNS], version_id=version.id, phase=phase)
            started += start_regrading(session, actor, request).runs
    return started


MIN_COVERAGE = 0.95
"""Fraction of an evaluation's tasks that need both scores. A policy with less is not ranked."""
MIN_TASKS = 2
MAX_TURNED = 12
"""Pairs of policies that are listed with their intervals, the largest change first."""


TaskScores = dict[tuple[str, int, int], tuple[float, float]]
"""By split, number and seed of a task: mean reward before and after, over its rollouts that completed on both sides."""
Scores = defaultdict[uuid.UUID, defaultdict[int, TaskScores]]
"""By regrading run and training step; 0 for an evaluation."""


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
    scores: Scores = defaultdict(lambda: defaultdict(dict))
    for row in session.execute(_SCORES, {"runs": copies}):
        scores[row.run_id][row.step][row.split, row.number, row.seed] = row.before, row.after
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


def _rank_policies(evaluations: Sequence[HistoryPart], scores: Scores) -> Iterator[PolicyRanking]:
    """A ranking for each set of comparable evaluations, with the newest evaluation of every policy."""
    comparable: defaultdict[tuple[Any, ...], dict[tuple[object, ...], HistoryPart]] = defaultdict(dict)
    for part in evaluations:
        source = part.source
        if source.policy is None:
            continue
        plan = EvaluationPlan.model_validate(source.configuration)
        sampling = plan.sampling
        key = (source.version_id, str(plan.split), tuple(plan.task_indexes), plan.group_size)
        temperature = None if source.policy.kind is PolicyKind.SCRIPTED else sampling.temperature
        comparable[*key, sampling.max_tokens_per_turn][source.policy_id, source.checkpoint_id, temperature] = part

    for (_, split, tasks, group_size, _), newest in comparable.items():
        parts = list(newest.values())
        own = {part.source.id: scores[part.copy.id][0] if part.copy else {} for part in parts}
        ranked = [part for part in parts if len(own[part.source.id]) >= MIN_COVERAGE * len(tasks)]
        if len(ranked) < 2:
            continue
        common = sorted(set.intersection(*(set(own[part.source.id]) for part in ranked)))
        if len(common) < MIN_TASKS:
            continue
        rewards = {
            part.source.id: [[own[part.source.id][task][side] for task in common] for side in (0, 1)] for part in ranked
        }
        policies, turned, turned_count = _compare_orders(ranked, rewards)
        number = ranked[0].source.version.number
        apart = [
            UnrankedPolicy(
                run_id=part.source.id,
                name=part.name,
                reason=f"{len(own[part.source.id])} of {len(tasks)} tasks have both scores",
            )
            for part in parts
            if part not in ranked
        ]
        yield PolicyRanking(
            label=f"v{number}: {len(tasks):,} {split.replace('heldout', 'held-out')} tasks, {group_size} per task",
            tasks=len(common),
            contenders=policies,
            rank_correlation=rank_correlation(
                [each.place_before for each in policies], [each.place_after for each in policies]
            ),
            turned=turned,
            turned_count=turned_count,
            apart=apart,
            is_changed=bool(turned),
        )


Rewards = Mapping[uuid.UUID, Sequence[Sequence[float]]]
"""By run: rewards of the common tasks before and after, in the same order."""


def _compare_orders(
    parts: Sequence[HistoryPart], rewards: Rewards
) -> tuple[list[RegradedPolicy], list[TurnedPair], int]:
    """Policies in the new order, where equal rewards share a place; pairs whose order reversed and their number."""
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
    policies.sort(key=lambda each: (each.place_after, each.place_before, each.name))
    turned = []
    for one, other in combinations(policies, 2):
        before, after = one.before.mean - other.before.mean, one.after.mean - other.after.mean
        if min(abs(before), abs(after)) > TIE and before * after < 0:
            turned.append((abs(before - after), (one, other) if before > 0 else (other, one)))
    pairs = []
    for _, (first, second) in sorted(turned, key=lambda each: -each[0])[:MAX_TURNED]:
        sides = zip(rewards[second.run_id], rewards[first.run_id], strict=True)
        old, new = (paired_difference(*side) or _estimate(()) for side in sides)
        is_clear = old.excludes_zero and new.excludes_zero
        pairs.append(TurnedPair(first=first.name, second=second.name, before=old, after=new, is_clear=is_clear))
    return policies, pairs, len(turned)


def _best_checkpoints(session: Session, parts: Sequence[HistoryPart], scores: Scores) -> Iterator[BestCheckpointChange]:
    for part in parts:
        by_step = scores[part.copy.id] if part.copy else {}
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


def describe_history(session: Session, environment: str, version: EnvironmentVersion) -> HistoryResponse:
    history = history_of(session, version)
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
