"""Who does best on an environment version: one row a contender, ranked only among those who sat the same examination.

An examination is a split, its tasks, the number of rollouts a task and the tokens a turn. A contender is a policy with
its checkpoint and its sampling; its newest evaluation counts. Intervals that overlap share ranks.
"""

import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session, contains_eager, joinedload

from backend.checkpoints.tables import Checkpoint
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.statistics import Coverage, Estimate
from backend.domain.vocabulary import UNDER_WAY, PolicyKind, RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.policies.tables import Policy
from backend.runs.tables import Run

MOST_RUNS = 2000
"""Of a version, the newest first."""
LEAST_COVERAGE = 0.95
"""Of the rollouts, to be ranked: what failed is seldom a fair sample."""
BASELINES = frozenset({"random", "constant", "empty", "echo", "repeat"})
RANKED_KINDS = (RunKind.EVALUATION, RunKind.RESCORE, RunKind.REPLAY)


class Exam(NamedTuple):
    """What has to be the same to be ranked together."""

    split: str
    first_task: int
    tasks: int
    group_size: int
    tokens: int
    """A turn."""
    which: str = ""
    """Names a choice of single tasks; empty: all from the first on."""

    @property
    def key(self) -> str:
        """As an address names it."""
        return "-".join(map(str, self[: 5 if not self.which else 6]))

    @property
    def label(self) -> str:
        split = "held-out" if self.split == "heldout" else self.split
        chosen = " chosen one by one" if self.which else f" from {self.first_task:,} on" if self.first_task else ""
        return f"{self.tasks:,} {split} tasks{chosen}, {self.group_size} a task, {self.tokens:,} tokens a turn"


@dataclass(frozen=True, slots=True)
class Standing:
    """One contender's newest evaluation."""

    run: Run
    policy: Policy
    checkpoint: Checkpoint | None
    exam: Exam
    temperature: float
    reward: Estimate | None
    success: Estimate | None
    rule: str
    coverage: Coverage
    tokens: float | None
    """In and out, a rollout."""
    cost: float | None
    """US dollars a rollout."""
    total_cost: float | None
    runs: int
    """Of this contender in this examination."""
    reason: str = ""
    """Why it is not ranked; empty: it is."""
    best: int = 0
    """The highest rank that its interval allows, 1 is the first."""
    worst: int = 0

    @property
    def name(self) -> str:
        if self.checkpoint is None:
            return self.policy.name
        return f"{self.policy.name} {self.checkpoint.stage} {self.checkpoint.step}".strip()

    @property
    def mark(self) -> str:
        """What sets it apart from a model that was evaluated here."""
        if self.policy.kind is PolicyKind.EXTERNAL:
            return "imported"
        if self.run.kind in {RunKind.RESCORE, RunKind.REPLAY}:
            return "re-scored" if self.run.kind is RunKind.RESCORE else "replayed"
        if self.policy.kind is PolicyKind.SCRIPTED:
            return "baseline" if self.policy.configuration.get("script") in BASELINES else "script"
        return ""

    @property
    def when(self) -> datetime:
        return self.run.ended_at or self.run.created_at

    @property
    def rank(self) -> str:
        return str(self.best) if self.best == self.worst else f"{self.best}–{self.worst}"

    @property
    def samples(self) -> bool:
        return self.policy.kind is not PolicyKind.SCRIPTED


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """The contenders of one version."""

    version: EnvironmentVersion
    exam: Exam | None
    """None: nobody was evaluated yet."""
    exams: Sequence[tuple[Exam, int]]
    """Every examination that was sat, with its number of contenders, the most first."""
    ranked: Sequence[Standing]
    """Best mean first."""
    apart: Sequence[Standing]
    """Not comparable with them, each with its reason."""


def leaderboard(session: Session, version: EnvironmentVersion, exam: str = "") -> Leaderboard:
    """Of the examination with this key, else of the one that most contenders sat."""
    standings = _newest([_standing(run) for run in _runs(session, version.id)])
    exams = _exams([each for each in standings if not each.reason])
    chosen = next((each for each, _ in exams if each.key == exam), exams[0][0] if exams else None)
    placed = [each if each.reason else replace(each, reason=_other(each, chosen)) for each in standings]
    return Leaderboard(
        version,
        chosen,
        exams,
        _ranked([each for each in placed if not each.reason]),
        sorted((each for each in placed if each.reason), key=lambda each: (each.reason, each.name)),
    )


def find_version(session: Session, environment_id: uuid.UUID, number: int | None) -> EnvironmentVersion | None:
    """A version by its number, or the newest that was evaluated, else the newest."""
    statement = (
        select(EnvironmentVersion)
        .options(joinedload(EnvironmentVersion.environment))
        .where(EnvironmentVersion.environment_id == environment_id)
        .order_by(EnvironmentVersion.number.desc())
    )
    if number is not None:
        return session.scalars(statement.where(EnvironmentVersion.number == number)).one_or_none()
    played = select(Run.id).where(Run.version_id == EnvironmentVersion.id, Run.kind.in_(RANKED_KINDS)).exists()
    evaluated = session.scalars(statement.where(played).limit(1)).one_or_none()
    return evaluated or session.scalars(statement.limit(1)).one_or_none()


