"""Rank policies on an environment version: one row per policy, checkpoint and sampling, by its latest evaluation.

Only evaluations with the same setup are ranked together: a split, its tasks, the number of rollouts per task and the
token limit per turn. Ranks overlap where intervals do.
"""

import uuid
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from pydantic import ConfigDict, Field
from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session, contains_eager, joinedload

from backend.domain.environments.manifest import Manifest
from backend.domain.environments.reward_bounds import RewardScale, reward_scale
from backend.domain.runs.plans import EvaluationPlan
from backend.domain.statistics import Coverage, Estimate, estimate_mean
from backend.domain.vocabulary import UNDER_WAY, PolicyKind, RunKind, RunStatus, Split
from backend.environments.queries import get_environment
from backend.environments.tables import EnvironmentVersion
from backend.errors import NotFound
from backend.operations.schemas import Response
from backend.policies.queries import BASELINES
from backend.results.people import played_by_hand
from backend.runs.tables import Run

MAX_RUNS = 2000
"""Latest runs of a version that are considered."""
MIN_COVERAGE = 0.95
"""Share of completed rollouts that a ranked evaluation needs. Failed rollouts are rarely a fair sample."""
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
    opponent: str = ""
    """Name of the policy that took the other seats; empty: the environment's script, or no other seats."""

    @property
    def key(self) -> str:
        """As an address names it."""
        return "-".join(map(str, self[: 7 if self.opponent else 6 if self.which else 5]))

    @property
    def label(self) -> str:
        split = "held-out" if self.split == "heldout" else self.split
        selection = " selected individually" if self.which else f" from {self.first_task:,}" if self.first_task else ""
        against = f" against {self.opponent}" if self.opponent else ""
        per = f"{self.group_size} per task, {self.tokens:,} tokens per turn"
        return f"{self.tasks:,} {split} tasks{selection}{against}, {per}"


class SetupCount(Response):
    """A setup with its number of rows."""

    key: str
    label: str
    contenders: int


class LeaderboardRow(Response):
    """The latest evaluation of a policy with its checkpoint and sampling."""

    rank: int | None = None
    """Highest rank within its interval; null if it is not ranked."""
    worst_rank: int | None = None
    name: str
    mark: str
    """`baseline`, `script`, `by hand`, `imported`, `re-scored`, `replayed` or empty for a model that was evaluated
    here."""
    policy_id: uuid.UUID
    policy_kind: PolicyKind
    checkpoint_id: uuid.UUID | None
    run_id: uuid.UUID
    """Its latest evaluation, or the latest episode of a person."""
    runs: int = 1
    """Number of its evaluations with this setup, or of episodes by hand."""
    temperature: float | None
    """Null for scripted policies."""
    reward: Estimate | None
    normalized: Estimate | None
    """(reward − floor) / (gold − floor) within [0, 1]; null if floor or gold is unknown."""
    success: Estimate | None
    success_rule: str
    coverage: Coverage
    tokens: float | None
    """Read and sampled, per rollout."""
    cost: float | None
    """US dollars per rollout; null without a price."""
    total_cost: float | None
    at: datetime
    reason: str = ""
    """Why it is not ranked; empty if it is."""
    setup: EvaluationSetup = Field(exclude=True)

    def matches(self, setup: EvaluationSetup) -> bool:
        """Whether it was evaluated with this setup. A token limit does not change what a scripted policy plays."""
        is_scripted = self.policy_kind is PolicyKind.SCRIPTED
        return (self.setup._replace(tokens=setup.tokens) if is_scripted else self.setup) == setup


