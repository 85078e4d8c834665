"""The red team of an environment: attacks on its draft, fixtures from exploits, and repairs that are published only if
gold still passes."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.queue import CANCEL, PARENT, answer_of, enqueue, keep_answer
from backend.core.tables import Job
from backend.domain.environments.fixtures import Fixture, FixtureKind, FixtureTask, write_fixture
from backend.domain.vocabulary import JobStatus, PolicyKind, Queue, Split
from backend.environments import drafts
from backend.environments.queries import get_draft
from backend.environments.schemas import AttackResponse, ExploitResponse, RepairCheckResponse, StartAttack
from backend.environments.service import publish_version
from backend.environments.tables import Environment, EnvironmentVersion
from backend.environments.validation import validate_package
from backend.errors import Conflict, InvalidInput, NotFound
from backend.policies.queries import get_policy_option
from backend.policies.tables import Policy
from backend.training.workers import offers

if TYPE_CHECKING:
    from backend.web.identity import Actor

ATTACK_JOB, VERIFY_JOB = "environments.attack", "environments.verify_repair"
TRAIN_JOB = "environments.train_attacker"
"""The part of an attack that needs a worker with torch."""
TRAINED = "trained"
"""Argument of an attack: the id of that job."""
NO_TORCH = "Trained attacker: not run, because no worker with torch is online. The other attacks do not need one."


class DraftCannotRun(Conflict):
    """The draft has problems. Fix them first; the editor lists them."""


class RepairNotVerified(Conflict):
    """The repair is not verified, or the draft was saved since. Verify it: gold must pass, and hacks must stay low."""


def start(session: Session, environment: Environment, request: StartAttack) -> AttackResponse:
    """Queue an attack on the draft. Raises DraftCannotRun, and InvalidInput for a policy that cannot attack."""
    policy: dict[str, Any] = {}
    if request.policy:
        policy = get_policy_option(session, request.policy)
        row = session.get(Policy, uuid.UUID(str(policy["policy_id"])))
        if row is None or row.kind is not PolicyKind.OPENAI_API:
            raise InvalidInput(fields={"policy": "Choose an endpoint. Only an LLM behind an endpoint can attack."})
    arguments = {"seconds": request.seconds, "policy": policy, "tokens": request.tokens, "notes": []}
    if not request.train:
        return _enqueue(session, environment, ATTACK_JOB, **arguments)
    if not has_torch_worker(session):
        return _enqueue(session, environment, ATTACK_JOB, **arguments | {"notes": [NO_TORCH]})
    attack = _enqueue(session, environment, ATTACK_JOB, **arguments)
    shared = {PARENT: str(attack.id), "environment_id": str(environment.id), "seconds": request.seconds}
    trained = enqueue(session, TRAIN_JOB, queue=Queue.GPU, arguments=shared)
    job = session.get_one(Job, attack.id)
    job.arguments = {**job.arguments, TRAINED: str(trained.id)}
    session.flush()
    return get(session, attack.id)


def has_torch_worker(session: Session) -> bool:
    """Whether a worker is online that can train."""
    return any(Queue.GPU in worker.queues for worker in offers(session))


def verify_repair(session: Session, environment: Environment) -> AttackResponse:
    """Queue the checks that a repair must pass."""
    return _enqueue(session, environment, VERIFY_JOB)


def _enqueue(session: Session, environment: Environment, name: str, **arguments: object) -> AttackResponse:
    if validate_package(get_draft(session, environment).files, environment.name).problems:
        raise DraftCannotRun
    arguments["environment_id"] = str(environment.id)
    return get(session, enqueue(session, name, queue=Queue.CPU, arguments=arguments).id)


def cancel(session: Session, job_id: uuid.UUID) -> AttackResponse:
    """Request the parts of an attack to end. A queued part ends at once; a running one keeps its exploits."""
    if get(session, job_id).kind != "attack":
        raise Conflict("The verification of a repair cannot be canceled.")
    for part in _parts(session, session.get_one(Job, job_id)):
        locked = session.get_one(Job, part.id, with_for_update=True)
        locked.arguments = {**locked.arguments, CANCEL: True}
        if locked.status is JobStatus.QUEUED and answer_of(locked) is None:
            keep_answer(session, part.id, {"exploits": [], "notes": [], "error": "Canceled before it began."})
    session.flush()
    return get(session, job_id)


def _parts(session: Session, job: Job) -> list[Job]:
    """Return the job of an attack or a verification, and that of the trained attacker if there is one."""
    trained = session.get(Job, uuid.UUID(job.arguments[TRAINED])) if TRAINED in job.arguments else None
    return [job, trained] if trained else [job]


def get(session: Session, job_id: uuid.UUID) -> AttackResponse:
    job = session.get(Job, job_id)
    if job is None or job.name not in {ATTACK_JOB, VERIFY_JOB}:
        raise NotFound("There is no such attack.")
    environment = session.get_one(Environment, uuid.UUID(job.arguments["environment_id"]))
    draft = get_draft(session, environment)
    parts = _parts(session, job)
    answers = [answer_of(part) for part in parts]
    is_finished, answer = None not in answers, answers[0] or {}
    shares, phases, notes = [], [], list(job.arguments.get("notes", ()))
    for part, found in zip(parts, answers, strict=True):
        name = "trained attacker: " if part is not job else ""
        progress = part.arguments.get("progress", {})
        waiting = "waiting for a worker" if part.status is JobStatus.QUEUED else "serving the draft"
        shares.append(1.0 if found else float(progress.get("share", 0.0)))
        if found is None:
            phases.append(name + progress.get("phase", waiting))
        elif name and found["error"]:
            notes.append(f"{name.capitalize()}{found['error']}")
        notes += (found or {}).get("notes", ())
    return AttackResponse(
        id=job.id,
        kind="attack" if job.name == ATTACK_JOB else "verification",
        environment=environment.name,
        is_finished=is_finished,
        is_successful=is_finished and not answer["error"] and answer.get("holds", True),
        done=round(100 * sum(shares) / len(shares)),
        total=100,
        message=answer.get("error") or "; ".join(phases) or "finished",
        error=answer.get("error", ""),
        is_stale=is_finished
        and any(found["draft_revision"] != draft.revision for found in answers if found and "draft_revision" in found),
        exploits=[
            ExploitResponse(**each, is_in_draft=f"fixtures/{each['fixture']}.json" in draft.files)
            for found in answers
            for each in (found or {}).get("exploits", ())
        ],
        notes=list(dict.fromkeys(notes)),
        results=[RepairCheckResponse(**each) for each in answer.get("results", ())],
        holds=answer.get("holds"),
    )


def newest(session: Session, environment: Environment) -> list[AttackResponse]:
    """Return the newest attack and the newest verification of an environment's draft."""
    mine = Job.arguments["environment_id"].as_string() == str(environment.id)
    ids = [
        session.scalar(select(Job.id).where(Job.name == name, mine).order_by(Job.created_at.desc()).limit(1))
        for name in (ATTACK_JOB, VERIFY_JOB)
    ]
    return [get(session, each) for each in ids if each]


