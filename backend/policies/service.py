"""Create, update and delete policies; test their connection; keep their keys sealed."""

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from backend.core import sealing
from backend.core.outgoing import CannotConnect, outgoing_policy
from backend.core.queue import enqueue
from backend.core.row_access import is_taken
from backend.core.sealing import SecretUnreadable
from backend.core.tables import Job
from backend.deletions.tables import Deletion
from backend.domain.addresses import port_of
from backend.domain.deletions import DeletedKind
from backend.domain.ids import new_id
from backend.domain.policies.connections import ConnectionReport
from backend.domain.policies.prices import Limits, Price
from backend.domain.vocabulary import PolicyKind, Queue
from backend.errors import Conflict, InvalidInput
from backend.policies.schemas import PRESETS, CreatePolicy, PolicySettings, UpdatePolicy
from backend.policies.tables import Policy
from backend.web.audit import Requester, audit

SCRIPTED = {
    "gold": "Plays the environment's gold script, which should earn the maximum reward.",
    "random": "Chooses a legal action at random: the first baseline to beat.",
    "constant": "Repeats one legal action: beats nothing that reads the observation.",
    "empty": "Replies with nothing.",
    "echo": "Repeats the observation.",
    "repeat": "Repeats one phrase.",
    "teacher": "Plays the environment's teaching script: good, not perfect. Source of warm-up data.",
}
TEST_JOB = "policies.test"


class PolicyNameIsTaken(Conflict):
    """A policy of this name exists already."""


class PolicyIsDeleted(Conflict):
    """This policy was deleted."""


class PolicyIsFixed(Conflict):
    """This policy cannot be changed."""


class NoConnectionToTest(Conflict):
    """Only a model endpoint has a connection to test."""


def ensure_scripted_policies(session: Session) -> None:
    """Create the built-in scripted policies and `human`. Safe to call at every start."""
    scripted = [(PolicyKind.SCRIPTED, name, text, {"script": name}) for name, text in SCRIPTED.items()]
    human = (PolicyKind.HUMAN, "human", "A person who plays in the browser.", dict[str, str]())
    rows = [
        {"id": new_id(), "kind": kind, "name": name, "description": text, "configuration": configuration}
        for kind, name, text, configuration in [*scripted, human]
    ]
    session.execute(insert(Policy).values(rows).on_conflict_do_nothing(index_elements=["name"]))


def create_policy(session: Session, actor: Requester, request: CreatePolicy) -> Policy:
    kind = PolicyKind(request.kind or ("scripted" if request.script else "openai_api"))
    policy = Policy(kind=kind, created_by=actor.person_id, configuration={})
    _rename(session, policy, request.name)
    _configure(policy, request)
    session.add(policy)
    session.flush()
    audit(session, actor, "policy.create", "policy", policy.id, name=policy.name, kind=str(kind))
    return policy


def update_policy(
    session: Session, actor: Requester, policy: Policy, request: UpdatePolicy, *, replaces: bool = False
) -> Policy:
    """Change what was given, or `replaces` all settings; runs keep the settings they were started with.

    The key stays unless a new one is given or the base URL changes: a key is sent only where it was entered for.
    """
    session.refresh(policy, with_for_update=True)
    _refuse_fixed(policy)
    old_secret = policy.secret
    given = {name: getattr(request, name) for name in request.model_fields_set}
    settings = given if replaces else settings_of(policy) | given
    if request.name is not None:
        _rename(session, policy, request.name)
    _configure(policy, UpdatePolicy.model_validate(settings))
    session.flush()
    is_new_key = policy.secret is not None and policy.secret != old_secret
    changed = {"base_url": policy.configuration.get("base_url")} if policy.kind is PolicyKind.OPENAI_API else {}
    audit(session, actor, "policy.update", "policy", policy.id, name=policy.name, new_key=is_new_key, **changed)
    return policy


def settings_of(policy: Policy) -> dict[str, Any]:
    """A policy's settings as the fields of a request; without its key."""
    stored = policy.configuration
    settings = {name: stored[name] for name in PolicySettings.model_fields if name in stored}
    settings |= {f"price_{name}": value for name, value in stored.get("price", {}).items()} | stored.get("limits", {})
    switches = {"text_calls": stored.get("sends_tools") is False, "no_seed": stored.get("sends_seed") is False}
    return settings | switches | {"description": policy.description}


