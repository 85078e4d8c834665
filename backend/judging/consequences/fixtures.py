"""Fixtures out of verdicts: an episode judged a hack must score low on every later version, an honest one may be kept.

A fixture rests on the newest verdict about its rollout and is withdrawn with it. Nothing is overwritten.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sqlalchemy import func, select
from sqlalchemy.orm import Session, contains_eager, joinedload, undefer

from backend.db.models import Environment, EnvironmentVersion, Fixture, Group, Rollout, Task, VerdictRecord
from backend.domain.judged_fixtures import JudgedFixture, least_kept, stored_task, task_spec
from backend.domain.manifest import Manifest
from backend.domain.reward_bounds import floor_of
from backend.domain.rollouts import TaskSpec
from backend.domain.vocabulary import RolloutStatus, Verdict
from backend.errors import Conflict, InvalidInput, NotFound
from backend.web.audit import audit

if TYPE_CHECKING:
    from backend.web.identity import Actor

MOST_BY_VERDICT = 200
"""Fixtures of an environment that verdicts make by themselves: each certificate replays them all. More by hand."""


class NothingToReplay(Conflict):
    """Only a completed episode with replies can be replayed."""


class NotJudged(Conflict):
    """A fixture rests on a verdict: judge the rollout a hack, or honest, first."""


class IsWithdrawn(Conflict):
    """This fixture was taken back. Make a new one from its rollout."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A rollout as a fixture sees it."""

    rollout: Rollout
    version: EnvironmentVersion
    """That asked its task."""
    verdict: Verdict | None
    """The newest."""

    @property
    def default_bound(self) -> float | None:
        """Of a hack, what the version says chance may get; of an honest episode, what it earned."""
        if self.verdict is Verdict.HACK:
            return floor_of(Manifest.model_validate(self.version.manifest))
        return None if self.rollout.reward is None else least_kept(self.rollout.reward)


def fixture_of_verdict(
    session: Session, actor: Actor | None, rollout_id: uuid.UUID, verdict: Verdict
) -> Fixture | None:
    """What a new verdict makes of the rollout's fixture: a hack gets one, another verdict takes it back."""
    present = active_fixture(session, rollout_id)
    if present is not None and verdict is not (Verdict.HONEST if present.is_positive else Verdict.HACK):
        withdraw(session, actor, present, f"judged {verdict.replace('_', ' ')}")
        present = None
    if present is not None or verdict is not Verdict.HACK:
        return present
    judged = judged_rollout(session, rollout_id)
    bound = judged.default_bound
    if bound is None or not _can_be_replayed(judged.rollout) or not _has_room(session, judged):
        return None
    return _store(session, actor, judged, bound)


def keep(session: Session, actor: Actor, rollout_id: uuid.UUID, bound: float | None = None) -> Fixture:
    """Make the judged rollout a fixture by hand; the bound is the default one unless given."""
    judged = judged_rollout(session, rollout_id)
    if judged.verdict not in {Verdict.HACK, Verdict.HONEST}:
        raise NotJudged
    if not _can_be_replayed(judged.rollout):
        raise NothingToReplay
    if bound is None:
        bound = judged.default_bound
    if bound is None:
        told = (
            "The version declares no floor (`checks.floor_maximum`) and no range of every column: say what it may earn."
        )
        raise InvalidInput(fields={"bound": told})
    if present := active_fixture(session, rollout_id):
        return change_bound(session, actor, present, bound)
    return _store(session, actor, judged, bound)


def change_bound(session: Session, actor: Actor, fixture: Fixture, bound: float) -> Fixture:
    """Another row takes the place of this one; the same bound changes nothing."""
    _refuse_withdrawn(fixture)
    if fixture.bound == bound:
        return fixture
    withdraw(session, actor, fixture, f"the bound became {bound:.4g}")
    changed = Fixture(
        environment_id=fixture.environment_id,
        rollout_id=fixture.rollout_id,
        task=fixture.task,
        replies=fixture.replies,
        lowest=bound if fixture.is_positive else None,
        highest=None if fixture.is_positive else bound,
        comment=fixture.comment,
        created_by=actor.person_id,
    )
    return _added(session, actor, changed)


def withdraw(session: Session, actor: Actor | None, fixture: Fixture, because: str = "") -> None:
    """No certificate replays it any more; its row stays."""
    _refuse_withdrawn(fixture)
    fixture.withdrawn_at = datetime.now(UTC)
    fixture.withdrawn_by = actor.person_id if actor else None
    fixture.withdrawn_because = because
    session.flush()
    audit(session, actor, "fixture.withdraw", "fixture", fixture.id, because=because)


