"""A search for an onset as a page, the JSON API and a report tell it."""

import uuid
from collections.abc import Sequence
from datetime import datetime

from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.checkpoints.tables import Checkpoint
from backend.domain.studies.onset import Outcome, Shown, most_places
from backend.domain.vocabulary import CheckStatus, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.runs.tables import Run
from backend.studies.onset import queries
from backend.studies.queries import checkpoints_until
from backend.studies.tables import OnsetSample, OnsetSearch


class PatternAnswer(BaseModel):
    """A confirmed pattern."""

    detector: str
    cluster: str | None
    """null: all clusters of the detector."""
    title: str
    flagged: int
    confirmed: int
    first_step: int
    obstacle: str
    """Why its onset cannot be searched for; empty: it can."""


class SampleAnswer(BaseModel):
    """What a checkpoint showed."""

    step: int
    is_base: bool
    """The policy that reinforcement began with."""
    checkpoint_id: uuid.UUID | None
    run_id: uuid.UUID | None
    """The evaluation."""
    rollouts: int | None
    """null: it is being played."""
    flagged: int | None
    share: float | None
    low: float | None
    high: float | None
    """95 %, Wilson."""
    chance: float | None
    """p of Fisher's exact test against the base rate, one-sided."""
    is_above: bool | None


class ProgressAnswer(BaseModel):
    """How far a search is that is not over."""

    sampled: int
    at_most: int
    """While the share is monotone."""
    run_id: uuid.UUID | None
    """The evaluation under way."""
    done: int
    total: int


class RollBackAnswer(BaseModel):
    """The checkpoint to go back to, and the version of the environment that is offered for going on."""

    checkpoint_id: uuid.UUID
    run_id: uuid.UUID
    """Whose branch it is to be: the run that the checkpoint belongs to."""
    stage: str
    step: int
    is_pruned: bool
    newest_version: int
    is_own_version: bool
    """There is no newer version than the run's."""
    is_certified: bool
    """The newest version's checks passed: no reason has to be given."""


class SearchAnswer(BaseModel):
    """A search for the checkpoint at which a pattern began."""

    id: uuid.UUID
    run_id: uuid.UUID
    detector: str
    cluster: str | None
    title: str
    status: RunStatus
    reason: str | None
    tasks: int
    group_size: int
    temperature: float
    outcome: Outcome | None
    found: str
    """In words."""
    honest_step: int | None
    """0: before reinforcement."""
    hacking_step: int | None
    is_monotone: bool | None
    remarks: list[str]
    samples: list[SampleAnswer]
    progress: ProgressAnswer | None
    roll_back: RollBackAnswer | None
    created_at: datetime
    ended_at: datetime | None

    @property
    def is_open(self) -> bool:
        return not self.status.is_over


class OnsetAnswer(BaseModel):
    """All about onsets in a training run."""

    run_id: uuid.UUID
    checkpoints: int
    """Of reinforcement, with their weights."""
    patterns: list[PatternAnswer]
    searches: list[SearchAnswer]
    """Newest first."""
    last_honest: RollBackAnswer | None
    """Before every known or judged sign; null: nothing was confirmed."""

    @property
    def is_open(self) -> bool:
        return any(each.is_open for each in self.searches)


def onset_of(session: Session, run: Run) -> OnsetAnswer:
    searches = queries.searches_of(session, run.id)
    samples = queries.samples_of(session, [each.id for each in searches])
    checkpoints = checkpoints_until(session, run.id)
    patterns = queries.patterns_of(session, run)
    has_signs = bool(patterns) or any(search.hacking_step is not None for search in searches)
    honest = queries.last_honest_checkpoint(session, run) if has_signs else None
    return OnsetAnswer(
        run_id=run.id,
        checkpoints=len(checkpoints),
        patterns=[PatternAnswer.model_validate(each, from_attributes=True) for each in patterns],
        searches=[told(session, run, each, samples.get(each.id, ())) for each in searches],
        last_honest=_roll_back(session, run, honest),
    )


def told(session: Session, run: Run, search: OnsetSearch, samples: Sequence[OnsetSample]) -> SearchAnswer:
    honest = session.get(Checkpoint, search.honest_id) if search.honest_id else None
    return SearchAnswer(
        **{name: getattr(search, name) for name in _AS_STORED},
        title=queries.pattern_name(search.detector, search.cluster),
        found=queries.found_words(search),
        samples=[_sample(each) for each in samples],
        progress=None if search.status.is_over else _progress(session, search, samples),
        roll_back=_roll_back(session, run, honest),
    )


_AS_STORED = (
    "id", "run_id", "detector", "cluster", "status", "reason", "tasks", "group_size", "temperature", "outcome",
    "honest_step", "hacking_step", "is_monotone", "remarks", "created_at", "ended_at",
)  # fmt: skip


def _sample(sample: OnsetSample) -> SampleAnswer:
    shown = Shown(sample.flagged or 0, sample.rollouts) if sample.rollouts else None
    low, high = shown.interval if shown else (None, None)
    names = ("step", "is_base", "checkpoint_id", "run_id", "rollouts", "flagged", "chance", "is_above")
    stored = {name: getattr(sample, name) for name in names}
    return SampleAnswer(**stored, share=shown.share if shown else None, low=low, high=high)


def _progress(session: Session, search: OnsetSearch, samples: Sequence[OnsetSample]) -> ProgressAnswer:
    playing = next((each.run for each in samples if each.rollouts is None), None)
    sampled = {each.checkpoint_id for each in samples if each.checkpoint_id}
    places = len(checkpoints_until(session, search.run_id, search.last_step, sampled=sampled))
    return ProgressAnswer(
        sampled=sum(each.rollouts is not None for each in samples),
        at_most=max(1 + most_places(places), len(samples)),
        run_id=playing.id if playing else None,
        done=int(playing.progress.get("done") or 0) if playing else 0,
        total=int(playing.progress.get("total") or 0) if playing else 0,
    )


def _roll_back(session: Session, run: Run, checkpoint: Checkpoint | None) -> RollBackAnswer | None:
    """None where there is nothing to go back to."""
    if checkpoint is None or checkpoint.run_id is None:
        return None
    of_environment = EnvironmentVersion.environment_id == run.version.environment_id
    versions = select(EnvironmentVersion).options(joinedload(EnvironmentVersion.environment)).where(of_environment)
    newest = session.scalars(versions.order_by(EnvironmentVersion.number.desc()).limit(1)).one()
    certificate = newest.certificate
    return RollBackAnswer(
        checkpoint_id=checkpoint.id,
        run_id=checkpoint.run_id,
        stage=checkpoint.stage,
        step=checkpoint.step,
        is_pruned=checkpoint.pruned_at is not None,
        newest_version=newest.number,
        is_own_version=newest.id == run.version_id,
        is_certified=newest.id == run.version_id or certificate in {CheckStatus.PASSED, CheckStatus.WARNED},
    )
