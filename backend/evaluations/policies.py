"""Policies: what can act. Adding, deleting and the scripted ones that every installation has."""

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from backend.db.models import Policy
from backend.domain.ids import new_id
from backend.domain.vocabulary import PolicyKind

SCRIPTED = {
    "gold": "Plays the environment's own best script: what the reward should call perfect.",
    "random": "Chooses among the legal actions at random: the first baseline that a policy must beat.",
    "constant": "Gives the same legal action every turn: beats nothing that reads the observation.",
    "empty": "Says nothing.",
    "echo": "Repeats the observation back.",
    "repeat": "Writes one phrase over and over.",
    "teacher": "Plays the environment's teaching script: good, not perfect. Warm-up data comes from it.",
}


def ensure_scripted_policies(session: Session) -> None:
    """Give the installation its scripted policies and `human`. May be called at every start."""
    rows = [_row(name, PolicyKind.SCRIPTED, text, {"script": name}) for name, text in SCRIPTED.items()]
    rows.append(_row("human", PolicyKind.HUMAN, "A person who plays in the browser.", {}))
    session.execute(insert(Policy).values(rows).on_conflict_do_nothing(index_elements=["name"]))


def _row(name: str, kind: PolicyKind, description: str, configuration: dict[str, str]) -> dict[str, object]:
    return {
        "id": new_id(),
        "name": name,
        "kind": kind,
        "description": description,
        "configuration": configuration,
    }
