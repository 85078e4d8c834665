"""Import a file of rollouts as a run, and delete an imported run. Free of the web, because workers use parts of it."""

from __future__ import annotations

import hashlib
import tempfile
import uuid
from importlib.metadata import version as package_version
from pathlib import Path
from typing import IO, TYPE_CHECKING

from sqlalchemy import delete, select, text
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.core import artifacts
from backend.core.events import RUNS, announce
from backend.core.queue import enqueue
from backend.core.row_access import is_taken
from backend.domain.environments.manifest import Manifest
from backend.domain.ids import new_id
from backend.domain.runs.plans import EvaluationPlan, Sampling
from backend.domain.text import plain_text
from backend.domain.vocabulary import PolicyKind, Queue, RunKind, RunStatus
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import Conflict, InvalidInput
from backend.policies.tables import Policy
from backend.rollouts.formats.bounds import BadFile, TooMuch
from backend.rollouts.formats.reading import FileSurvey, open_file, survey
from backend.runs.tables import Run
from backend.web.audit import audit

if TYPE_CHECKING:
    from backend.rollouts.schemas import ImportRollouts
    from backend.web.identity import Actor

IMPORT_JOB = "exchange.import"
MAX_UPLOAD_BYTES = 1024**3
MAX_CHECKED_BYTES = 4 * 1024**2
"""Text files up to this size are read whole at once, so that the form can show what is wrong with them."""
MAX_CHECKED_UNPACKED_BYTES = 4 * MAX_CHECKED_BYTES
"""The same for zips. Larger files and tables, whose readers are written in C++, are read by a worker."""


class RolloutsAlreadyImported(Conflict):
    """This file was already imported."""


class NotImported(Conflict):
    """Only imported runs can be deleted. Runs that were played here are kept."""


class IsBeingImported(Conflict):
    """This run is being imported. Stop it first."""


