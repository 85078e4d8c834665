"""Policies: what can act. Adding, changing, deleting, and the scripted ones that every installation has."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from backend.domain.ids import new_id
from backend.domain.vocabulary import PolicyKind
from backend.errors import Conflict, InvalidInput
from backend.policies.endpoints import checked_base_url
from backend.policies.schemas import PolicyRequest
from backend.policies.secrets import seal
from backend.policies.tables import Policy
from backend.runs.notes import Asker, note

SCRIPTED = {
    "gold": "Plays the environment's own best script: what the reward should call perfect.",
    "random": "Chooses among the legal actions at random: the first baseline that a policy must beat.",
    "constant": "Gives the same legal action every turn: beats nothing that reads the observation.",
    "empty": "Says nothing.",
    "echo": "Repeats the observation back.",
    "repeat": "Writes one phrase over and over.",
    "teacher": "Plays the environment's teaching script: good, not perfect. Warm-up data comes from it.",
}
NEEDS_NO_SCRIPT = frozenset({"random", "constant", "empty", "echo", "repeat"})
"""Scripted policies that every environment can play against; the others need a script in its manifest."""


class PolicyNameIsTaken(Conflict):
    """There is a policy of this name already."""


class PolicyIsDeleted(Conflict):
    """This policy was deleted."""


class PolicyIsFixed(Conflict):
    """This policy cannot be changed."""


def ensure_scripted_policies(session: Session) -> None:
    """Give the installation its scripted policies and `human`. May be called at every start."""
    rows = [_row(name, PolicyKind.SCRIPTED, text, {"script": name}) for name, text in SCRIPTED.items()]
    rows.append(_row("human", PolicyKind.HUMAN, "A person who plays in the browser.", {}))
    session.execute(insert(Policy).values(rows).on_conflict_do_nothing(index_elements=["name"]))


def add_policy(session: Session, actor: Asker, request: PolicyRequest) -> Policy:
    """Add an endpoint or a script as a policy."""
    policy = Policy(kind=PolicyKind(request.kind), created_by=actor.person_id, configuration={})
    _name(session, policy, request)
    _configure(policy, request)
    session.add(policy)
    session.flush()
    note(session, actor, "policy.add", "policy", policy.id, name=policy.name, kind=request.kind)
    return policy


def change_policy(session: Session, actor: Asker, policy: Policy, request: PolicyRequest) -> Policy:
    """What it shall be from now on; runs keep what they were started with.

    The key stays unless a new one is typed or the base URL changes: a key goes only where it was entered for.
    """
    session.refresh(policy, with_for_update=True)
    _refuse_fixed(policy)
    if request.kind != policy.kind:
        raise InvalidInput(fields={"kind": f"{policy.name} stays a policy of the kind {policy.kind}; add another one."})
    before = (policy.configuration.get("base_url"), policy.secret)
    _name(session, policy, request)
    _configure(policy, request)
    session.flush()
    is_new_key = policy.secret is not None and policy.secret != before[1]
    changed = {"base_url": policy.configuration.get("base_url")} if policy.kind is PolicyKind.OPENAI_API else {}
    note(session, actor, "policy.change", "policy", policy.id, name=policy.name, new_key=is_new_key, **changed)
    return policy


def choose_model(session: Session, actor: Asker, policy: Policy, model: str) -> Policy:
    """Take another model of the same endpoint."""
    session.refresh(policy, with_for_update=True)
    _refuse_fixed(policy)
    if policy.kind is not PolicyKind.OPENAI_API:
        raise PolicyIsFixed(f"{policy.name} has no model to choose.")
    policy.configuration = {**policy.configuration, "model": model.strip()}
    session.flush()
    note(session, actor, "policy.change", "policy", policy.id, name=policy.name, model=model.strip())
    return policy


def can_change(policy: Policy) -> bool:
    """Is it one that somebody added here?"""
    is_ours = policy.name in SCRIPTED or policy.kind not in {PolicyKind.SCRIPTED, PolicyKind.OPENAI_API}
    return policy.deleted_at is None and not is_ours


def delete_policy(session: Session, actor: Asker, policy: Policy) -> None:
    """Take a policy out of all choices. What it played stays; its key is forgotten and its name is free again."""
    if policy.deleted_at is not None:
        raise PolicyIsDeleted
    if policy.kind is PolicyKind.HUMAN or policy.name in SCRIPTED:
        raise Conflict(f"{policy.name} belongs to every installation and cannot be deleted.")
    note(session, actor, "policy.delete", "policy", policy.id, name=policy.name)
    policy.deleted_at = datetime.now(UTC)
    policy.secret = None
    policy.name = f"{policy.name[:80]} (deleted {policy.id.hex[-6:]})"
    session.flush()


def _refuse_fixed(policy: Policy) -> None:
    if policy.deleted_at is not None:
        raise PolicyIsDeleted
    if not can_change(policy):
        raise PolicyIsFixed(f"{policy.name} cannot be changed: it belongs to every installation or was made by a run.")


def _name(session: Session, policy: Policy, request: PolicyRequest) -> None:
    name = request.name.strip()
    if session.scalar(select(Policy.id).where(Policy.name == name, Policy.id != policy.id)):
        raise PolicyNameIsTaken(f"There is a policy named {name} already.")
    policy.name, policy.description = name, request.description.strip()


def _configure(policy: Policy, request: PolicyRequest) -> None:
    if request.kind == "scripted":
        if request.script is None:
            raise InvalidInput(fields={"script": "Choose a script."})
        policy.configuration = {"script": request.script}
        if request.constant is not None:
            policy.configuration["constant"] = request.constant
        return
    missing = {name: "Needed." for name in ("base_url", "model") if not (getattr(request, name) or "").strip()}
    if missing:
        raise InvalidInput(fields=missing)
    if (request.price_input is None) != (request.price_output is None):
        raise InvalidInput(fields={"price_output": "A price is two amounts: for tokens read and for tokens written."})
    base_url = checked_base_url(request.base_url or "")
    if request.forget_secret or policy.configuration.get("base_url") != base_url:
        policy.secret = None
    policy.configuration = _endpoint(request, base_url)
    if secret := request.secret.get_secret_value().strip():
        policy.secret = seal(secret, base_url)


def _endpoint(request: PolicyRequest, base_url: str) -> dict[str, Any]:
    """Only what differs from the default is written."""
    chosen: dict[str, Any] = {"base_url": base_url, "model": (request.model or "").strip()}
    if request.text_calls:
        chosen["sends_tools"] = False
    if request.no_seed:
        chosen["sends_seed"] = False
    for name in ("logprobs", "token_ids", "sends_reasoning", "timeout_seconds", "attempts", "extra"):
        if wanted := getattr(request, name):
            chosen[name] = wanted
    if request.price:
        chosen["price"] = request.price.model_dump(exclude_none=True)
    if limits := request.limits.model_dump(exclude_none=True):
        chosen["limits"] = limits
    return chosen


def _row(name: str, kind: PolicyKind, description: str, configuration: dict[str, str]) -> dict[str, object]:
    return {
        "id": new_id(),
        "name": name,
        "kind": kind,
        "description": description,
        "configuration": configuration,
    }