def choose_model(session: Session, actor: Requester, policy: Policy, model: str) -> Policy:
    session.refresh(policy, with_for_update=True)
    _refuse_fixed(policy)
    if policy.kind is not PolicyKind.OPENAI_API:
        raise PolicyIsFixed(f"{policy.name} has no model to choose.")
    policy.configuration = {**policy.configuration, "model": model.strip()}
    session.flush()
    audit(session, actor, "policy.update", "policy", policy.id, name=policy.name, model=model.strip())
    return policy


def can_change(policy: Policy) -> bool:
    """Whether a member created it here, and it is not deleted."""
    is_built_in = policy.name in SCRIPTED or policy.kind not in {PolicyKind.SCRIPTED, PolicyKind.OPENAI_API}
    return policy.deleted_at is None and not is_built_in


def can_delete(policy: Policy) -> bool:
    return policy.deleted_at is None and policy.kind is not PolicyKind.HUMAN and policy.name not in SCRIPTED


def delete_policy(session: Session, actor: Requester, policy: Policy) -> Deletion:
    """Remove a policy from all choices; it can be restored for 30 days.

    Its runs stay, its key is erased, and its name becomes free.
    """
    if policy.deleted_at is not None:
        raise PolicyIsDeleted
    if not can_delete(policy):
        raise Conflict(f"{policy.name} is built in and cannot be deleted.")
    names = {str(policy.id): policy.name}
    item = {"name": policy.name, "project_id": policy.project_id}
    deletion = Deletion.of(DeletedKind.POLICY, policy.id, actor.person_id, request_id=new_id(), names=names, **item)
    session.add(deletion)
    audit(session, actor, "policy.delete", "policy", policy.id, name=policy.name)
    retire_policy(policy)
    session.flush()
    return deletion


def retire_policy(policy: Policy) -> None:
    policy.deleted_at = datetime.now(UTC)
    policy.secret = None
    policy.name = f"{policy.name[:80]} (deleted {policy.id.hex[-6:]})"


def _refuse_fixed(policy: Policy) -> None:
    if policy.deleted_at is not None:
        raise PolicyIsDeleted
    if not can_change(policy):
        raise PolicyIsFixed(f"{policy.name} cannot be changed: it is built in or was made by a run.")


def _rename(session: Session, policy: Policy, name: str) -> None:
    name = name.strip()
    if is_taken(session, Policy.name, name, except_for=policy.id):
        raise PolicyNameIsTaken(f"A policy named {name} exists already.")
    policy.name = name


def _configure(policy: Policy, request: PolicySettings) -> None:
    """Write the settings that differ from the defaults, and seal a new key."""
    policy.description = (request.description or "").strip()
    if policy.kind is PolicyKind.SCRIPTED:
        if request.script is None:
            raise InvalidInput(fields={"script": "Choose a script."})
        constant = {} if request.constant is None else {"constant": request.constant}
        policy.configuration = {"script": request.script, **constant}
        return
    preset = next((each for each in PRESETS if each.key == request.preset), None)
    address = request.base_url or (preset.base_url if preset else "")
    missing = {"base_url": address, "model": request.model or ""}
    if fields := {name: "Required." for name, value in missing.items() if not value.strip()}:
        raise InvalidInput(fields=fields)
    if (request.price_input is None) != (request.price_output is None):
        raise InvalidInput(fields={"price_output": "Enter both prices: for input and for output tokens."})
    base_url = checked_base_url(address)
    forgets = isinstance(request, UpdatePolicy) and request.forget_secret
    if forgets or policy.configuration.get("base_url") != base_url:
        policy.secret = None
    configuration: dict[str, Any] = {"base_url": base_url, "model": (request.model or "").strip()}
    if request.text_calls:
        configuration["sends_tools"] = False
    if request.no_seed:
        configuration["sends_seed"] = False
    for name in ("logprobs", "token_ids", "sends_reasoning", "timeout_seconds", "attempts", "extra"):
        if value := getattr(request, name):
            configuration[name] = value
    if request.price_input is not None and request.price_output is not None:
        prices = Price(input=request.price_input, output=request.price_output, cached_input=request.price_cached_input)
        configuration["price"] = prices.model_dump(exclude_none=True)
    limits = {name: getattr(request, name) for name in Limits.model_fields}
    if limits := Limits.model_validate(limits).model_dump(exclude_none=True):
        configuration["limits"] = limits
    policy.configuration = configuration
    if secret := request.secret.get_secret_value().strip():
        policy.secret = seal(secret, base_url)


