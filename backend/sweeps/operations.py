"""Operations on sweeps."""

from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.operations.declaration import operation, reference
from backend.sweeps import launch, queries, service
from backend.sweeps.schemas import ListSweeps, StartSweep, SweepDetail, SweepResponse
from backend.sweeps.tables import Sweep
from backend.web.identity import Actor
from backend.web.paging import Page

reference(Sweep, "Name of a sweep, its id or the last characters of it.")(queries.find_sweep)


@operation("GET /sweeps", role=Role.VIEWER, command="sweep list", tool=True)
def list_sweeps(session: Session, actor: Actor, request: ListSweeps) -> Page[SweepResponse]:
    """List sweeps, newest first."""
    found = queries.list_sweeps(session, request)
    return Page(items=found.items, next=found.next)


@operation(
    "POST /sweeps",
    role=Role.TRAINER,
    in_project=True,
    status=201,
    tool=True,
    poll="/sweeps/{id}",
    audited=False,
)
def start_sweep(session: Session, actor: Actor, request: StartSweep) -> SweepDetail:
    """Search for the training settings with the best held-out reward: start runs with different values.

    Samples at random, on a grid or near the values that worked best, and stops runs that do worse than others.
    """
    sweep = launch.start_sweep(session, actor, request)
    return queries.sweep_detail(session, queries.get_sweep(session, sweep.id))


@operation("GET /sweeps/{sweep}", role=Role.VIEWER, command="sweep show", tool=True)
def get_sweep(session: Session, actor: Actor, sweep: Sweep) -> SweepDetail:
    """Show a sweep with its runs, the best one, and which settings mattered."""
    return queries.sweep_detail(session, sweep)


@operation(
    "POST /sweeps/{sweep}/stop",
    role=Role.TRAINER,
    command="sweep stop",
    waits=False,
    tool=True,
    poll="/sweeps/{id}",
    page="/sweeps/{id}",
    notice="The sweep was stopped. Its runs stop after their current step and are kept.",
)
def stop_sweep(session: Session, actor: Actor, sweep: Sweep) -> SweepDetail:
    """Stop a sweep and its runs in progress. Finished work is kept."""
    service.stop_sweep(session, actor, sweep)
    return queries.sweep_detail(session, sweep)


@operation(
    "POST /sweeps/{sweep}/resume",
    role=Role.TRAINER,
    command="sweep resume",
    waits=False,
    tool=True,
    poll="/sweeps/{id}",
    page="/sweeps/{id}",
    notice="The sweep continues.",
)
def resume_sweep(session: Session, actor: Actor, sweep: Sweep) -> SweepDetail:
    """Continue a stopped or failed sweep. Runs that stopped with it continue where they stopped."""
    service.resume_sweep(session, sweep)
    return queries.sweep_detail(session, sweep)
