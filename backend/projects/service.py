"""Change projects: their members, who sees them, and what belongs to them."""

import uuid
from collections.abc import Iterable, Sequence

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from backend.core.events import RUNS, announce, topic_of
from backend.deletions.tables import Deletion
from backend.domain.deletions import counted
from backend.domain.projects.access import DEFAULT_PROJECT
from backend.domain.vocabulary import PolicyKind, Role, RunKind
from backend.environments.queries import get_environment
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import Conflict, InvalidInput, NotAllowed, NotFound
from backend.operations.ids import parse_id
from backend.policies.queries import get_policy
from backend.policies.tables import Policy
from backend.projects.queries import MOVED, get_project
from backend.projects.schemas import CreateProject, MoveItems, MoveResponse, UpdateProject
from backend.projects.tables import Project, ProjectMember
from backend.runs.references import find_run
from backend.runs.tables import Run, refuse_crossing
from backend.team.tables import AuditEvent, Person
from backend.web.identity import Actor

MAX_PROJECTS = 200
Item = Environment | Policy | Run
TABLES: dict[str, type[Item]] = {"environments": Environment, "policies": Policy, "runs": Run}


class DefaultProjectIsOpen(Conflict):
    """The default project stays open to the team, because the built-in environments belong to it.

    Create another project and move the items there.
    """


class ProjectIsNotEmpty(Conflict):
    """Something belongs to this project. Move it to another one first."""


class MovedMeanwhile(Conflict):
    """Someone moved these items in the meantime."""


def create_project(session: Session, actor: Actor, request: CreateProject) -> Project:
    if (session.scalar(select(func.count(Project.id))) or 0) >= MAX_PROJECTS:
        raise Conflict(f"There are {MAX_PROJECTS} projects, the maximum. Delete one first.")
    _refuse_taken_name(session, request.name)
    project = Project(**request.model_dump(), created_by=actor.person_id)
    session.add(project)
    session.flush()
    _announce_access(session)
    return project


def update_project(session: Session, actor: Actor, project: Project, request: UpdateProject) -> Project:
    """Change what was given. A project that becomes restricted must not hold what runs of other projects use."""
    session.refresh(project, with_for_update=True)
    if request.name is not None and request.name != project.name:
        _refuse_taken_name(session, request.name, except_for=project.id)
        project.name = request.name
    if request.description is not None:
        project.description = request.description
    if request.is_restricted is not None and request.is_restricted != project.is_restricted:
        if project.id == DEFAULT_PROJECT:
            raise DefaultProjectIsOpen
        project.is_restricted = request.is_restricted
        session.flush()
        refuse_crossing(session.connection())
    session.flush()
    _announce_access(session)
    return project


def delete_project(session: Session, actor: Actor, project: Project) -> None:
    if project.id == DEFAULT_PROJECT:
        raise Conflict("The default project cannot be deleted.")
    session.refresh(project, with_for_update=True)
    counts = {
        noun: session.scalar(select(func.count()).where(table.project_id == project.id)) or 0
        for noun, table in TABLES.items()
    }
    if any(counts.values()):
        content = ", ".join(f"{count} {noun}" for noun, count in counts.items() if count)
        raise ProjectIsNotEmpty(f"{content} belong to {project.name}. Move them to another project first.")
    if deleted := session.scalar(select(func.count(Deletion.id)).where(Deletion.project_id == project.id)):
        raise ProjectIsNotEmpty(
            f"{counted(deleted, 'items')} of {project.name} can still be restored from Recently deleted. Remove them"
            " there first."
        )
    session.delete(project)
    session.flush()
    _announce_access(session)


def set_role(session: Session, actor: Actor, project: Project, person: Person, role: Role) -> ProjectMember:
    """Give a person a role in a project, in place of their role in the team."""
    if person.role is Role.ADMIN:
        raise Conflict(f"{person.name} is an administrator, whose role holds in every project.")
    member = session.get(ProjectMember, (project.id, person.id), with_for_update=True)
    if member is None:
        member = ProjectMember(project_id=project.id, person_id=person.id, role=role, added_by=actor.person_id)
        session.add(member)
    member.role = role
    session.flush()
    session.refresh(member, ["person"])
    announce(session, topic_of("access", person.id))
    return member


def remove_member(session: Session, project: Project, person: Person) -> None:
    """End a person's role in a project. In an open project, their role in the team holds again."""
    member = session.get(ProjectMember, (project.id, person.id), with_for_update=True)
    if member is None:
        raise NotFound(f"{person.name} has no role in {project.name}.")
    session.delete(member)
    session.flush()
    announce(session, topic_of("access", person.id))


def move_items(session: Session, actor: Actor, project: Project, request: MoveItems) -> MoveResponse:
    """Move items and what belongs to them. Needs the role author here and where they are now.

    An environment takes along its runs, a training run the policy that it trains, and that policy its run.
    """
    source = get_project(session, request.source) if request.source else None
    chosen: list[Item] = [
        *(_by_id(session, Environment, text) or get_environment(session, text) for text in request.environments),
        *(get_policy(session, text) for text in request.policies),
        *(find_run(session, text) for text in request.runs),
    ]
    if not chosen:
        raise InvalidInput("Choose at least one environment, policy or run to move.")
    _lock(session, chosen)
    if source and (elsewhere := [item for item in chosen if item.project_id != source.id]):
        raise MovedMeanwhile(_who_moved(session, actor, elsewhere[0]))
    return _move(session, actor, project, chosen)