def checked_base_url(text: str) -> str:
    """The URL without a trailing slash. Raises InvalidInput if it is not http(s), or private where that is refused."""
    try:
        parts = urlsplit(text.strip())
        port = port_of(parts)
    except ValueError as error:
        raise InvalidInput(fields={"base_url": f"This is not an address: {error}."}) from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidInput(fields={"base_url": "Start with http:// or https://, such as http://127.0.0.1:11434/v1."})
    if parts.username or parts.password or parts.query or parts.fragment:
        text = "Remove user names, keys and everything after `?` or `#`. The key has its own field."
        raise InvalidInput(fields={"base_url": text})
    try:
        outgoing_policy().check_host(parts.hostname, port)
    except CannotConnect as error:
        raise InvalidInput(fields={"base_url": str(error)}) from error
    path = parts.path.rstrip("/").removesuffix("/chat/completions").rstrip("/")
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def seal(secret: str, base_url: str) -> bytes:
    """Encrypt a key for one base URL: copied to another, it cannot be opened."""
    return sealing.seal(secret, f"policy-secret:{base_url}")


def unseal(sealed: bytes, base_url: str) -> str:
    """Raises SecretUnreadable."""
    return sealing.unseal(sealed, f"policy-secret:{base_url}")


def secret_of(policy: Policy) -> str | None:
    """The endpoint's key in the clear, for the worker that calls it; None if the policy has none."""
    if policy.secret is None:
        return None
    try:
        return unseal(policy.secret, str(policy.configuration.get("base_url", "")))
    except SecretUnreadable as error:
        raise SecretUnreadable(f"{SecretUnreadable.__doc__} Enter the key of {policy.name} again.") from error


@dataclass(frozen=True, slots=True)
class ConnectionTest:
    """The latest test of a policy's endpoint. A worker makes the requests, because workers make all real calls."""

    id: uuid.UUID
    requested_at: datetime
    report: ConnectionReport | None
    """None until it has finished."""
    is_stale: bool
    """The policy was changed since."""


def start_connection_test(session: Session, actor: Requester, policy: Policy) -> Job:
    """Queue a test of the endpoint, or return the one under way."""
    if policy.deleted_at is not None:
        raise PolicyIsDeleted
    if policy.kind is not PolicyKind.OPENAI_API:
        raise NoConnectionToTest(f"{policy.name} has no connection to test: only a model endpoint has one.")
    latest = _latest_test_job(session, policy)
    if latest is not None and not latest.status.is_over:
        return latest
    job = enqueue(session, TEST_JOB, queue=Queue.CPU, arguments={"policy_id": str(policy.id)})
    job.max_attempts = 2
    audit(session, actor, "policy.test", "policy", policy.id, name=policy.name)
    return job


def latest_connection_test(session: Session, policy: Policy) -> ConnectionTest | None:
    job = _latest_test_job(session, policy)
    if job is None:
        return None
    report = None
    if "answer" in job.arguments:
        try:
            report = ConnectionReport.model_validate(job.arguments["answer"])
        except ValidationError:
            report = ConnectionReport(base_url="", model="")
    now = policy.configuration.get("base_url"), policy.configuration.get("model")
    is_stale = report is not None and bool(report.base_url) and (report.base_url, report.model) != now
    return ConnectionTest(job.id, job.created_at, report, is_stale)


def _latest_test_job(session: Session, policy: Policy) -> Job | None:
    jobs = select(Job).where(Job.name == TEST_JOB, Job.arguments["policy_id"].astext == str(policy.id))
    return session.scalars(jobs.order_by(Job.id.desc()).limit(1)).first()
