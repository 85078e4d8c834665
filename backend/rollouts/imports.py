"""Taking a file of rollouts in, and taking an imported run away again."""

import hashlib
import tempfile
import uuid
from dataclasses import dataclass
from importlib.metadata import version as package_version
from pathlib import Path
from typing import IO

from sqlalchemy import delete, text
from sqlalchemy.orm import Session

from backend.core import artifacts
from backend.core.events import RUNS, announce
from backend.core.queue import enqueue
from backend.domain.environments.manifest import Manifest
from backend.domain.ids import new_id
from backend.domain.text import plain_text
from backend.domain.vocabulary import PolicyKind, Queue, RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.errors import Conflict, InvalidInput
from backend.policies.tables import Policy
from backend.rollouts import export_queries
from backend.rollouts.exchange_schemas import ImportForm
from backend.rollouts.external_runs import IMPORT_JOB, artifact_of, external_policy, most_common, plan_of, source_of
from backend.rollouts.formats.reading import open_file
from backend.rollouts.formats.survey import Survey, survey
from backend.rollouts.formats.unpacking import BadFile, TooMuch
from backend.runs.tables import Run
from backend.web.audit import audit
from backend.web.identity import Actor

MAX_UPLOAD_BYTES = 1024**3
LOOKED_AT_BYTES = 4 * 1024**2
"""Of a smaller file of text all is read at once, so that what is wrong with it is said at the form."""
UNPACKED_LOOKED_AT_BYTES = 4 * LOOKED_AT_BYTES
"""Of a zip; what unpacks to more is a worker's, as are tables, whose readers are written in C++."""
_CHUNK = 1 << 20
DELETE_SECONDS = 120


class AlreadyImported(Conflict):
    """This file was imported already."""


class NotImported(Conflict):
    """Only imported runs can be deleted; what was played here is kept."""


class IsBeingImported(Conflict):
    """This run is just being imported; stop it first."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """An upload on this machine's disk."""

    path: Path
    name: str
    digest: str
    size: int


def start_import(session: Session, actor: Actor, form: ImportForm) -> Run:
    """Queue the import of a file. What can be seen at once to be wrong is refused at once; nothing is stored then."""
    with tempfile.TemporaryDirectory(prefix="proctor-import-") as folder:
        taken = _take(form.file.file, form.file.filename or "rollouts.jsonl", Path(folder))
        found = _look(taken, Path(folder))
        version = _version(session, form, found)
        _refuse_repeated(session, taken, version)
        run = _run(session, actor, form, taken, found, version)
        artifacts.put_file(taken.path, artifact_of(run.id))
    enqueue(session, IMPORT_JOB, queue=Queue.CPU, run_id=run.id, reads_artifacts=True)
    audit(session, actor, "rollouts.import", "run", run.id, file=taken.name, hash=taken.digest)
    announce(session, RUNS)
    return run


def _take(upload: IO[bytes], name: str, folder: Path) -> _Taken:
    path, digest, size = folder / "upload", hashlib.sha256(), 0
    with path.open("wb") as file:
        while part := upload.read(_CHUNK):
            size += len(part)
            if size > MAX_UPLOAD_BYTES:
                raise InvalidInput(fields={"file": f"At most {MAX_UPLOAD_BYTES // 1024**2} MiB; zip it, or split it."})
            digest.update(part)
            file.write(part)
    if not size:
        raise InvalidInput(fields={"file": "The file is empty."})
    return _Taken(path, plain_text(Path(name).name)[:200], digest.hexdigest(), size)


def _look(taken: _Taken, folder: Path) -> Survey | None:
    """All of a small file of text, also a zipped one; of others a worker finds out."""
    if taken.size > LOOKED_AT_BYTES:
        return None
    try:
        opened = open_file(taken.path, folder, most=UNPACKED_LOOKED_AT_BYTES)
        return survey(opened) if opened.is_text else None
    except TooMuch:
        return None
    except BadFile as error:
        raise InvalidInput(fields={"file": f"{error}. Nothing was stored."}) from error