def _runs(session: Session, version_id: uuid.UUID) -> Sequence[Run]:
    statement = (
        select(Run)
        .join(Run.policy)
        .options(contains_eager(Run.policy), joinedload(Run.checkpoint))
        .where(Run.version_id == version_id, Run.kind.in_(RANKED_KINDS), Run.policy_id.is_not(None))
        .where(Run.status.not_in(UNDER_WAY))
        .order_by(Run.created_at.desc(), Run.id.desc())
        .limit(MOST_RUNS)
    )
    return session.scalars(statement).all()


def _standing(run: Run) -> Standing:
    assert run.policy is not None
    plan = EvaluationPlan.model_validate(run.configuration)
    summary = run.summary
    stored = int(summary.get("rollouts") or 0)
    is_planned = run.kind is RunKind.EVALUATION and "tasks" in run.configuration
    planned = plan.rollouts if is_planned else int(run.progress.get("total") or 0)
    spent = sum(int(summary.get(name) or 0) for name in ("tokens_in", "tokens_out"))
    success = summary.get("success") or {}
    priced = int(summary.get("priced") or 0)
    standing = Standing(
        run=run,
        policy=run.policy,
        checkpoint=run.checkpoint,
        exam=_exam(plan),
        temperature=plan.sampling.temperature,
        reward=_estimate(summary.get("reward")),
        success=_estimate(success),
        rule=str(success.get("rule", "")),
        coverage=Coverage(int(summary.get("completed") or 0), max(planned, stored)),
        tokens=spent / stored if stored else None,
        cost=summary["cost"] / priced if priced and summary.get("cost") is not None else None,
        total_cost=summary.get("cost"),
        runs=1,
    )
    return replace(standing, reason=_unfit(standing))


def _exam(plan: EvaluationPlan) -> Exam:
    which = "" if not plan.task_indexes_given else format(abs(hash(plan.task_indexes_given)), "x")
    return Exam(str(plan.split), plan.first_task, plan.tasks, plan.group_size, plan.sampling.max_tokens_per_turn, which)


def _estimate(figure: Any) -> Estimate | None:
    if not isinstance(figure, dict) or figure.get("mean") is None:
        return None
    return Estimate(figure["mean"], figure["low"], figure["high"], int(figure.get("count") or 0))


def _unfit(standing: Standing) -> str:
    """Why this could not be ranked in any examination."""
    if standing.run.kind in {RunKind.RESCORE, RunKind.REPLAY}:
        return f"{standing.mark}: it was played on another version or under other rewards"
    if "tasks" not in standing.run.configuration:
        return "imported: which tasks it was given is not known"
    if standing.mark == "imported" and "sampling" not in standing.run.configuration:
        return "imported: how it was sampled is not known"
    if standing.reward is None:
        return "nothing completed"
    if standing.run.status is not RunStatus.COMPLETED:
        return f"{standing.run.status}: {standing.coverage}"
    if standing.coverage.share < LEAST_COVERAGE:
        return f"only {standing.coverage}"
    return ""


def _exams(standings: Sequence[Standing]) -> list[tuple[Exam, int]]:
    """What was sat by how many, the most first. Scripts alone make none that a model has made."""
    sampled = {each.exam for each in standings if each.samples}
    known = sampled | {each.exam for each in standings if not any(_sat(each, exam) for exam in sampled)}
    counted = [(exam, sum(_sat(each, exam) for each in standings)) for exam in known]
    return sorted(counted, key=lambda item: (-item[1], item[0].split != "heldout", -item[0].tasks, item[0]))


def _sat(standing: Standing, exam: Exam) -> bool:
    """A script writes what it writes: a limit of tokens does not separate it from anybody."""
    own = standing.exam if standing.samples else standing.exam._replace(tokens=exam.tokens)
    return own == exam


def _other(standing: Standing, chosen: Exam | None) -> str:
    """Why this is not ranked in the chosen examination; empty: it is."""
    if chosen is None or _sat(standing, chosen):
        return ""
    names = {"split": "other split", "first_task": "other tasks", "tasks": "other number of tasks"}
    names |= {"which": "other tasks", "group_size": "other group size", "tokens": "other limit of tokens"}
    own = standing.exam
    differing = [word for field, word in names.items() if getattr(own, field) != getattr(chosen, field)]
    return f"{differing[0]}: {own.label}"


def _newest(standings: Sequence[Standing]) -> list[Standing]:
    """One row a contender and examination: its newest run that can be ranked, else its newest."""
    grouped: defaultdict[tuple[Any, ...], list[Standing]] = defaultdict(list)
    for each in standings:
        sampling = each.temperature if each.samples else None
        grouped[each.policy.id, each.checkpoint and each.checkpoint.id, sampling, each.exam, each.mark].append(each)
    return [
        replace(next((each for each in found if not each.reason), found[0]), runs=len(found))
        for found in grouped.values()
    ]


def _ranked(standings: Sequence[Standing]) -> list[Standing]:
    """By mean; a rank spans what the intervals leave open."""
    known = [(each, each.reward) for each in standings if each.reward is not None]
    known.sort(key=lambda item: (-item[1].mean, item[0].name))
    return [
        replace(
            each,
            best=1 + sum(other.low > own.high for _, other in known),
            worst=sum(other.high >= own.low for _, other in known),
        )
        for each, own in known
    ]
