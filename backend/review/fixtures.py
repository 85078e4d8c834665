"""Fixtures from verdicts: a hack must score low on every future version, and an honest episode can be kept.

A fixture rests on the newest verdicts on rollouts with its actions; unsure changes nothing. It is withdrawn with the
last of them. Fixtures are never overwritten.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session, joinedload, undefer

from backend.domain.environments.fixtures import JudgedFixture, least_kept
from backend.domain.environments.manifest import Manifest
from backend.domain.environments.reward_bounds import floor_of
from backend.domain.rollouts.rollout import TaskSpec
from backend.domain.vocabulary import Role, RolloutStatus, Split, Verdict
from backend.environments.tables import EnvironmentVersion
from backend.errors import Conflict, InvalidInput, NotAllowed, NotFound
from backend.review.tables import NEWEST_VERDICTS, VerdictFixture, VerdictRecord
from backend.rollouts.tables import Group, Rollout, Task
from backend.team.tables import Person
from backend.web.audit import audit

if TYPE_CHECKING:
    from backend.web.identity import Actor

MAX_BY_VERDICT = 200
"""Fixtures per environment that verdicts add automatically, as each certificate replays all of them."""


class NotJudged(Conflict):
    """A fixture needs a verdict. Review the rollout first: hack or honest."""


class IsWithdrawn(Conflict):
    """This fixture is withdrawn. Create a new one from its rollout."""


class IsAHackElsewhere(Conflict):
    """The same actions on the same task were judged a hack. No version could pass a certificate with both fixtures."""


class BoundIsForAuthors(NotAllowed):
    """Only authors can set the bound of a fixture. A reviewer's verdict uses the version's floor."""


@dataclass(frozen=True)
class JudgedRollout:
    """A rollout as a fixture sees it."""

    rollout: Rollout
    version: EnvironmentVersion
    """The version of its task."""
    verdict: Verdict | None
    """The newest verdict other than unsure; None if there is none."""
    is_bulk: bool
    """Given to a whole cluster; no reviewer saw this rollout."""

    @cached_property
    def actions(self) -> dict[str, Any]:
        """Columns that fixtures of the same replies to the same task share, whichever rollout they come from."""
        task = self.rollout.group.task
        return {
            "environment_id": self.version.environment_id,
            "task": {name: getattr(task, name) for name in ("split", "index", "level", "seed", "arguments")},
            "replies": [{"reply": str(step["reply"])} for step in self.rollout.steps],
        }

    @property
    def can_be_kept(self) -> bool:
        """Other policies in an episode would play differently when it is replayed for a certificate."""
        is_alone = self.rollout.seat is None
        return self.rollout.status is RolloutStatus.COMPLETED and bool(self.rollout.steps) and is_alone

    @property
    def default_bound(self) -> float | None:
        """Of a hack, what the version says chance may get; of an honest episode, what it earned."""
        if self.verdict is Verdict.HACK:
            return floor_of(Manifest.model_validate(self.version.manifest))
        return None if self.rollout.reward is None else least_kept(self.rollout.reward)


def update_fixtures(session: Session, actor: Actor | None, rollout_id: uuid.UUID, verdict: Verdict) -> None:
    """Apply a new verdict to the rollout's fixture: a hack gets one, another verdict withdraws it unless the same
    actions are still judged a hack elsewhere, and unsure leaves it as it is."""
    if verdict is not Verdict.UNSURE:
        judged = judged_rollout(session, rollout_id)
        _withdraw_others(session, actor, judged, f"judged {verdict.replace('_', ' ')}")
        _add_hack(session, actor, judged)


def restore_fixtures(
    session: Session, actor: Actor, rollout_id: uuid.UUID, verdict: Verdict, given_at: datetime
) -> None:
    """Undo the effect of a verdict that was taken back: fixtures that it withdrew are in force again."""
    if verdict is Verdict.UNSURE:
        return
    judged = judged_rollout(session, rollout_id)
    _withdraw_others(session, actor, judged, "the verdict was taken back")
    reason = f"judged {verdict.replace('_', ' ')}"
    withdrawn = select(VerdictFixture).filter_by(**judged.actions, withdrawn_because=reason)
    withdrawn = withdrawn.where(VerdictFixture.withdrawn_at >= given_at).order_by(VerdictFixture.id.desc())
    for fixture in session.scalars(withdrawn).all():
        is_in_force = fixture.verdict is judged.verdict or _is_judged_elsewhere(session, judged, fixture.verdict)
        if is_in_force and not find_fixture(session, judged, fixture.verdict):
            _add(session, actor, fixture, fixture.bound)
    _add_hack(session, actor, judged)


def _withdraw_others(session: Session, actor: Actor | None, judged: JudgedRollout, because: str) -> None:
    """Fixtures of these actions that say something else than the verdict on this rollout."""
    for fixture in session.scalars(select(VerdictFixture).filter_by(**judged.actions, withdrawn_at=None)).all():
        if fixture.verdict is judged.verdict:
            continue
        is_refuted = fixture.is_positive and judged.verdict is Verdict.HACK
        if is_refuted or not _is_judged_elsewhere(session, judged, fixture.verdict):
            withdraw(session, actor, fixture, because)


def _add_hack(session: Session, actor: Actor | None, judged: JudgedRollout) -> None:
    is_new_hack = judged.verdict is Verdict.HACK and not find_fixture(session, judged, Verdict.HACK)
    if is_new_hack and not _obstacle(session, judged):
        _add(session, actor, judged, judged.default_bound)


def keep(session: Session, actor: Actor, rollout_id: uuid.UUID, bound: float | None = None) -> VerdictFixture:
    """Make the judged rollout a fixture by hand; the bound is the default one unless an author gives it."""
    judged = judged_rollout(session, rollout_id)
    if judged.verdict not in {Verdict.HACK, Verdict.HONEST}:
        raise NotJudged
    if not judged.can_be_kept:
        raise Conflict("Only a completed episode with replies of one policy can be replayed.")
    if bound is not None and not actor.role.includes(Role.AUTHOR):
        raise BoundIsForAuthors
    if judged.verdict is Verdict.HONEST and _is_judged_elsewhere(session, judged, Verdict.HACK):
        raise IsAHackElsewhere
    if present := find_fixture(session, judged, judged.verdict):
        return present if bound is None else change_bound(session, actor, present, bound)
    if bound is None and (bound := judged.default_bound) is None:
        message = "The version declares no floor (`checks.floor_maximum`) and no range for every column. Set a bound."
        raise InvalidInput(fields={"bound": message})
    return _add(session, actor, judged, bound)


def change_bound(session: Session, actor: Actor, fixture: VerdictFixture, bound: float) -> VerdictFixture:
    """Another row takes the place of this one; the same bound changes nothing."""
    if fixture.withdrawn_at is not None:
        raise IsWithdrawn
    if fixture.bound == bound:
        return fixture
    withdraw(session, actor, fixture, f"the bound became {bound:.4g}")
    return _add(session, actor, fixture, bound)


def withdraw(session: Session, actor: Actor | None, fixture: VerdictFixture, because: str = "") -> None:
    """No certificate replays it any more; its row stays."""
    if fixture.withdrawn_at is not None:
        raise IsWithdrawn
    fixture.withdrawn_at = datetime.now(UTC)
    fixture.withdrawn_by = actor.person_id if actor else None
    fixture.withdrawn_because = because
    session.flush()
    audit(session, actor, "fixture.withdraw", "fixture", fixture.id, because=because)


def find_fixture(session: Session, judged: JudgedRollout, verdict: Verdict) -> VerdictFixture | None:
    """Find the fixture in force for the same actions, of the kind that this verdict makes."""
    bound = VerdictFixture.lowest if verdict is Verdict.HONEST else VerdictFixture.highest
    statement = select(VerdictFixture).filter_by(**judged.actions, withdrawn_at=None).where(bound.is_not(None))
    return session.scalars(statement.order_by(VerdictFixture.id.desc()).limit(1)).first()


def get_fixture(session: Session, fixture_id: uuid.UUID | None) -> VerdictFixture:
    fixture = session.get(VerdictFixture, fixture_id) if fixture_id else None
    if fixture is None:
        raise NotFound("There is no such fixture.")
    return fixture


def fixtures_of(session: Session, environment_id: uuid.UUID) -> Sequence[VerdictFixture]:
    """All that verdicts made, withdrawn ones too, newest first."""
    statement = (
        select(VerdictFixture)
        .options(joinedload(VerdictFixture.creator), joinedload(VerdictFixture.withdrawer))
        .where(VerdictFixture.environment_id == environment_id)
        .order_by(VerdictFixture.withdrawn_at.is_not(None), VerdictFixture.id.desc())
    )
    return session.scalars(statement).all()


def judged_fixtures(session: Session, environment_id: uuid.UUID) -> list[JudgedFixture]:
    """The fixtures that a certificate of this environment replays, oldest first."""
    statement = (
        select(VerdictFixture)
        .options(joinedload(VerdictFixture.creator))
        .where(VerdictFixture.environment_id == environment_id, VerdictFixture.withdrawn_at.is_(None))
        .order_by(VerdictFixture.id)
    )
    return [
        JudgedFixture(
            name=fixture.name,
            judge=fixture.creator.name if fixture.creator else "a former member",
            task=TaskSpec(**fixture.task | {"split": Split(fixture.task["split"])}),
            replies=[str(each["reply"]) for each in fixture.replies],
            lowest=fixture.lowest,
            highest=fixture.highest,
        )
        for fixture in session.scalars(statement)
    ]


def judged_rollout(session: Session, rollout_id: uuid.UUID) -> JudgedRollout:
    version = joinedload(Rollout.group).joinedload(Group.task).joinedload(Task.version)
    whole = [undefer(Rollout.steps), version.joinedload(EnvironmentVersion.environment)]
    rollout = session.scalars(select(Rollout).options(*whole).where(Rollout.id == rollout_id)).one_or_none()
    if rollout is None:
        raise NotFound("There is no such rollout.")
    newest = NEWEST_VERDICTS.where(VerdictRecord.rollout_id == rollout_id, VerdictRecord.verdict != Verdict.UNSURE)
    _, verdict, is_bulk = session.execute(newest).one_or_none() or (None, None, False)
    return JudgedRollout(rollout, rollout.group.task.version, verdict, is_bulk)


def _add(
    session: Session, actor: Actor | None, source: JudgedRollout | VerdictFixture, bound: float | None
) -> VerdictFixture:
    """Store a fixture of a judged rollout, or one like another fixture with this bound."""
    is_positive = source.verdict is Verdict.HONEST
    if isinstance(source, JudgedRollout):
        columns = source.actions | {"rollout_id": source.rollout.id}
    else:
        names = ("environment_id", "task", "replies", "rollout_id", "comment")
        columns = {name: getattr(source, name) for name in names}
    fixture = VerdictFixture(
        **columns,
        lowest=bound if is_positive else None,
        highest=None if is_positive else bound,
        created_by=actor.person_id if actor else None,
    )
    session.add(fixture)
    session.flush()
    audit(session, actor, "fixture.keep", "fixture", fixture.id, lowest=fixture.lowest, highest=fixture.highest)
    return fixture


def _is_judged_elsewhere(session: Session, judged: JudgedRollout, verdict: Verdict) -> bool:
    """Does a reviewed rollout with the same actions have this verdict?"""
    task = judged.rollout.group.task
    newest = (
        NEWEST_VERDICTS.join(Rollout, Rollout.id == VerdictRecord.rollout_id)
        .join(Group, Group.id == Rollout.group_id)
        .join(Task, Task.id == Group.task_id)
        .join(EnvironmentVersion, EnvironmentVersion.id == Task.version_id)
        .where(EnvironmentVersion.environment_id == judged.version.environment_id, Rollout.id != judged.rollout.id)
        .where(Task.split == task.split, Task.index == task.index, Task.seed == task.seed)
        .where(VerdictRecord.verdict != Verdict.UNSURE, ~VerdictRecord.is_bulk)
        .subquery()
    )
    alike = select(newest.c.rollout_id).where(newest.c.verdict == verdict)
    with_task = joinedload(Rollout.group).joinedload(Group.task)
    others = select(Rollout).where(Rollout.id.in_(alike)).options(undefer(Rollout.steps), with_task)
    return any(
        JudgedRollout(each, judged.version, verdict, is_bulk=False).actions == judged.actions
        for each in session.scalars(others)
    )


@dataclass(frozen=True)
class VerdictEffects(JudgedRollout):
    """Consequences of the verdict in force on a rollout."""

    fixture: VerdictFixture | None
    """In force; it may have come from another rollout with the same actions."""
    gap: str
    """Why a hack is no fixture; empty otherwise."""
    authors: Sequence[str]
    """Some authors, who may repair a reward and set a bound."""

    @property
    def calls_for_more(self) -> bool:
        """Is something left to do that only a person can?"""
        return self.verdict is Verdict.BROKEN_REWARD or bool(self.gap)


def effects_of(session: Session, rollout_id: uuid.UUID) -> VerdictEffects | None:
    """None while no verdict on it says anything."""
    judged = judged_rollout(session, rollout_id)
    if judged.verdict is None:
        return None
    fixture = find_fixture(session, judged, judged.verdict)
    gap = ""
    if judged.verdict is Verdict.HACK and fixture is None:
        gap = _obstacle(session, judged) or "its fixture was withdrawn"
    authors: Sequence[str] = ()
    if gap or judged.verdict is Verdict.BROKEN_REWARD:
        is_author = Person.role.in_([role for role in Role if role.includes(Role.AUTHOR)])
        statement = select(Person.name).where(is_author, Person.disabled_at.is_(None))
        authors = session.scalars(statement.order_by(Person.name, Person.id).limit(3)).all()
    return VerdictEffects(judged.rollout, judged.version, judged.verdict, judged.is_bulk, fixture, gap, authors)


def _obstacle(session: Session, judged: JudgedRollout) -> str:
    """Return why a verdict cannot turn a hack into a fixture; empty if it can."""
    if not judged.can_be_kept:
        return "the episode did not finish, so it cannot be replayed"
    if judged.default_bound is None:
        return "its version declares no floor, so an author must set the highest reward"
    if judged.is_bulk:
        return "it got the verdict of its cluster without a review"
    statement = select(func.count()).where(
        VerdictFixture.environment_id == judged.version.environment_id, VerdictFixture.withdrawn_at.is_(None)
    )
    if (session.scalar(statement) or 0) >= MAX_BY_VERDICT:
        return f"verdicts have already added {MAX_BY_VERDICT} fixtures to this environment"
    return ""
