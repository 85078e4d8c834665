"""Train the learned detector of an environment on its verdicts and fixtures."""

import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime

import structlog
from sqlalchemy import cast, func, select
from sqlalchemy.dialects.postgresql import JSONPATH
from sqlalchemy.orm import Session, joinedload, undefer

from backend.core.session import transaction
from backend.detectors import learned
from backend.domain.detectors.features import features_of
from backend.domain.detectors.learned_model import (
    MOST_EXAMPLES,
    LabeledFeatures,
    LearnedModel,
    NotTrainable,
    text_key,
    train,
)
from backend.domain.detectors.run_view import RolloutRow
from backend.domain.environments.fixtures import FixtureKind, read_fixtures
from backend.domain.environments.manifest import Manifest
from backend.domain.vocabulary import Verdict
from backend.environments.tables import EnvironmentVersion
from backend.review.tables import VerdictFixture
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.queries import versions_of
from backend.runs.tables import Run

_BATCH = 200

logger = structlog.get_logger(__name__)


def train_detector(environment_id: uuid.UUID, person: uuid.UUID | None = None) -> None:
    """Train a detector on all verdicts in force and on the fixtures of the newest version, and store it.

    If that is not possible, the reason is stored.
    """
    with transaction() as session:
        counts = learned.verdict_counts(session, [environment_id])
        verdicts = counts.get(environment_id, learned.VerdictCounts()).total
        examples = [*_reviewed(session, environment_id), *_fixtures(session, environment_id)]
    trained: LearnedModel | str
    try:
        trained = train(examples, datetime.now(UTC))
    except NotTrainable as error:
        trained = str(error)
    with transaction() as session:
        learned.store(session, environment_id, trained, verdicts, person)
    logger.info("trained the learned detector", examples=len(examples), problem=isinstance(trained, str) and trained)


def retrain_for_run(run_id: uuid.UUID) -> None:
    """Train the detectors of a run's environments again if there are many new verdicts."""
    with transaction() as session:
        run = session.get_one(Run, run_id, options=[joinedload(Run.version)])
        environments = {version.environment_id for version in versions_of(session, run)}
        due = [each for each in sorted(environments) if learned.is_due(session, each)]
    for environment_id in due:
        train_detector(environment_id)


def _reviewed(session: Session, environment_id: uuid.UUID) -> Iterator[LabeledFeatures]:
    """Yield rollouts with verdicts, newest first, at most MOST_EXAMPLES of each kind."""
    for verdict, is_hack in learned.KINDS.items():
        chosen = learned.reviewed_rollouts().where(EnvironmentVersion.environment_id == environment_id).subquery()
        names = ("reply", "action")
        written = [func.jsonb_path_query_array(Rollout.steps, cast(f"$[*].{name}", JSONPATH)) for name in names]
        prompts = func.jsonb_path_query_array(
            Rollout.messages, cast('$[*] ? (@.role == "user" || @.role == "tool").content', JSONPATH)
        )
        statement = (
            select(Rollout.id, Rollout.stop_reason, Task.split, Task.index, *written, prompts)
            .join(chosen, chosen.c.subject == Rollout.id)
            .join(Group, Group.id == Rollout.group_id)
            .join(Task, Task.id == Group.task_id)
            .where(chosen.c.verdict == str(verdict))
            .order_by(Rollout.id.desc())
            .limit(MOST_EXAMPLES)
        )
        for id_, stop, split, index, replies, actions, said in session.execute(
            statement.execution_options(yield_per=_BATCH)
        ):
            texts = tuple(text for text in said if isinstance(text, str))
            yield _example(_row(id_, f"{split}/{index}", replies, actions, texts, stop), is_hack)


def _fixtures(session: Session, environment_id: uuid.UUID) -> Iterator[LabeledFeatures]:
    """Yield the newest version's gold and hack fixtures, and judged ones whose rollout was deleted."""
    newest = (
        select(EnvironmentVersion)
        .where(EnvironmentVersion.environment_id == environment_id)
        .options(undefer(EnvironmentVersion.files))
        .order_by(EnvironmentVersion.number.desc())
        .limit(1)
    )
    if version := session.scalars(newest).one_or_none():
        fixtures, _ = read_fixtures(version.files, Manifest.model_validate(version.manifest))
        for fixture in fixtures:
            if fixture.kind is not FixtureKind.SCORED:
                task = f"{fixture.task.split}/{fixture.task.index}"
                row = _row(uuid.uuid4(), task, fixture.replies)
                yield _example(row, fixture.kind is FixtureKind.HACK, is_verdict=False)
    judged = select(VerdictFixture).where(
        VerdictFixture.environment_id == environment_id,
        VerdictFixture.withdrawn_at.is_(None),
        VerdictFixture.rollout_id.is_(None),
    )
    for each in session.scalars(judged):
        row = _row(each.id, f"{each.task['split']}/{each.task['index']}", [str(step["reply"]) for step in each.replies])
        yield _example(row, each.verdict is Verdict.HACK, is_verdict=False)


def _row(
    id_: uuid.UUID,
    task: str,
    replies: list[str],
    actions: list[dict[str, object] | None] | None = None,
    prompts: tuple[str, ...] = (),
    stop_reason: str | None = None,
) -> RolloutRow:
    return RolloutRow(
        id=id_,
        group="",
        task=task,
        reward=0.0,
        columns={},
        replies=tuple(replies),
        tokens_out=0,
        stop_reason=stop_reason,
        actions=tuple(actions or ()),
        prompts=prompts,
    )


def _example(row: RolloutRow, is_hack: bool, *, is_verdict: bool = True) -> LabeledFeatures:
    names = frozenset(map(sys.intern, features_of(row)))  # most names occur in many rollouts
    return LabeledFeatures(names, is_hack, row.task, text_key(row.replies), is_verdict)
