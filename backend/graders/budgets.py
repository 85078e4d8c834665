"""Budgets: graders that run automatically, on the rollouts where an answer changes most. A contrastive judge compares
groups, so whole groups are drawn.

Housekeeping draws a random sample with known chances from each run that detectors have scanned, and queues the grader.
Rollouts are limited when they are drawn, money before each request. When the money is spent, the sample ends and keeps
its known chances. Nothing here fails a run.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, and_, delete, func, insert, or_, select, update
from sqlalchemy.orm import Session, joinedload

from backend.detectors.queries import JUDGED_PHASES
from backend.domain.graders.evidence import GroupFinding
from backend.domain.graders.sampling import Candidate, choose, size_of
from backend.domain.graders.settings import GraderKind, QuestionSettings, read_settings
from backend.domain.ids import new_id
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import RunKind, RunStatus
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import Conflict, InvalidInput, NotFound
from backend.graders.queries import find_work
from backend.graders.schemas import BudgetResponse, SetBudget
from backend.graders.selection import contrast_groups, nothing_to_grade, rollouts_to_grade
from backend.graders.service import GraderIsDeleted, queue_work, refuse_unable
from backend.graders.tables import Grade, Grader, GraderBudget, GraderRun, GraderSample
from backend.policies.tables import Policy
from backend.review.audit_sample import can_be_sampled, lots_of
from backend.review.tables import ReviewItem
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from backend.web.formats import usd

if TYPE_CHECKING:
    from backend.web.identity import Actor

SMALLEST = 10
"""Rollouts drawn at once from a run that still trains: each job has its cost. At its end, the rest is drawn."""
AT_ONCE = 50_000
"""Rollouts read at once."""
INJECTABLE = "This grader follows instructions in the data, so it does not run automatically."
RETRY_AFTER = timedelta(minutes=15)
"""A grader whose endpoint failed is tried again after this time."""


@dataclass(frozen=True, slots=True)
class Spent:
    rollouts: int
    cost: float


def set_budget(session: Session, actor: Actor, grader: Grader, request: SetBudget, place: Environment) -> GraderBudget:
    """Create or replace the budget of a grader for an environment."""
    if grader.deleted_at is not None:
        raise GraderIsDeleted
    has_price = bool(session.get_one(Policy, grader.policy_id).configuration.get("price"))
    amounts = request.model_dump(exclude={"environment"})
    if not has_price and (priced := [name for name, value in amounts.items() if "cost" in name and value is not None]):
        problem = "The policy has no price, so its cost is unknown. Set a price, or limit rollouts only."
        raise InvalidInput(problem, fields=dict.fromkeys(priced, problem))
    own = GraderBudget.grader_id == grader.id, GraderBudget.environment_id == place.id
    budget = session.scalar(select(GraderBudget).where(*own).with_for_update())
    if budget is None:
        budget = GraderBudget(id=new_id(), grader_id=grader.id, environment_id=place.id)
        session.add(budget)
    for name, value in amounts.items():
        setattr(budget, name, value)
    budget.grader, budget.environment, budget.changed_by = grader, place, actor.person_id
    session.flush()
    return budget


def get_budget(session: Session, grader: Grader, environment: Environment) -> GraderBudget:
    for budget in budgets_of(session, grader):
        if budget.environment_id == environment.id:
            return budget
    raise NotFound(f"{grader.name} has no budget for {environment.name}.")


def budgets_of(session: Session, grader: Grader) -> Sequence[GraderBudget]:
    """By name of the environment."""
    statement = select(GraderBudget).join(GraderBudget.environment).where(GraderBudget.grader_id == grader.id)
    both = joinedload(GraderBudget.environment), joinedload(GraderBudget.grader)
    return session.scalars(statement.options(*both).order_by(Environment.name)).all()


def describe_budget(session: Session, budget: GraderBudget) -> BudgetResponse:
    """Include what it spent today and whether it can spend more."""
    today = spent(session, budget)
    return BudgetResponse.from_row(
        budget,
        environment=budget.environment.name,
        grader=budget.grader.name,
        rollouts_today=today.rollouts,
        cost_today=today.cost,
        problem=INJECTABLE if _is_injectable(session, budget) else _exhausted(session, budget),
    )


def spent(session: Session, budget: GraderBudget, work: GraderRun | None = None) -> Spent:
    """On one run, or today on all runs of the environment."""
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    in_environment = select(Run.id).join(EnvironmentVersion, EnvironmentVersion.id == Run.version_id)
    in_environment = in_environment.where(EnvironmentVersion.environment_id == budget.environment_id)
    works = select(GraderRun.id).where(GraderRun.grader_id == budget.grader_id, GraderRun.drawn_seq > 0)
    works = works.where(GraderRun.id == work.id if work else GraderRun.run_id.in_(in_environment))
    drawn = select(func.count(GraderSample.id)).where(GraderSample.grader_run_id.in_(works))
    graded = select(func.sum(Grade.cost)).join(GraderSample, GraderSample.rollout_id == Grade.rollout_id)
    graded = graded.where(Grade.grader_id == budget.grader_id, GraderSample.grader_run_id.in_(works))
    canaries = select(func.sum(GraderRun.cost)).where(GraderRun.id.in_(works))
    if work is None:
        drawn = drawn.where(GraderSample.created_at >= midnight)
        graded = graded.where(Grade.created_at >= midnight)
        # A contrast has no grades: all of its cost is that of its work, which may have started on an earlier day.
        is_contrast = session.get_one(Grader, budget.grader_id).kind is GraderKind.CONTRAST
        at = func.coalesce(GraderRun.ended_at, func.now()) if is_contrast else GraderRun.started_at
        canaries = canaries.where(at >= midnight)
    return Spent(session.scalar(drawn) or 0, sum(session.scalar(each) or 0.0 for each in (graded, canaries)))


def _exhausted(
    session: Session,
    budget: GraderBudget,
    work: GraderRun | None = None,
    *,
    unstored: float = 0.0,
    by_money: bool = False,
) -> str:
    """Why it cannot draw more rollouts or, `by_money`, send more requests; empty if it can."""
    scopes: list[tuple[str, GraderRun | None, int, float | None]] = [
        ("today", None, budget.rollouts_per_day, budget.cost_per_day)
    ]
    if work is not None:
        scopes.append(("this run", work, budget.rollouts_per_run, budget.cost_per_run))
    for scope, of, rollouts, cost in scopes:
        if by_money and cost is None:
            continue
        used = spent(session, budget, of)
        if cost is not None and used.cost + unstored >= cost:
            return f"The budget for {scope} is spent: {usd(used.cost + unstored)} of {usd(cost)}."
        if used.rollouts >= rollouts and not by_money:
            return f"The budget for {scope} is spent: {used.rollouts:,} of {rollouts:,} rollouts."
    return ""


def grade_within_budgets(session: Session) -> int:
    """Draw from rollouts that were stored since the last call, and queue the graders. Returns the number drawn."""
    statement = (
        select(GraderBudget)
        .join(GraderBudget.grader)
        .options(joinedload(GraderBudget.grader))
        .where(Grader.deleted_at.is_(None))
        .order_by(GraderBudget.id)
        .with_for_update(of=GraderBudget, skip_locked=True)
    )
    return sum(_grade_within(session, budget) for budget in session.scalars(statement).all())


def _grade_within(session: Session, budget: GraderBudget) -> int:
    if _is_injectable(session, budget):
        return 0
    is_retried = and_(GraderRun.status == RunStatus.PAUSED, GraderRun.ended_at < func.now() - RETRY_AFTER)
    is_fresh = and_(
        Run.next_seq > func.coalesce(GraderRun.drawn_seq, 0) + 1,
        or_(GraderRun.id.is_(None), GraderRun.status == RunStatus.COMPLETED),
    )
    runs = (
        select(Run)
        .join(EnvironmentVersion, EnvironmentVersion.id == Run.version_id)
        .outerjoin(GraderRun, and_(GraderRun.run_id == Run.id, GraderRun.grader_id == budget.grader_id))
        .where(
            EnvironmentVersion.environment_id == budget.environment_id,
            can_be_sampled(),
            or_(GraderRun.id.is_(None), GraderRun.is_sampled),  # a person who started it on a run decides there
            or_(is_fresh, is_retried),
        )
        .order_by(Run.id)
    )
    drawn = 0
    for run in session.scalars(runs).all():
        work = find_work(session, run.id, budget.grader_id, for_update=True)
        if work is None:
            work = GraderRun(id=new_id(), grader_id=budget.grader_id, run_id=run.id, is_sampled=True, drawn_seq=0)
            work.status = RunStatus.COMPLETED
        is_waiting = work.status is RunStatus.PAUSED
        chosen = 0 if is_waiting else _draw(session, budget, run, work)
        if not chosen and not is_waiting:
            continue
        try:
            refuse_unable(session, budget.grader)
            queue_work(session, work)
        except Conflict as refused:
            work.status, work.reason, work.ended_at = RunStatus.FAILED, refused.message, datetime.now(UTC)
        drawn += chosen
    return drawn


def _draw(session: Session, budget: GraderBudget, run: Run, work: GraderRun) -> int:
    """Store the sample of the rollouts that are new in a run, and return its size."""
    if _exhausted(session, budget, work):
        return 0
    today, so_far = spent(session, budget), spent(session, budget, work)
    most = min(budget.rollouts_per_run - so_far.rollouts, budget.rollouts_per_day - today.rollouts)
    until = min(run.next_seq - 1, work.drawn_seq + AT_ONCE)
    if run.kind is RunKind.TRAINING and not run.status.is_over:  # keep some of the budget for later steps
        planned = TrainingConfiguration.of_run(run.configuration).sampled_rollouts
        fresh, later = until - work.drawn_seq, max(0, planned - until)
        most = most * fresh // (fresh + later)
        if most < min(SMALLEST, budget.rollouts_per_run):
            return 0
    highest = sum(max(0.0, weight) for weight in run.weights)
    settings = read_settings(budget.grader.settings)
    in_batch = rollouts_to_grade(session, run, settings, "").where(
        Rollout.seq > work.drawn_seq, Rollout.seq <= until, Rollout.phase.in_(JUDGED_PHASES)
    )
    columns = Rollout.id, Rollout.reward, Rollout.group_id, ReviewItem.suspicion, ReviewItem.cluster
    rows = session.execute(
        in_batch.outerjoin(ReviewItem, ReviewItem.rollout_id == Rollout.id).with_only_columns(*columns)
    )
    candidates: dict[uuid.UUID, Candidate] = {}
    for rollout_id, reward, group_id, suspicion, cluster in rows:
        share = (reward or 0.0) / highest if highest else 0.0
        number, _ = lots_of(work.id.int & (2**63 - 1), rollout_id)
        kind = cluster or (group_id, round(share, 1), bool(suspicion))
        candidates[rollout_id] = Candidate(rollout_id, number, share, suspicion or 0.0, kind)
    members: dict[uuid.UUID, tuple[uuid.UUID, ...]] = {each: (each,) for each in candidates}
    if isinstance(settings, QuestionSettings) and settings.kind is GraderKind.CONTRAST:
        # A group is drawn as its most suspicious member would be.
        groups = contrast_groups(session, run, settings.each, among=in_batch)
        most //= 2 * settings.each
        members = {}
        for group in groups:
            own = (*group.high, *group.low)
            members[max(own, key=lambda each: size_of(candidates[each]))] = own
        candidates = {each: candidates[each] for each in members}
    work.drawn_seq = until
    if not candidates and not so_far.rollouts:
        work.reason = nothing_to_grade(settings, "")
    session.add(work)
    session.flush()
    names = ("size", "priority", "chance")
    drawn = [
        {name: getattr(each, name) for name in names}
        | {"id": new_id(), "grader_run_id": work.id, "rollout_id": rollout_id, "batch": until}
        for each in choose(list(candidates.values()), most)
        for rollout_id in members[each.id]
    ]
    if drawn:
        session.execute(insert(GraderSample), drawn)
    return len(drawn)


def _is_injectable(session: Session, budget: GraderBudget) -> bool:
    """Its settings cannot change, so one failed canary is enough."""
    found = select(GraderRun.id).where(
        GraderRun.grader_id == budget.grader_id, GraderRun.canaries["is_injectable"].as_boolean()
    )
    return session.scalar(found.limit(1)) is not None


def why_to_stop(session: Session, work: GraderRun, unstored: float = 0.0) -> str:
    """Why the rest of a sample is not graded, as a sentence; empty if it is. `unstored`: dollars to add."""
    statement = (
        select(GraderBudget)
        .join(EnvironmentVersion, EnvironmentVersion.environment_id == GraderBudget.environment_id)
        .join(Run, Run.version_id == EnvironmentVersion.id)
        .where(GraderBudget.grader_id == work.grader_id, Run.id == work.run_id)
    )
    budget = session.scalar(statement)
    if budget is None:
        return "The budget was removed."
    if (work.canaries or {}).get("is_injectable"):
        return INJECTABLE
    return _exhausted(session, budget, work, unstored=unstored, by_money=True)


def end_sample(session: Session, work: GraderRun) -> str:
    """Remove what was not graded, because the money was spent, from the sample; return why.

    The first one that was not graded is the new threshold of its batch, so the chances of the others stay known.
    """
    is_tried: ColumnElement[bool] = (
        select(Grade.id).where(Grade.grader_id == work.grader_id, Grade.rollout_id == GraderSample.rollout_id).exists()
    )
    if session.get_one(Grader, work.grader_id).kind is GraderKind.CONTRAST:
        if not why_to_stop(session, work):
            return ""  # a comparison that failed is tried again
        findings = map(GroupFinding.model_validate, work.findings)
        is_tried = GraderSample.rollout_id.in_([each for found in findings for each in (*found.high, *found.low)])
    own = GraderSample.grader_run_id == work.id
    first = select(GraderSample.batch, func.min(GraderSample.priority)).where(own, ~is_tried)
    thresholds = session.execute(first.group_by(GraderSample.batch)).all()
    for batch, threshold in thresholds:
        in_batch = own, GraderSample.batch == batch
        session.execute(delete(GraderSample).where(*in_batch, GraderSample.priority >= threshold))
        lower = func.least(GraderSample.chance, GraderSample.size * threshold)
        session.execute(update(GraderSample).where(*in_batch).values(chance=lower))
    return why_to_stop(session, work) if thresholds else ""
