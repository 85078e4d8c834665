"""Rank policies on an environment version: one row per policy, checkpoint and sampling, by its latest evaluation.

Only evaluations with the same setup are ranked together: a split, its tasks, the number of rollouts per task and the
token limit per turn. Ranks overlap where intervals do.
"""

import csv
import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session, contains_eager, joinedload

from backend.checkpoints.tables import Checkpoint
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.statistics import Coverage, Estimate
from backend.domain.vocabulary import UNDER_WAY, PolicyKind, RunKind, RunStatus
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import NotFound
from backend.policies.tables import Policy
from backend.runs.tables import Run

MAX_RUNS = 2000
"""Latest runs of a version that are considered."""
MIN_COVERAGE = 0.95
"""Share of completed rollouts that a ranked evaluation needs. Failed rollouts are rarely a fair sample."""
BASELINES = frozenset({"random", "constant", "empty", "echo", "repeat"})
RANKED_KINDS = (RunKind.EVALUATION, RunKind.RESCORE, RunKind.REPLAY)
_RESCORED = {RunKind.RESCORE: "re-scored", RunKind.REPLAY: "replayed"}


class EvaluationSetup(NamedTuple):
    """What evaluations must have in common to be ranked together."""

    split: str
    first_task: int
    tasks: int
    group_size: int
    tokens: int
    """Limit per turn."""
    which: str = ""
    """Identifies a selection of single tasks; empty for consecutive tasks."""

    @property
    def key(self) -> str:
        """As an address names it."""
        return "-".join(map(str, self[: 5 if not self.which else 6]))

    @property
    def label(self) -> str:
        split = "held-out" if self.split == "heldout" else self.split
        selection = " selected individually" if self.which else f" from {self.first_task:,}" if self.first_task else ""
        return f"{self.tasks:,} {split} tasks{selection}, {self.group_size} per task, {self.tokens:,} tokens per turn"


@dataclass(frozen=True, slots=True)
class SetupCount:
    setup: EvaluationSetup
    contenders: int
    """Number of rows."""


@dataclass(frozen=True, slots=True)
class LeaderboardRow:
    """The latest evaluation of a policy with its checkpoint and sampling."""

    run: Run
    policy: Policy
    checkpoint: Checkpoint | None
    exam: EvaluationSetup
    temperature: float | None
    """None for scripted policies."""
    reward: Estimate | None
    success: Estimate | None
    rule: str
    coverage: Coverage
    tokens: float | None
    """Read and sampled, per rollout."""
    cost: float | None
    """US dollars per rollout."""
    total_cost: float | None
    runs: int = 1
    """Number of its evaluations with this setup."""
    reason: str = ""
    """Why it is not ranked; empty if it is."""
    best: int | None = None
    """Highest rank within its interval, from 1; None if it is not ranked."""
    worst: int | None = None

    @property
    def name(self) -> str:
        if self.checkpoint is None:
            return self.policy.name
        return f"{self.policy.name} {self.checkpoint.stage} {self.checkpoint.step}".strip()

    @property
    def mark(self) -> str:
        """Tag of rows that are not models evaluated here."""
        if self.policy.kind is PolicyKind.EXTERNAL:
            return "imported"
        if self.run.kind in _RESCORED:
            return _RESCORED[self.run.kind]
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

    def matches(self, setup: EvaluationSetup) -> bool:
        """Whether it was evaluated with this setup. A token limit does not change what a scripted policy plays."""
        return (self.exam if self.samples else self.exam._replace(tokens=setup.tokens)) == setup


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """The rows of one version."""

    version: EnvironmentVersion
    exam: SetupCount | None
    """None without evaluations."""
    exams: Sequence[SetupCount]
    """Largest first."""
    ranked: Sequence[LeaderboardRow]
    """Best mean first."""
    apart: Sequence[LeaderboardRow]
    """Not comparable with them, each with its reason."""


def get_leaderboard(session: Session, name: str, number: int | None = None, exam: str = "") -> Leaderboard:
    """The leaderboard of an environment's version. Default: the latest that was evaluated, else the latest.

    `exam`: key of a setup. Default: the setup with the most rows. Raises NotFound.
    """
    environment = session.scalars(select(Environment).where(Environment.name == name)).one_or_none()
    if environment is None:
        raise NotFound(f"There is no environment named {name}.")
    statement = (
        select(EnvironmentVersion)
        .options(joinedload(EnvironmentVersion.environment))
        .where(EnvironmentVersion.environment_id == environment.id)
        .order_by(EnvironmentVersion.number.desc())
    )
    if number is not None:
        version = session.scalars(statement.where(EnvironmentVersion.number == number)).one_or_none()
    else:
        played = select(Run.id).where(Run.version_id == EnvironmentVersion.id, Run.kind.in_(RANKED_KINDS)).exists()
        version = session.scalars(statement.where(played).limit(1)).one_or_none()
        version = version or session.scalars(statement.limit(1)).one_or_none()
    if version is None:
        raise NotFound(f"{name} has no such version." if number else f"{name} has no published version.")
    return rank_version(session, version, exam)