def _version(session: Session, form: ImportForm, found: Survey | None) -> EnvironmentVersion:
    """The one that was chosen; else the one that the file names."""
    if form.version_id is not None:
        if chosen := session.get(EnvironmentVersion, form.version_id):
            return chosen
        raise InvalidInput(fields={"version_id": "There is no such environment version."})
    if form.environment:
        return _named(session, form.environment)
    for digest in found.hashes if found else ():
        if version := export_queries.version_with_hash(session, digest):
            return version
    names = list(found.environments) if found else []
    for name in names:
        if version := export_queries.version_named(session, name.rpartition("/")[2].replace("-", "_"), None):
            return version
    said = f"The file says {', '.join(names[:3])}, which is not here. " if names else "The file does not say which. "
    advice = "Choose the environment that was played; where it is not here yet, import it first (`proctor env import`)."
    raise InvalidInput(fields={"version_id": said + advice})


def _named(session: Session, text: str) -> EnvironmentVersion:
    name, _, number = text.replace(":", "@").partition("@")
    if number and not number.isdecimal():
        raise InvalidInput(fields={"environment": "Write `name` or `name@number`."})
    version = export_queries.version_named(session, name, int(number) if number else None)
    if version is None:
        raise InvalidInput(
            fields={"environment": f"There is no published {text}. Import the environment first: `proctor env import`."}
        )
    return version


def _refuse_repeated(session: Session, taken: _Taken, version: EnvironmentVersion) -> None:
    for run in export_queries.imported_runs(session, taken.digest):
        if run.version_id == version.id and run.status not in {RunStatus.FAILED, RunStatus.STOPPED}:
            known = f"“{run.name}” (/runs/{run.id})"
            raise AlreadyImported(f"This very file was imported already, as {known}. Delete that run to import anew.")


def _run(
    session: Session, actor: Actor, form: ImportForm, taken: _Taken, found: Survey | None, version: EnvironmentVersion
) -> Run:
    manifest = Manifest.model_validate(version.manifest)
    played_by = form.policy or (most_common(found) if found else "")
    policy = external_policy(session, played_by) if played_by else None
    source = {"tool": found.tool if found else "", "file": taken.name, "hash": taken.digest, "bytes": taken.size}
    asked = {"split": str(form.split), "tasks": form.tasks}
    run = Run(
        id=new_id(),
        kind=RunKind.EVALUATION,
        status=RunStatus.QUEUED,
        name=(form.name or _name(policy, taken)).strip()[:200],
        version_id=version.id,
        policy_id=policy.id if policy else None,
        configuration={
            **(plan_of(found, form.split) if found else {"split": str(form.split), "tasks": 1}),
            "content_hash": version.content_hash,
            "source": {**source, "asked": asked},
            "proctor": package_version("proctor"),
        },
        columns=manifest.column_names,
        weights=[column.weight for column in manifest.columns],
        progress={"phase": "waiting for a worker", "done": 0, "total": found.rollouts if found else 0},
        created_by=actor.person_id,
    )
    session.add(run)
    session.flush()
    return run


def _name(policy: Policy | None, taken: _Taken) -> str:
    return f"{policy.name}, imported from {taken.name}" if policy else f"imported from {taken.name}"


def delete_imported(session: Session, actor: Actor, run: Run) -> None:
    """Take an imported run away with all that hangs on it, and its policy where nothing else is by it."""
    source = source_of(run)
    if source is None:
        raise NotImported
    if not run.status.is_over:
        raise IsBeingImported
    audit(session, actor, "run.delete", "run", run.id, name=run.name, file=source["file"])
    policy_id, run_id = run.policy_id, run.id
    session.execute(text(f"SET LOCAL statement_timeout = '{DELETE_SECONDS}s'"))
    session.expunge(run)
    session.execute(delete(Run).where(Run.id == run_id))
    if policy_id is not None:
        _drop_unused(session, policy_id)
    artifacts.delete(artifact_of(run_id))
    announce(session, RUNS)


def _drop_unused(session: Session, policy_id: uuid.UUID) -> None:
    policy = session.get(Policy, policy_id)
    if (
        policy is not None
        and policy.kind is PolicyKind.EXTERNAL
        and not export_queries.is_policy_used(session, policy_id)
    ):
        session.delete(policy)
        session.flush()