def add_fixtures(session: Session, actor: Actor, job_id: uuid.UUID, names: Sequence[str]) -> AttackResponse:
    """Write the proposed fixtures (all, or the named ones) into the draft."""
    attack = get(session, job_id)
    if unknown := set(names) - {each.fixture for each in attack.exploits}:
        raise InvalidInput(fields={"fixtures": f"This attack proposes no fixture {min(unknown)[:60]}."})
    environment = session.scalars(select(Environment).where(Environment.name == attack.environment)).one()
    draft = drafts.locked_draft(session, environment)
    files = dict(draft.files)
    for each in attack.exploits:
        if not names or each.fixture in names:
            task = FixtureTask(split=Split(each.split), index=each.index)
            note = f"Red team, {each.description}: earned {each.mean:.3g} on average without doing the task."
            fixture = Fixture(
                name=each.fixture, note=note[:2000], task=task, replies=each.replies, kind=FixtureKind.HACK
            )
            files[fixture.path] = write_fixture(fixture)
    drafts.write_draft(session, actor, draft, files)
    return get(session, job_id)


def publish_repair(session: Session, actor: Actor, job_id: uuid.UUID, notes: str) -> EnvironmentVersion:
    """Publish the draft that a verification found sound. Raises RepairNotVerified."""
    found = get(session, job_id)
    if found.kind != "verification" or not found.is_finished or not found.holds or found.is_stale:
        raise RepairNotVerified
    environment = session.scalars(select(Environment).where(Environment.name == found.environment)).one()
    job = session.get_one(Job, job_id)
    revision = job.arguments["answer"]["draft_revision"]
    return publish_version(session, actor, environment, notes=notes, revision=revision, check=True)
