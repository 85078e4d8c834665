"""Policies: what can act. Adding, deleting and the scripted ones that every installation has."""

from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from backend.db.models import Policy
from backend.domain.ids import new_id
from backend.domain.vocabulary import PolicyKind
from backend.errors import Conflict, InvalidInput
from backend.evaluations.endpoints import checked_base_url
from backend.evaluations.forms import PolicyRequest
from backend.evaluations.notes import Asker, note
from backend.evaluations.secrets import seal

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


def ensure_scripted_policies(session: Session) -> None:
    """Give the installation its scripted policies and `human`. May be called at every start."""
    rows = [_row(name, PolicyKind.SCRIPTED, text, {"script": name}) for name, text in SCRIPTED.items()]
    rows.append(_row("human", PolicyKind.HUMAN, "A person who plays in the browser.", {}))
    session.execute(insert(Policy).values(rows).on_conflict_do_nothing(index_elements=["name"]))


def add_policy(session: Session, actor: Asker, request: PolicyRequest) -> Policy:
    """Add an endpoint or a script as a policy."""
    name = request.name.strip()
    if session.scalar(select(Policy.id).where(Policy.name == name)):
        raise PolicyNameIsTaken(f"There is a policy named {name} already.")
    policy = Policy(
        name=name, kind=PolicyKind(request.kind), description=request.description.strip(), created_by=actor.person_id
    )
    _configure(policy, request)
    session.add(policy)
    session.flush()
    note(session, actor, "policy.add", "policy", policy.id, name=name, kind=request.kind)
    return policy


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


def _configure(policy: Policy, request: PolicyRequest) -> None:
    if request.kind == "scripted":
        if request.script is None:
            raise InvalidInput(fields={"script": "Choose a script."})
        policy.configuration = {"script": request.script}
        if request.constant is not None:
            policy.configuration["constant"] = request.constant
        return
    missing = {name: "Needed." for name in ("base_url", "model") if getattr(request, name) is None}
    if missing:
        raise InvalidInput(fields=missing)
    base_url = checked_base_url(request.base_url or "")
    policy.configuration = {"base_url": base_url, "model": (request.model or "").strip()}
    if request.text_calls:
        policy.configuration["sends_tools"] = False
    if secret := request.secret.get_secret_value().strip():
        policy.secret = seal(secret, base_url)


def _row(name: str, kind: PolicyKind, description: str, configuration: dict[str, str]) -> dict[str, object]:
    return {
        "id": new_id(),
        "name": name,
        "kind": kind,
        "description": description,
        "configuration": configuration,
    }
