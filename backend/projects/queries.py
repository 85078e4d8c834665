"""Read projects, their members and the moves between them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import InstrumentedAttribute, Session, joinedload

from backend.core.row_access import current_project, is_hidden
from backend.domain.projects.access import DEFAULT_PROJECT
from backend.domain.vocabulary import Role
from backend.environments.tables import Environment
from backend.errors import NotFound
from backend.policies.tables import Policy
from backend.projects.schemas import ProjectResponse
from backend.projects.tables import Project, ProjectMember
from backend.runs.tables import Run
from backend.team.tables import AuditEvent, Person

if TYPE_CHECKING:  # jobs list runs too, and never load the web
    from backend.web.identity import Actor

MOVED = "project.move"
"""Action of a move in the audit log, which has what an undo needs."""


def get_project(session: Session, text: str) -> Project:
    """By name or id. Raises NotFound, also for one that the session's person does not see."""
    project = session.scalar(select(Project).where(Project.name == text))
    with suppress(ValueError):
        project = project or session.get(Project, uuid.UUID(text))
    if project is None or is_hidden(session, project.id):
        raise NotFound(f"There is no project {text[:60]}.")
    return project


def project_id_of(session: Session, text: str | None) -> uuid.UUID | None:
    """Return the id of a project by its name or id. Default: the project that the session's person chose."""
    return get_project(session, text).id if text else current_project(session)


def project_responses(session: Session, actor: Actor, *, only: uuid.UUID | None = None) -> list[ProjectResponse]:
    """Return the projects that a person sees, by name, with their numbers of items."""
    counts = [
        select(func.count()).where(table.project_id == Project.id).correlate(Project).scalar_subquery()
        for table in (Environment, Policy, Run, ProjectMember)
    ]
    statement = select(Project, *counts).where(Project.id.not_in(actor.access.hidden)).order_by(Project.name)
    if only is not None:
        statement = statement.where(Project.id == only)
    return [
        ProjectResponse.from_row(
            project,
            is_default=project.id == DEFAULT_PROJECT,
            your_role=actor.access.role_in(project.id),
            environments=environments,
            policies=policies,
            runs=runs,
            members=members,
        )
        for project, environments, policies, runs, members in session.execute(statement)
    ]


def members_of(session: Session, project: Project) -> Sequence[ProjectMember]:
    statement = select(ProjectMember).join(ProjectMember.person).options(joinedload(ProjectMember.person))
    return session.scalars(statement.where(ProjectMember.project_id == project.id).order_by(Person.name)).all()


def sees_project_of(run_id: uuid.UUID | InstrumentedAttribute[uuid.UUID | None]) -> ColumnElement[bool]:
    """The condition that a `Person` sees the project of a run, as `domain.projects.access` says."""
    project = select(Run.project_id).where(Run.id == run_id).scalar_subquery()
    return or_(
        select(~Project.is_restricted).where(Project.id == project).scalar_subquery(),
        Person.role == Role.ADMIN,
        Person.id.in_(select(ProjectMember.person_id).where(ProjectMember.project_id == project)),
    )


def moves_to(session: Session, project: Project, limit: int = 10) -> Sequence[AuditEvent]:
    """Return the latest moves into a project, newest first."""
    statement = select(AuditEvent).options(joinedload(AuditEvent.person)).order_by(AuditEvent.id.desc()).limit(limit)
    is_move = AuditEvent.action == MOVED, AuditEvent.subject_kind == "project", AuditEvent.subject_id == str(project.id)
    return session.scalars(statement.where(*is_move)).all()