def start_import(session: Session, actor: Actor, request: ImportRollouts) -> Run:
    """Queue the import of a file. Mistakes that can be seen at once raise an error, and nothing is stored."""
    with tempfile.TemporaryDirectory(prefix="proctor-import-") as folder:
        path = Path(folder) / "upload"
        size, digest = _save_upload(request.file.file, path)
        found: FileSurvey | None = None
        if size <= MAX_CHECKED_BYTES:
            try:
                opened = open_file(path, Path(folder), most=MAX_CHECKED_UNPACKED_BYTES)
                found = survey(opened) if opened.is_text else None
            except TooMuch:
                pass
            except BadFile as error:
                raise InvalidInput(fields={"file": f"{error}. Nothing was stored."}) from error
        version = _find_version(session, request, found)
        same_file = select(Run).where(Run.configuration["source"]["hash"].astext == digest).order_by(Run.id)
        for run in session.scalars(same_file):
            if run.version_id == version.id and run.status not in {RunStatus.FAILED, RunStatus.STOPPED}:
                known = f"“{run.name}” (/runs/{run.id})"
                raise RolloutsAlreadyImported(
                    f"This file was already imported as {known}. Delete that run to import it again."
                )

        name = plain_text(Path(request.file.filename or "rollouts.jsonl").name)[:200]
        policy_name = request.policy or (found.main_policy if found else "")
        policy = external_policy(session, policy_name) if policy_name else None
        source = {"tool": found.tool if found else "", "file": name, "hash": digest, "bytes": size}
        asked = {"split": str(request.split), "tasks": request.tasks}
        default_name = f"{policy.name}, imported from {name}" if policy else f"imported from {name}"
        manifest = Manifest.model_validate(version.manifest)
        run = Run(
            id=new_id(),
            kind=RunKind.EVALUATION,
            status=RunStatus.QUEUED,
            name=(request.name or default_name).strip()[:200],
            version_id=version.id,
            policy_id=policy.id if policy else None,
            configuration={
                **(plan_of(found, request.split) if found else {"split": str(request.split), "tasks": 1}),
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
        artifacts.put_file(path, artifact_of(run.id))
    enqueue(session, IMPORT_JOB, queue=Queue.CPU, run_id=run.id, reads_artifacts=True)
    audit(session, actor, "rollouts.import", "run", run.id, file=name, hash=digest)
    announce(session, RUNS)
    return run


def _save_upload(upload: IO[bytes], path: Path) -> tuple[int, str]:
    """Write the upload to `path`. Returns its size and SHA-256."""
    digest, size = hashlib.sha256(), 0
    with path.open("wb") as file:
        while part := upload.read(1 << 20):
            size += len(part)
            if size > MAX_UPLOAD_BYTES:
                limit = f"At most {MAX_UPLOAD_BYTES // 1024**2} MiB. Zip the file, or split it."
                raise InvalidInput(fields={"file": limit})
            digest.update(part)
            file.write(part)
    if not size:
        raise InvalidInput(fields={"file": "The file is empty."})
    return size, digest.hexdigest()


def _find_version(session: Session, request: ImportRollouts, found: FileSurvey | None) -> EnvironmentVersion:
    """The version in the request, otherwise the version in the file."""

    def newest(name: str, number: int | None = None) -> EnvironmentVersion | None:
        own = [Environment.name == name, Environment.archived_at.is_(None)]
        own += [EnvironmentVersion.number == number] if number is not None else []
        statement = select(EnvironmentVersion).join(EnvironmentVersion.environment).where(*own)
        return session.scalars(statement.order_by(EnvironmentVersion.number.desc()).limit(1)).first()

    if request.version_id is not None:
        if chosen := session.get(EnvironmentVersion, request.version_id):
            return chosen
        raise InvalidInput(fields={"version_id": "There is no such environment version."})
    if request.environment:
        name, _, number = request.environment.replace(":", "@").partition("@")
        if number and not number.isdecimal():
            raise InvalidInput(fields={"environment": "Write `name` or `name@number`."})
        if version := newest(name, int(number) if number else None):
            return version
        message = f"There is no published {request.environment}. Import it first: `proctor env import`."
        raise InvalidInput(fields={"environment": message})
    for digest in found.hashes if found else ():
        same = select(EnvironmentVersion).where(EnvironmentVersion.content_hash == digest)
        if version := session.scalars(same.order_by(EnvironmentVersion.number.desc()).limit(1)).first():
            return version
    names = list(found.environments) if found else []
    for name in names:
        if version := newest(name.rpartition("/")[2].replace("-", "_")):
            return version
    reason = f"The file names {', '.join(names[:3])}, which is not here." if names else "The file names no environment."
    advice = "Choose the environment of the rollouts. If it is not here yet, import it first (`proctor env import`)."
    raise InvalidInput(fields={"version_id": f"{reason} {advice}"})


def delete_imported(session: Session, actor: Actor, run: Run) -> None:
    """Delete an imported run with its rollouts, and its policy if nothing else uses it."""
    source = run.configuration.get("source")
    if not isinstance(source, dict):
        raise NotImported
    if not run.status.is_over:
        raise IsBeingImported
    audit(session, actor, "run.delete", "run", run.id, name=run.name, file=source["file"])
    policy_id, run_id = run.policy_id, run.id
    session.execute(text("SET LOCAL statement_timeout = '120s'"))
    session.expunge(run)
    session.execute(delete(Run).where(Run.id == run_id))
    policy = session.get(Policy, policy_id) if policy_id else None
    if policy is not None and policy.kind is PolicyKind.EXTERNAL:
        in_runs = select(Run.id).where(Run.policy_id == policy_id).exists()
        in_checkpoints = select(Checkpoint.id).where(Checkpoint.policy_id == policy_id).exists()
        if not session.scalar(select(in_runs | in_checkpoints)):
            session.delete(policy)
            session.flush()
    artifacts.delete(artifact_of(run_id))
    announce(session, RUNS)


def artifact_of(run_id: uuid.UUID) -> str:
    """Key of the uploaded file, which waits for its worker."""
    return f"imports/rollouts/{run_id}"


def external_policy(session: Session, name: str) -> Policy:
    """Find or create the policy of this name that played elsewhere. A name that is taken gets a suffix."""
    name = " ".join(plain_text(name).split())[:80] or "external"
    for candidate in (name, f"{name} (external)"):
        found = session.scalars(select(Policy).where(Policy.name == candidate)).one_or_none()
        if found is not None and found.kind is PolicyKind.EXTERNAL and found.deleted_at is None:
            return found
        if found is None and not is_taken(session, Policy.name, candidate):
            break
    else:
        candidate = f"{name} (external {uuid.uuid4().hex[:6]})"
    policy = Policy(
        name=candidate,
        kind=PolicyKind.EXTERNAL,
        description="Played by another tool; its rollouts were imported.",
        configuration={"model": name},
    )
    session.add(policy)
    session.flush()
    return policy


def plan_of(found: FileSurvey, split: str) -> dict[str, object]:
    """The file's rollouts as the plan of an evaluation."""
    tasks = max(len(found.tasks), 1)
    size = min(max(-(-found.rollouts // tasks), 1), 256)
    given = found.sampling
    known = {name: given[name] for name in ("temperature", "top_p") if isinstance(given.get(name), int | float)}
    if isinstance(given.get("max_tokens"), int):
        known["max_tokens_per_turn"] = given["max_tokens"]
    try:
        sampling = Sampling(**known)
    except ValueError:
        sampling = Sampling()
    plan = EvaluationPlan(split=split, tasks=min(tasks, 100_000), group_size=size, sampling=sampling)
    return plan.model_dump(mode="json", include={"split", "tasks", "first_task", "group_size", "sampling"})