def undo_move(session: Session, actor: Actor, move_id: uuid.UUID) -> MoveResponse:
    """Return the items of a move to their projects. Items that were moved again are an error."""
    event = session.get(AuditEvent, move_id)
    if event is None or event.action != MOVED:
        raise NotFound("There is no such move.")
    target = get_project(session, event.subject_id)
    origins: dict[str, str] = event.detail["from"]
    keys = [uuid.UUID(key) for key in origins]
    items: list[Item] = [
        *session.scalars(select(Environment).where(Environment.id.in_(keys))),
        *session.scalars(select(Policy).where(Policy.id.in_(keys))),
        *session.scalars(select(Run).where(Run.id.in_(keys))),
    ]
    found = {str(item.id): item for item in items}
    _lock(session, list(found.values()))
    if moved := [item for item in found.values() if item.project_id != target.id]:
        raise MovedMeanwhile(_who_moved(session, actor, moved[0]))
    responses = [
        _move(session, actor, get_project(session, origin), [found[key] for key in found if origins[key] == origin])
        for origin in sorted({origins[key] for key in found})
    ]
    if not responses:
        raise NotFound("The items of this move no longer exist.")
    return responses[0].model_copy(update={noun: sum(getattr(each, noun) for each in responses) for noun in TABLES})


def _move(session: Session, actor: Actor, project: Project, chosen: Sequence[Item]) -> MoveResponse:
    for item in chosen:
        if isinstance(item, Environment) and item.is_built_in and project.id != DEFAULT_PROJECT:
            raise Conflict(
                f"{item.name} comes with Proctor and stays in the default project. Copy it to move the copy."
            )
        is_shared = isinstance(item, Policy) and item.kind in (PolicyKind.SCRIPTED, PolicyKind.HUMAN)
        if is_shared and item.created_by is None and project.id != DEFAULT_PROJECT:
            raise Conflict(f"The policy {item.name} comes with Proctor and stays in the default project.")
    items = [item for item in _with_followers(session, chosen) if item.project_id != project.id]
    for origin in {item.project_id for item in items}:
        role = actor.access.role_in(origin)
        if role is None or not role.includes(Role.AUTHOR):
            name = actor.access.names.get(origin, "their project")
            raise NotAllowed(f"Moving items from {name} needs the role author there; yours is {role}.")
    origins = {str(item.id): str(item.project_id) for item in items}
    for item in items:
        item.project_id = project.id
    session.flush()
    refuse_crossing(session.connection())
    event = AuditEvent(
        person_id=actor.person_id,
        action=MOVED,
        subject_kind="project",
        subject_id=str(project.id),
        detail={"name": project.name, "items": [item.name for item in chosen[:20]], "from": origins},
    )
    session.add(event)
    session.flush()
    announce(session, RUNS)
    counts = {noun: sum(isinstance(item, table) for item in items) for noun, table in TABLES.items()}
    return MoveResponse(id=event.id, project=project.name, **counts)


def _with_followers(session: Session, chosen: Sequence[Item]) -> list[Item]:
    """Return the items and whatever of the same projects belongs to them."""
    ids = {table: [item.id for item in chosen if isinstance(item, table)] for table in TABLES.values()}
    is_training = Run.kind == RunKind.TRAINING
    follows = or_(
        select(EnvironmentVersion.id)
        .join(Environment)
        .where(
            EnvironmentVersion.id == Run.version_id,
            Environment.id.in_(ids[Environment]),
            Environment.project_id == Run.project_id,
        )
        .exists(),
        is_training & Run.policy_id.in_(ids[Policy]),
    )
    runs = session.scalars(select(Run).where(or_(Run.id.in_(ids[Run]), follows)).with_for_update()).all()
    trained = [run.policy_id for run in runs if run.kind is RunKind.TRAINING and run.policy_id]
    policies = session.scalars(select(Policy).where(Policy.id.in_([*ids[Policy], *trained])).with_for_update()).all()
    return [*(item for item in chosen if isinstance(item, Environment)), *policies, *runs]


def _by_id(session: Session, table: type[Environment], text: str) -> Environment | None:
    key = parse_id(text)
    return session.scalar(select(table).where(table.id == key)) if key else None


def _lock(session: Session, items: Iterable[Item]) -> None:
    """Lock items in the order of their ids, so that two moves of the same ones wait instead of blocking each other."""
    for item in sorted(items, key=lambda item: item.id):
        session.refresh(item, ["project_id"], with_for_update=True)


def _who_moved(session: Session, actor: Actor, item: Item) -> str:
    statement = select(AuditEvent, Person.name).join(AuditEvent.person).order_by(AuditEvent.id.desc()).limit(1)
    row = session.execute(
        statement.where(AuditEvent.action == MOVED, AuditEvent.detail["from"].has_key(str(item.id)))
    ).first()
    name = actor.access.names.get(item.project_id)
    by = row[1] if row else "Someone"
    place = f"to {name}" if name else "to another project"
    return f"{by} moved {item.name} {place} in the meantime. Nothing was moved. Reload to see where it is."


def _refuse_taken_name(session: Session, name: str, except_for: uuid.UUID | None = None) -> None:
    is_other = Project.id.is_distinct_from(except_for)
    if session.scalar(select(Project.id).where(func.lower(Project.name) == name.lower(), is_other)):
        raise InvalidInput(fields={"name": f"There is a project named {name} already."})


def _announce_access(session: Session) -> None:
    """Let open pages of all members check what they may see."""
    for person_id in session.scalars(select(Person.id).where(Person.disabled_at.is_(None))):
        announce(session, topic_of("access", person_id))
