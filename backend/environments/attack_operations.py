"""Operations of the red team: attack a draft, propose fixtures, publish a repair only if gold still passes."""

import uuid
from typing import Annotated

from fastapi import Path
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.environments import red_team
from backend.environments import references as _references  # noqa: F401  how addresses name environments
from backend.environments.schemas import AddFixtures, AttackResponse, PublishRepair, StartAttack, VersionResponse
from backend.environments.tables import Environment
from backend.operations.declaration import operation
from backend.web.identity import Actor

PAGE = "/environments/{environment}/red-team"


@operation(
    "POST /environments/{environment}/attacks",
    role=Role.AUTHOR,
    command="env attack",
    status=202,
    tool=True,
    poll="/attacks/{id}",
    page=PAGE,
    notice="The red team attacks the draft.",
)
def start_attack(session: Session, actor: Actor, environment: Environment, request: StartAttack) -> AttackResponse:
    """Search the draft for rewards that are earned without doing the task. Each exploit becomes a proposed fixture."""
    return red_team.start(session, environment, request)


@operation("GET /attacks/{attack}", role=Role.AUTHOR, tool=True)
def get_attack(session: Session, actor: Actor, attack: uuid.UUID) -> AttackResponse:
    """Show the progress and the result of an attack or of the verification of a repair."""
    return red_team.get(session, attack)


@operation(
    "POST /attacks/{attack}/cancel",
    role=Role.AUTHOR,
    command="env cancel-attack",
    page=PAGE,
    notice="The attack ends soon and keeps its exploits.",
)
def cancel_attack(
    session: Session, actor: Actor, attack: Annotated[uuid.UUID, Path(description="Id of an attack.")]
) -> AttackResponse:
    """End an attack. The result lists the exploits until then."""
    return red_team.cancel(session, attack)


@operation(
    "POST /attacks/{attack}/fixtures",
    role=Role.AUTHOR,
    audited=False,
    page=PAGE,
    notice="The fixtures are in the draft. Repair its reward, then verify the repair.",
)
def add_attack_fixtures(session: Session, actor: Actor, attack: uuid.UUID, request: AddFixtures) -> AttackResponse:
    """Write the proposed fixtures of an attack into the draft."""
    return red_team.add_fixtures(session, actor, attack, request.fixtures)


@operation(
    "POST /environments/{environment}/repairs",
    role=Role.AUTHOR,
    command="env verify-repair",
    status=202,
    poll="/attacks/{id}",
    page=PAGE,
    notice="The draft is being verified.",
)
def verify_repair(session: Session, actor: Actor, environment: Environment) -> AttackResponse:
    """Verify that gold still passes on the draft, and that hacks and policies that do not try stay low."""
    return red_team.verify_repair(session, environment)


@operation(
    "POST /attacks/{attack}/publish",
    role=Role.AUTHOR,
    status=201,
    audited=False,
    page="/environments/{environment}/versions/{number}",
    notice="The repair is published.",
)
def publish_repair(session: Session, actor: Actor, attack: uuid.UUID, request: PublishRepair) -> VersionResponse:
    """Publish the draft of a verification that holds. Refused if the draft was saved since."""
    version = red_team.publish_repair(session, actor, attack, request.notes)
    return VersionResponse.from_row(
        version,
        environment=version.typed_manifest.name,
        certificate=None,
        published_by=actor.name,
        columns=version.typed_manifest.columns,
    )
