"""/environments/NAME/red-team: attack the draft, take over fixtures, verify and publish a repair."""

from fastapi import APIRouter
from sqlalchemy import select

from backend.core.events import topic_of
from backend.domain.vocabulary import PolicyKind
from backend.environments import queries, red_team
from backend.policies.tables import Policy
from backend.web.dependencies import Author, SessionDep
from backend.web.streams import live_page

router = APIRouter()


def topics_of(session: SessionDep, _: Author, name: str) -> tuple[str, ...]:
    """The topics of the newest attack and verification."""
    found = red_team.newest(session, queries.get_environment(session, name))
    return tuple(topic_of("job", each.id) for each in found)


@live_page(router, "/environments/{name}/red-team", "environments/red_team.html", "red_team", topics=topics_of)
def show_red_team(session: SessionDep, _: Author, name: str) -> dict[str, object]:
    environment = queries.get_environment(session, name)
    found = {each.kind: each for each in red_team.newest(session, environment)}
    endpoints = select(Policy).where(Policy.kind == PolicyKind.OPENAI_API, Policy.deleted_at.is_(None))
    return {
        "environment": environment,
        "attack": found.get("attack"),
        "verification": found.get("verification"),
        "endpoints": [("", "none")]
        + [(str(row.id), row.name) for row in session.scalars(endpoints.order_by(Policy.name))],
        "has_torch": red_team.has_torch_worker(session),
        "is_over": all(each.is_finished for each in found.values()),
    }
