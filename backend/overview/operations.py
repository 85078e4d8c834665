"""Find things by name or id; the week at a glance; workers, and what this installation can do with them."""

from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.operations.declaration import operation
from backend.operations.schemas import Response
from backend.overview.finder import FindRequest, FoundResponse, find
from backend.overview.queries import AbilityResponse, WorkerResponse, abilities, list_worker_states
from backend.overview.week import WeekResponse, week_of
from backend.web.identity import Actor


class WorkersResponse(Response):
    workers: list[WorkerResponse]
    abilities: list[AbilityResponse]


@operation("GET /workers", role=Role.VIEWER, noun="workers", command="workers")
def list_workers(session: Session, actor: Actor) -> WorkersResponse:
    """List workers with their queues, hardware, engines and current jobs, and what this installation can do."""
    workers = list_worker_states(session)
    return WorkersResponse(workers=workers, abilities=abilities(workers))


@operation("GET /find", role=Role.VIEWER, noun="overview", command="find", tool=True)
def find_by_name(session: Session, actor: Actor, request: FindRequest) -> list[FoundResponse]:
    """Find environments, runs, policies, checkpoints, graders and members by name or id, and a rollout by its id."""
    return find(session, actor, request)


@operation("GET /week", role=Role.VIEWER, noun="overview", command="week", tool=True)
def get_week(session: Session, actor: Actor) -> WeekResponse:
    """Get the last seven days: best policies, regressions, trust in rewards, review backlog and spending by project."""
    return week_of(session, actor.project_id)