def rank_version(session: Session, version: EnvironmentVersion, exam: str = "") -> Leaderboard:
    runs = (
        select(Run)
        .join(Run.policy)
        .options(contains_eager(Run.policy), joinedload(Run.checkpoint))
        .where(Run.version_id == version.id, Run.kind.in_(RANKED_KINDS), Run.policy_id.is_not(None))
        .where(Run.status.not_in(UNDER_WAY))
        .order_by(Run.created_at.desc(), Run.id.desc())
        .limit(MAX_RUNS)
    )
    by_entrant: defaultdict[tuple[object, ...], list[LeaderboardRow]] = defaultdict(list)
    for row in map(_row, session.scalars(runs)):
        entrant = row.policy.id, row.checkpoint and row.checkpoint.id, row.temperature, row.exam, row.mark
        by_entrant[entrant].append(row)
    rows = [  # the latest run that can be ranked, else the latest
        replace(next((row for row in own if not row.reason), own[0]), runs=len(own)) for own in by_entrant.values()
    ]
    fit = [row for row in rows if not row.reason]
    sampled = {row.exam for row in fit if row.samples}  # a scripted policy adds a setup only if it matches none of them
    setups = sampled | {row.exam for row in fit if not any(row.matches(setup) for setup in sampled)}
    exams = [SetupCount(setup, sum(row.matches(setup) for row in fit)) for setup in setups]
    exams.sort(key=lambda each: (-each.contenders, each.setup.split != "heldout", -each.setup.tasks, each.setup))
    chosen = next((each for each in exams if each.setup.key == exam), exams[0] if exams else None)
    names = {"split": "other split", "first_task": "other tasks", "tasks": "other number of tasks"}
    names |= {"which": "other tasks", "group_size": "other group size", "tokens": "other token limit"}
    for place, row in enumerate(rows):
        if chosen is not None and not row.reason and not row.matches(chosen.setup):
            own, other = row.exam, chosen.setup
            different = next(words for field, words in names.items() if getattr(own, field) != getattr(other, field))
            rows[place] = replace(row, reason=f"{different}: {own.label}")
    ranked = [(row, row.reward) for row in rows if not row.reason and row.reward is not None]
    ranked.sort(key=lambda item: (-item[1].mean, item[0].name))
    return Leaderboard(
        version,
        chosen,
        exams,
        [
            replace(
                row,
                best=1 + sum(other.low > own.high for _, other in ranked),
                worst=sum(other.high >= own.low for _, other in ranked),
            )
            for row, own in ranked
        ],
        sorted((row for row in rows if row.reason), key=lambda row: (row.reason, row.name)),
    )


def _row(run: Run) -> LeaderboardRow:
    assert run.policy is not None
    plan = EvaluationPlan.model_validate(run.configuration)
    summary = run.summary
    stored, priced = int(summary.get("rollouts") or 0), int(summary.get("priced") or 0)
    is_planned = run.kind is RunKind.EVALUATION and "tasks" in run.configuration
    planned = plan.rollouts if is_planned else int(run.progress.get("total") or 0)
    tokens = sum(int(summary.get(name) or 0) for name in ("tokens_in", "tokens_out"))
    success = summary.get("success") or {}
    which = "" if not plan.task_indexes_given else format(abs(hash(plan.task_indexes_given)), "x")
    limit = plan.sampling.max_tokens_per_turn
    row = LeaderboardRow(
        run=run,
        policy=run.policy,
        checkpoint=run.checkpoint,
        exam=EvaluationSetup(str(plan.split), plan.first_task, plan.tasks, plan.group_size, limit, which),
        temperature=plan.sampling.temperature if run.policy.kind is not PolicyKind.SCRIPTED else None,
        reward=_estimate(summary.get("reward")),
        success=_estimate(success),
        rule=str(success.get("rule", "")),
        coverage=Coverage(int(summary.get("completed") or 0), max(planned, stored)),
        tokens=tokens / stored if stored else None,
        cost=summary["cost"] / priced if priced and summary.get("cost") is not None else None,
        total_cost=summary.get("cost"),
    )
    return replace(row, reason=_why_unranked(row))


def _estimate(figure: object) -> Estimate | None:
    if not isinstance(figure, dict) or figure.get("mean") is None:
        return None
    return Estimate(figure["mean"], figure["low"], figure["high"], int(figure.get("count") or 0))


def _why_unranked(row: LeaderboardRow) -> str:
    """Why it cannot be ranked with any setup; empty if it can."""
    if row.run.kind in _RESCORED:
        return f"{row.mark}: it was played on another version or with other rewards"
    if "tasks" not in row.run.configuration:
        return "imported: its tasks are unknown"
    if row.mark == "imported" and "sampling" not in row.run.configuration:
        return "imported: its sampling is unknown"
    if row.reward is None:
        return "nothing completed"
    if row.run.status is not RunStatus.COMPLETED:
        return f"{row.run.status}: {row.coverage}"
    return f"only {row.coverage}" if row.coverage.share < MIN_COVERAGE else ""


def as_csv(board: Leaderboard) -> str:
    """Ranked rows, then the others."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(
        (
            *("rank", "worst_rank", "name", "mark", "reward", "low", "high", "tasks", "success", "success_rule"),
            *("completed", "rollouts", "tokens_a_rollout", "usd_a_rollout", "usd", "temperature", "date", "run_id"),
            "reason",
        )
    )
    for row in [*board.ranked, *board.apart]:
        reward = row.reward
        values = [
            *(row.best, row.worst, row.name, row.mark),
            *((reward.mean, reward.low, reward.high, reward.count) if reward else (None,) * 4),
            *(row.success and row.success.mean, row.rule, row.coverage.completed, row.coverage.total),
            *(row.tokens, row.cost, row.total_cost, row.temperature),
            *(row.when.isoformat(), row.run.id, row.reason),
        ]
        # names are other people's text: a spreadsheet reads a cell that starts like this as a formula
        is_formula = [isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) for value in values]
        writer.writerow(
            [f"'{value}" if is_risky else value for value, is_risky in zip(values, is_formula, strict=True)]
        )
    return text.getvalue()
