"""Create environments, publish their drafts as immutable versions, and queue checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from backend.core.events import RUNS, announce
from backend.core.queue import enqueue
from backend.domain.environments.manifest import FileProblem
from backend.domain.environments.packages import check_files, content_hash
from backend.domain.vocabulary import Queue, RunKind, RunStatus
from backend.environments.drafts import locked_draft, package_errors, refuse_unseen, write_draft
from backend.environments.library import library_names, load_package
from backend.environments.queries import (
    find_environment,
    find_version,
    find_version_of_content,
    get_draft,
)
from backend.environments.scaffold import with_generated, without_generated
from backend.environments.tables import Environment, EnvironmentDraft, EnvironmentVersion
from backend.environments.validation import find_manifest, validate_package
from backend.errors import Conflict, InvalidInput
from backend.policies.queries import get_policy_option
from backend.runs.tables import Run
from backend.web.audit import Requester, audit

if TYPE_CHECKING:  # workers check versions too, and never load the web
    from backend.web.identity import Actor

RESERVED_NAMES = frozenset({"new", "validate", "import"})
"""Names that are part of addresses."""
_IMPORT_LOCK = 0x50524F43


class NameIsTaken(Conflict):
    """There is an environment of this name already. Choose another name."""


class NothingToPublish(Conflict):
    """This content is published already."""


class ChecksAreRunning(Conflict):
    """The checks of this version are running with another policy. Wait for their end, or stop them."""


class PackageHasProblems(InvalidInput):
    """The package has problems; nothing was published."""

    def __init__(self, problems: list[FileProblem]) -> None:
        first = problems[0]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(
            f"Nothing was published. {first.place}{first.key + ': ' if first.key else ''}{first.message}{more}",
            {f"{problem.path}:{problem.line}": f"{problem.key} {problem.message}".strip() for problem in problems},
        )
        self.problems = problems


def create_environment(
    session: Session, actor: Actor | None, name: str, files: Mapping[str, str], *, is_built_in: bool = False
) -> Environment:
    """Create an environment with its first draft; nothing is published yet."""
    if name in RESERVED_NAMES:
        raise InvalidInput(fields={"name": f"`{name}` is reserved. Choose another name."})
    with package_errors("files"):
        check_files(files)
    if find_environment(session, name):
        raise NameIsTaken(f"There is an environment called {name} already. Choose another name.")
    person_id = actor.person_id if actor else None
    manifest = find_manifest(files)
    environment = Environment(name=name, created_by=person_id, is_built_in=is_built_in)
    environment.description = manifest.description if manifest else ""
    try:
        with session.begin_nested():
            session.add(environment)
    except IntegrityError as error:
        reason = "It was created just now, or belongs to a project that you do not see."
        raise NameIsTaken(f"There is an environment called {name} already. {reason} Choose another name.") from error
    session.add(EnvironmentDraft(environment_id=environment.id, files=without_generated(files), updated_by=person_id))
    audit(session, actor, "environment.create", "environment", environment.id, name=name)
    session.flush()
    return environment


def publish_version(
    session: Session,
    actor: Actor | None,
    environment: Environment,
    *,
    notes: str = "",
    revision: int | None,
    check: bool = False,
    regrade: bool = False,
) -> EnvironmentVersion:
    """Publish the draft as the next version; run its checks and rescore past rollouts on request.

    `revision`: the draft that the publisher saw. None takes the draft as it is.
    """
    session.refresh(environment, with_for_update=True)
    draft = locked_draft(session, environment)
    if revision is not None:
        refuse_unseen(draft.revision, revision)
    version = _publish(session, actor, environment, with_generated(draft.files), notes)
    if check:
        start_check(session, actor, version, environment.name)
    if regrade and actor:
        arguments = {"version_id": str(version.id), "person_id": str(actor.person_id)}
        enqueue(session, "rescoring.history", queue=Queue.CPU, arguments=arguments)
    return version


def import_package(
    session: Session, name: str, files: Mapping[str, str], *, notes: str = ""
) -> EnvironmentVersion | None:
    """Publish a new version of a built-in package if its content is new; None if nothing changed.

    A draft that people changed is kept.
    """
    environment = find_environment(session, name)
    if environment is None:
        environment = create_environment(session, None, name, files, is_built_in=True)
    session.refresh(environment, with_for_update=True)
    newest = find_version(session, environment)
    if find_version_of_content(session, environment, content_hash(files)):
        return None
    draft = get_draft(session, environment)
    session.refresh(draft, with_for_update=True)
    if newest is None or content_hash(with_generated(draft.files)) == newest.content_hash:
        write_draft(session, None, draft, files)
    return _publish(session, None, environment, files, notes or "Comes with Proctor.")


def import_builtins(session: Session) -> list[str]:
    """Publish new versions of the built-in environments; return them as `name v2`.

    If several processes start at once, the first one publishes and the others find nothing left.
    """
    session.execute(select(func.pg_advisory_xact_lock(_IMPORT_LOCK)))
    published = []
    for name in library_names():
        if version := import_package(session, name, load_package(name)):
            published.append(f"{name} v{version.number}")
    return published


def start_check(
    session: Session, actor: Requester | None, version: EnvironmentVersion, name: str, *, policy: str = ""
) -> Run:
    """Queue the checks of a version, or return their run if they are already running.

    `policy`: a stored policy that measures the tasks too (`get_policy_option`); empty: scripted policies only.
    """
    session.execute(select(EnvironmentVersion.id).where(EnvironmentVersion.id == version.id).with_for_update())
    reference = get_policy_option(session, policy) if policy else {}
    unfinished = select(Run).where(
        Run.version_id == version.id, Run.kind == RunKind.CHECK, Run.status.in_([RunStatus.QUEUED, RunStatus.RUNNING])
    )
    if run := session.scalars(unfinished.order_by(Run.created_at.desc()).limit(1)).first():
        if reference and run.configuration.get("reference") != reference:
            raise ChecksAreRunning
        return run
    manifest = version.typed_manifest
    run = Run(
        kind=RunKind.CHECK,
        name=f"Checks of {name} v{version.number}",
        version_id=version.id,
        configuration={"reference": reference} if reference else {},
        columns=manifest.column_names,
        weights=[column.weight for column in manifest.columns],
        created_by=actor.person_id if actor else None,
    )
    session.add(run)
    session.flush()
    by = reference.get("name", "")
    audit(session, actor, "environment.check", "run", run.id, environment=name, version=version.number, policy=by)
    enqueue(session, "environments.check", queue=Queue(reference.get("queue") or Queue.CPU), run_id=run.id)
    announce(session, RUNS)
    return run


def _publish(
    session: Session, actor: Actor | None, environment: Environment, files: Mapping[str, str], notes: str
) -> EnvironmentVersion:
    """Publish files as the next version. The caller holds the environment's lock, so numbers are consecutive."""
    validation = validate_package(files, environment.name)
    if validation.manifest is None or not validation.is_publishable:
        raise PackageHasProblems(validation.problems)
    digest = content_hash(files)
    if twin := find_version_of_content(session, environment, digest):
        by = f", published by {twin.publisher.name}" if twin.publisher else ""
        raise NothingToPublish(f"Version {twin.number}{by}, has exactly this content. Nothing was published.")
    highest = select(func.max(EnvironmentVersion.number)).where(EnvironmentVersion.environment_id == environment.id)
    number = (session.scalar(highest) or 0) + 1
    version = EnvironmentVersion(
        environment_id=environment.id,
        number=number,
        content_hash=digest,
        files=dict(files),
        manifest=validation.manifest.model_dump(mode="json"),
        notes=notes.strip(),
        published_by=actor.person_id if actor else None,
    )
    session.add(version)
    environment.description = validation.manifest.description
    audit(session, actor, "environment.publish", "environment", environment.id, number=number, content_hash=digest)
    session.flush()
    return version
