"""Read sweeps and their trials, as pages, the API and the command line show them."""

import uuid
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session, contains_eager, joinedload

from backend.domain.sweeps.sweep import TrialState
from backend.domain.vocabulary import RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.errors import NotFound
from backend.operations.ids import find_by_end, parse_id
from backend.projects.queries import project_id_of
from backend.sweeps.schemas import ListSweeps, SweepDetail, SweepResponse, SweepTrialResponse
from backend.sweeps.tables import Sweep, SweepTrial
from backend.web.paging import Key, Slice, slice_of

NO_SWEEP = "There is no such sweep."
_WITH_VERSION = (
    select(Sweep)
    .join(Sweep.version)
    .join(EnvironmentVersion.environment)
    .options(contains_eager(Sweep.version).contains_eager(EnvironmentVersion.environment))
)


def find_sweep(session: Session, text: str) -> Sweep:
    """By id or its last characters, or by name: the newest. Raises NotFound."""
    newest = select(Sweep.id).order_by(Sweep.id.desc())
    sweep_id = parse_id(text) or session.scalar(newest.where(Sweep.name == text).limit(1))
    sweep_id = sweep_id or find_by_end(session, newest, Sweep.id, text)
    if sweep_id is None:
        raise NotFound(NO_SWEEP)
    return get_sweep(session, sweep_id)


def get_sweep(session: Session, sweep_id: uuid.UUID) -> Sweep:
    """With its environment and the member who started it. Raises NotFound."""
    statement = _WITH_VERSION.options(joinedload(Sweep.creator)).where(Sweep.id == sweep_id)
    sweep = session.scalars(statement).one_or_none()
    if sweep is None:
        raise NotFound(NO_SWEEP)
    return sweep


def list_sweeps(session: Session, request: ListSweeps) -> Slice[SweepResponse]:
    """Newest first."""
    statement = _WITH_VERSION
    if project_id := project_id_of(session, request.project):
        statement = statement.where(Sweep.project_id == project_id)
    found = slice_of(session, statement, (Key(Sweep.id),), after=request.after, limit=request.limit)
    figures = _figures_of(session, [sweep.id for sweep in found.items])
    return Slice([_response(sweep, *figures.get(sweep.id, (0, 0, None))) for sweep in found.items], found.next)


def _figures_of(
    session: Session, sweep_ids: Collection[uuid.UUID]
) -> Mapping[uuid.UUID, tuple[int, int, float | None]]:
    """Number of started and of ended trials, and the best reward."""
    is_over = SweepTrial.state != TrialState.RUNNING
    best = func.max(SweepTrial.reward).filter(SweepTrial.state == TrialState.COMPLETED)
    counted = select(SweepTrial.sweep_id, func.count(), func.count().filter(is_over), best)
    rows = session.execute(counted.where(SweepTrial.sweep_id.in_(sweep_ids)).group_by(SweepTrial.sweep_id))
    return {sweep_id: (started, ended, reward) for sweep_id, started, ended, reward in rows}


def list_trials(session: Session, sweep_id: uuid.UUID) -> Sequence[SweepTrial]:
    """In the order of their start, with their runs."""
    statement = select(SweepTrial).options(joinedload(SweepTrial.run)).where(SweepTrial.sweep_id == sweep_id)
    return session.scalars(statement.order_by(SweepTrial.number)).all()


def best_of(trials: Sequence[SweepTrial]) -> SweepTrial | None:
    """The completed trial with the highest reward."""
    completed = [each for each in trials if each.state is TrialState.COMPLETED and each.reward is not None]
    return max(completed, key=lambda each: each.reward or 0.0, default=None)


def sweep_detail(session: Session, sweep: Sweep) -> SweepDetail:
    trials, settings = list_trials(session, sweep.id), sweep.typed_settings
    best = best_of(trials)
    ended = sum(each.state.is_over for each in trials)
    brief = _response(sweep, len(trials), ended, best.reward if best else None)
    return SweepDetail(
        **brief.model_dump(),
        parameters=dict(settings.space),
        parallel=settings.parallel,
        max_steps=settings.max_steps,
        max_hours=settings.max_hours,
        best=SweepTrialResponse.of(best) if best else None,
        trials=[SweepTrialResponse.of(each) for each in trials],
        importance=dict(sorted(sweep.importance.items(), key=lambda each: -each[1])) if sweep.importance else None,
        configuration=sweep.configuration,
    )


def _response(sweep: Sweep, started: int, ended: int, best: float | None) -> SweepResponse:
    settings = sweep.typed_settings
    total = started if sweep.status is RunStatus.COMPLETED else settings.trials
    return SweepResponse.from_row(
        sweep,
        environment=f"{sweep.version.environment.name}@{sweep.version.number}",
        sampler=settings.sampler,
        pruner=settings.pruner,
        best_reward=best,
        is_finished=sweep.status.is_over,
        is_successful=sweep.status is RunStatus.COMPLETED,
        done=ended,
        total=total,
        message=sweep.reason or f"{started - ended} of {total} runs in progress",
    )
