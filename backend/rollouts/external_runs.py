"""What an import makes: a run that says where it came from, and a policy for who played there. Free of the web."""

import uuid
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.domain.runs.plans import EvaluationPlan, Sampling
from backend.domain.text import plain_text
from backend.domain.vocabulary import PolicyKind
from backend.policies.tables import Policy
from backend.rollouts.formats.survey import Survey
from backend.runs.tables import Run

IMPORT_JOB = "exchange.import"
MAX_POLICY_NAME = 80
UNNAMED = "external"


def artifact_of(run_id: uuid.UUID) -> str:
    """Where the file waits for its worker."""
    return f"imports/rollouts/{run_id}"


def source_of(run: Run) -> dict[str, Any] | None:
    """Of an imported run: {tool, file, hash, bytes, …}."""
    source = run.configuration.get("source")
    return source if isinstance(source, dict) else None


def external_policy(session: Session, name: str) -> Policy:
    """The policy of this name that played elsewhere; made when there is none. A taken name gets an addition."""
    name = " ".join(plain_text(name).split())[:MAX_POLICY_NAME] or UNNAMED
    for candidate in (name, f"{name} (external)"):
        found = session.scalars(select(Policy).where(Policy.name == candidate)).one_or_none()
        if found is not None and found.kind is PolicyKind.EXTERNAL and found.deleted_at is None:
            return found
        if found is None:
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


def most_common(found: Survey) -> str:
    """Who played, as the file says."""
    return found.policies.most_common(1)[0][0] if found.policies else ""


def plan_of(found: Survey, split: str) -> dict[str, Any]:
    """What was played, in the words of an evaluation's plan."""
    tasks = max(len(found.tasks), 1)
    size = min(max(-(-found.rollouts // tasks), 1), 256)
    plan = EvaluationPlan(split=split, tasks=min(tasks, 100_000), group_size=size, sampling=_sampling(found.sampling))
    return plan.model_dump(mode="json", include={"split", "tasks", "first_task", "group_size", "sampling"})


def _sampling(given: Mapping[str, Any]) -> Sampling:
    known = {name: given[name] for name in ("temperature", "top_p") if isinstance(given.get(name), int | float)}
    if isinstance(given.get("max_tokens"), int):
        known["max_tokens_per_turn"] = given["max_tokens"]
    try:
        return Sampling(**known)
    except ValueError:
        return Sampling()