class Leaderboard(Response):
    """The policies that were evaluated on an environment version."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    environment: str
    version: int
    content_hash: str
    scale: RewardScale | None
    """Floor and gold of the reward; null if one is unknown."""
    exam: SetupCount | None
    """The setup of the ranked evaluations; null without evaluations."""
    exams: list[SetupCount]
    """Setups, most rows first."""
    ranked: list[LeaderboardRow]
    """Best mean first. Ranks overlap where intervals do."""
    apart: list[LeaderboardRow]
    """Not comparable with them, each with its reason."""
    evaluated: EnvironmentVersion = Field(exclude=True)
    setup: EvaluationSetup | None = Field(exclude=True)


def get_leaderboard(session: Session, name: str, number: int | None = None, exam: str = "") -> Leaderboard:
    """The leaderboard of an environment's version. Default: the latest that was evaluated, else the latest.

    `exam`: key of a setup. Default: the setup with the most rows. Raises NotFound.
    """
    environment = get_environment(session, name)
    played = select(Run.id).where(Run.version_id == EnvironmentVersion.id, Run.kind.in_(RANKED_KINDS)).exists()
    statement = (
        select(EnvironmentVersion)
        .options(joinedload(EnvironmentVersion.environment))
        .where(EnvironmentVersion.environment_id == environment.id)
        .order_by(played.desc(), EnvironmentVersion.number.desc())
        .limit(1)
    )
    if number is not None:
        statement = statement.where(EnvironmentVersion.number == number)
    version = session.scalars(statement).one_or_none()
    if version is None:
        raise NotFound(f"{name} has no such version." if number else f"{name} has no published version.")
    return rank_version(session, version, exam)


def rank_version(session: Session, version: EnvironmentVersion, exam: str = "") -> Leaderboard:
    latest = _ranked_runs().where(Run.version_id == version.id).limit(MAX_RUNS)
    return _rank(version, session.scalars(latest).all(), exam, session)


def rank_versions(session: Session, versions: Sequence[EnvironmentVersion], most: int) -> list[Leaderboard]:
    """The leaderboards of several versions, each by its `most` latest runs."""
    place = func.row_number().over(partition_by=Run.version_id, order_by=Run.created_at.desc())
    placed = _ranked_runs().where(Run.version_id.in_([each.id for each in versions]))
    latest = (
        placed.with_only_columns(Run.id, place.label("place"), maintain_column_froms=True).order_by(None).subquery()
    )
    runs = _ranked_runs().join(latest, latest.c.id == Run.id).where(latest.c.place <= most)
    by_version: defaultdict[uuid.UUID, list[Run]] = defaultdict(list)
    for run in session.scalars(runs):
        by_version[run.version_id].append(run)
    return [_rank(version, by_version[version.id]) for version in versions]


def _ranked_runs() -> Select[Run]:
    """Newest first."""
    return (
        select(Run)
        .join(Run.policy)
        .options(contains_eager(Run.policy), joinedload(Run.checkpoint))
        .where(Run.kind.in_(RANKED_KINDS), Run.policy_id.is_not(None), Run.status.not_in(UNDER_WAY))
        .order_by(Run.created_at.desc(), Run.id.desc())
    )


def _rank(
    version: EnvironmentVersion, runs: Iterable[Run], exam: str = "", session: Session | None = None
) -> Leaderboard:
    """`runs`: newest first. `session`: to add the row of people."""
    by_entrant: defaultdict[tuple[object, ...], list[LeaderboardRow]] = defaultdict(list)
    manifest = Manifest.model_validate(version.manifest)
    for run in runs:
        row = _row(run, reward_scale(manifest, run.columns, run.weights))
        by_entrant[row.policy_id, row.checkpoint_id, row.temperature, row.setup, row.mark].append(row)
    rows = []
    for own in by_entrant.values():  # the latest run that can be ranked, else the latest
        rows.append(next((row for row in own if not row.reason), own[0]))
        rows[-1].runs = len(own)
    fit = [row for row in rows if not row.reason]
    sampled = {row.setup for row in fit if row.policy_kind is not PolicyKind.SCRIPTED}
    # a scripted policy adds a setup only if it matches none of them
    setups = sampled | {row.setup for row in fit if not any(row.matches(setup) for setup in sampled)}
    counts = [(setup, sum(row.matches(setup) for row in fit)) for setup in setups]
    counts.sort(key=lambda item: (-item[1], item[0].split != "heldout", -item[0].tasks, item[0]))
    exams = [SetupCount(key=setup.key, label=setup.label, contenders=count) for setup, count in counts]
    place = next((place for place, each in enumerate(exams) if each.key == exam), 0)
    names = {"split": "other split", "first_task": "other tasks", "tasks": "other number of tasks"}
    names |= {"which": "other tasks", "group_size": "other group size", "tokens": "other token limit"}
    names |= {"opponent": "other opponent"}
    for row in fit:
        setup, own_setup = counts[place][0], row.setup
        if not row.matches(setup):
            words = next(words for field, words in names.items() if getattr(own_setup, field) != getattr(setup, field))
            row.reason = f"{words}: {own_setup.label}"
    if session is not None and counts and (people := _row_of_people(session, version, manifest, counts[place][0])):
        rows.append(people)
    ranked = [(row, row.reward) for row in rows if not row.reason and row.reward is not None]
    ranked.sort(key=lambda item: (-item[1].mean, item[0].name))
    lows, highs = (sorted(getattr(reward, end) for _, reward in ranked) for end in ("low", "high"))
    for row, own_reward in ranked:
        row.rank = 1 + len(lows) - bisect_right(lows, own_reward.high)
        row.worst_rank = len(highs) - bisect_left(highs, own_reward.low)
    return Leaderboard(
        environment=version.environment.name,
        version=version.number,
        content_hash=version.content_hash,
        scale=reward_scale(manifest),
        exam=exams[place] if exams else None,
        exams=exams,
        ranked=[row for row, _ in ranked],
        apart=sorted((row for row in rows if row.reason), key=lambda row: (row.reason, row.name)),
        evaluated=version,
        setup=counts[place][0] if counts else None,
    )


def _row(run: Run, scale: RewardScale | None) -> LeaderboardRow:
    assert run.policy is not None
    policy, checkpoint, summary = run.policy, run.checkpoint, run.summary
    plan = EvaluationPlan.model_validate(run.configuration)
    mark = ""
    if policy.kind is PolicyKind.EXTERNAL:
        mark = "imported"
    elif run.kind in _RESCORED:
        mark = _RESCORED[run.kind]
    elif policy.kind is PolicyKind.SCRIPTED:
        mark = "baseline" if policy.configuration.get("script") in BASELINES else "script"
    stored, priced = int(summary.get("rollouts") or 0), int(summary.get("priced") or 0)
    is_planned = run.kind is RunKind.EVALUATION and "tasks" in run.configuration
    planned = plan.rollouts if is_planned else int(run.progress.get("total") or 0)
    coverage = Coverage(int(summary.get("completed") or 0), max(planned, stored))
    tokens = sum(int(summary.get(name) or 0) for name in ("tokens_in", "tokens_out"))
    success = summary.get("success") or {}
    reward = _estimate(summary.get("reward"))
    reason = ""
    if run.kind in _RESCORED:
        reason = f"{mark}: it was played on another version or with other rewards"
    elif "tasks" not in run.configuration:
        reason = "imported: its tasks are unknown"
    elif mark == "imported" and "sampling" not in run.configuration:
        reason = "imported: its sampling is unknown"
    elif reward is None:
        reason = "nothing completed"
    elif run.status is not RunStatus.COMPLETED:
        reason = f"{run.status}: {coverage}"
    elif coverage.share < MIN_COVERAGE:
        reason = f"only {coverage}"
    which = "" if not plan.task_indexes_given else format(abs(hash(plan.task_indexes_given)), "x")
    limit = plan.sampling.max_tokens_per_turn
    return LeaderboardRow(
        name=f"{policy.name} {checkpoint.stage} {checkpoint.step}".strip() if checkpoint else policy.name,
        mark=mark,
        policy_id=policy.id,
        policy_kind=policy.kind,
        checkpoint_id=checkpoint.id if checkpoint else None,
        run_id=run.id,
        temperature=plan.sampling.temperature if policy.kind is not PolicyKind.SCRIPTED else None,
        reward=reward,
        normalized=scale.estimate(reward) if scale else None,
        success=_estimate(success),
        success_rule=str(success.get("rule", "")),
        coverage=coverage,
        tokens=tokens / stored if stored else None,
        cost=summary["cost"] / priced if priced and summary.get("cost") is not None else None,
        total_cost=summary.get("cost"),
        at=run.ended_at or run.created_at,
        reason=reason,
        setup=EvaluationSetup(
            *(str(plan.split), plan.first_task, plan.tasks, plan.group_size, limit, which),
            plan.opponent.name if plan.opponent else "",
        ),
    )


def _row_of_people(
    session: Session, version: EnvironmentVersion, manifest: Manifest, setup: EvaluationSetup
) -> LeaderboardRow | None:
    """The episodes that people played on the setup's tasks; None if there are none. Each task counts once."""
    if setup.which:
        return None
    tasks = range(setup.first_task, setup.first_task + setup.tasks)
    found = [
        episode
        for episode in played_by_hand(session, version.id, manifest, Split(setup.split))
        if episode.index in tasks and (episode.opponent.name if episode.opponent else "") == setup.opponent
    ]
    if not found:
        return None
    by_task: defaultdict[int, list[float]] = defaultdict(list)
    for episode in found:
        by_task[episode.index].append(episode.reward)
    reward = estimate_mean([sum(rewards) / len(rewards) for rewards in by_task.values()])
    scale = reward_scale(manifest)
    coverage = Coverage(len(by_task), setup.tasks)
    return LeaderboardRow(
        name=found[0].policy.name,
        mark="by hand",
        policy_id=found[0].policy.id,
        policy_kind=PolicyKind.HUMAN,
        checkpoint_id=None,
        run_id=found[-1].run_id,
        runs=len(found),
        temperature=None,
        reward=reward,
        normalized=scale.estimate(reward) if scale and reward else None,
        success=None,
        success_rule="",
        coverage=coverage,
        tokens=None,
        cost=None,
        total_cost=None,
        at=found[-1].at,
        reason="" if coverage.share >= MIN_COVERAGE else f"people played {len(by_task):,} of these tasks",
        setup=setup,
    )


def _estimate(figure: object) -> Estimate | None:
    names = ("mean", "low", "high")
    if not isinstance(figure, dict) or any(figure.get(name) is None for name in names):
        return None
    return Estimate(figure["mean"], figure["low"], figure["high"], int(figure.get("count") or 0))