def active_fixture(session: Session, rollout_id: uuid.UUID) -> Fixture | None:
    statement = select(Fixture).where(Fixture.rollout_id == rollout_id, Fixture.withdrawn_at.is_(None))
    return session.scalars(statement.order_by(Fixture.id.desc()).limit(1)).first()


def get_fixture(session: Session, fixture_id: uuid.UUID) -> Fixture:
    found = session.get(Fixture, fixture_id)
    if found is None:
        raise NotFound("There is no such fixture.")
    return found


def fixtures_of(session: Session, environment_id: uuid.UUID) -> Sequence[Fixture]:
    """All that verdicts made, withdrawn ones too, newest first."""
    statement = (
        select(Fixture)
        .options(joinedload(Fixture.creator), joinedload(Fixture.withdrawer))
        .where(Fixture.environment_id == environment_id)
        .order_by(Fixture.withdrawn_at.is_not(None), Fixture.id.desc())
    )
    return session.scalars(statement).all()


def judged_fixtures(session: Session, environment_id: uuid.UUID) -> list[JudgedFixture]:
    """What a certificate of this environment replays, oldest first."""
    statement = (
        select(Fixture)
        .options(joinedload(Fixture.creator))
        .where(Fixture.environment_id == environment_id, Fixture.withdrawn_at.is_(None))
        .order_by(Fixture.id)
    )
    return [
        JudgedFixture(
            name=fixture.name,
            judge=fixture.creator.name if fixture.creator else "somebody who left",
            task=task_spec(fixture.task),
            replies=[str(each["reply"]) for each in fixture.replies],
            lowest=fixture.lowest,
            highest=fixture.highest,
        )
        for fixture in session.scalars(statement)
    ]


def judged_rollout(session: Session, rollout_id: uuid.UUID) -> Judged:
    statement = (
        select(Rollout)
        .join(Rollout.group)
        .join(Group.task)
        .join(Task.version)
        .join(EnvironmentVersion.environment)
        .where(Rollout.id == rollout_id)
        .options(
            undefer(Rollout.steps),
            contains_eager(Rollout.group)
            .contains_eager(Group.task)
            .contains_eager(Task.version)
            .contains_eager(EnvironmentVersion.environment),
        )
    )
    rollout = session.scalars(statement).one_or_none()
    if rollout is None:
        raise NotFound("There is no such rollout.")
    newest = (
        select(VerdictRecord.verdict)
        .where(VerdictRecord.rollout_id == rollout_id)
        .order_by(VerdictRecord.created_at.desc(), VerdictRecord.id.desc())
        .limit(1)
    )
    return Judged(rollout, rollout.group.task.version, session.scalar(newest))


def environment_of(session: Session, fixture: Fixture) -> Environment:
    return session.get_one(Environment, fixture.environment_id)


def _store(session: Session, actor: Actor | None, judged: Judged, bound: float) -> Fixture:
    """The same replies to the same task are one fixture, whichever rollout they came from."""
    rollout, task = judged.rollout, judged.rollout.group.task
    is_positive = judged.verdict is Verdict.HONEST
    fixture = Fixture(
        environment_id=judged.version.environment_id,
        rollout_id=rollout.id,
        task=stored_task(TaskSpec(task.split, task.index, task.level, task.seed, task.arguments)),
        replies=[{"reply": str(step["reply"])} for step in rollout.steps],
        lowest=bound if is_positive else None,
        highest=None if is_positive else bound,
        created_by=actor.person_id if actor else None,
    )
    twin = select(Fixture).where(
        Fixture.environment_id == fixture.environment_id,
        Fixture.withdrawn_at.is_(None),
        Fixture.task == fixture.task,
        Fixture.replies == fixture.replies,
        Fixture.lowest.is_not(None) if is_positive else Fixture.highest.is_not(None),
    )
    return session.scalars(twin.limit(1)).first() or _added(session, actor, fixture)


def _added(session: Session, actor: Actor | None, fixture: Fixture) -> Fixture:
    session.add(fixture)
    session.flush()
    audit(session, actor, "fixture.keep", "fixture", fixture.id, lowest=fixture.lowest, highest=fixture.highest)
    return fixture


def _has_room(session: Session, judged: Judged) -> bool:
    statement = select(func.count()).where(
        Fixture.environment_id == judged.version.environment_id, Fixture.withdrawn_at.is_(None)
    )
    return (session.scalar(statement) or 0) < MOST_BY_VERDICT


def _can_be_replayed(rollout: Rollout) -> bool:
    return rollout.status is RolloutStatus.COMPLETED and bool(rollout.steps)


def _refuse_withdrawn(fixture: Fixture) -> None:
    if fixture.withdrawn_at is not None:
        raise IsWithdrawn
