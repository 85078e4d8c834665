"""Detectors: their record, their settings for an environment, and scans of stored runs."""

from typing import Annotated

from fastapi import Path
from sqlalchemy.orm import Session

from backend.detectors import benchmarks, learned, scans, service
from backend.detectors.queries import Scope
from backend.detectors.schemas import (
    BenchmarkResponse,
    ChangesRequest,
    DetectorDetail,
    DetectorResponse,
    DetectorScan,
    DetectorScope,
    DetectorSettingsResponse,
    LearnedDetectorResponse,
    SettingsRequest,
    StartScan,
    StoreBenchmarks,
)
from backend.domain.vocabulary import Role
from backend.environments import references as _references  # noqa: F401  how addresses name environments
from backend.environments.queries import get_environment
from backend.environments.tables import Environment
from backend.operations.declaration import operation
from backend.runs.tables import Run
from backend.web.identity import Actor
from backend.web.paging import Page


@operation("GET /detectors", role=Role.VIEWER, command="detectors", tool=True)
def list_detectors(session: Session, actor: Actor, request: DetectorScope) -> Page[DetectorResponse]:
    """List built-in detectors and graders that raise flags, with their precision. Most flags first."""
    found, _ = service.list_detectors(session, Scope(request.environment))
    return Page(items=found)


@operation("GET /detectors/benchmarks", role=Role.VIEWER)
def list_benchmarks(session: Session, actor: Actor) -> Page[BenchmarkResponse]:
    """List the newest benchmark of each labeled source, and the same figures of the team's own reviews."""
    return Page(items=[BenchmarkResponse.of_counts(counts, at) for counts, at in benchmarks.newest(session)])


@operation("POST /detectors/benchmarks", role=Role.AUTHOR, status=201, max_body_size=8 << 20)
def store_benchmarks(session: Session, actor: Actor, request: StoreBenchmarks) -> Page[BenchmarkResponse]:
    """Store results of `proctor detectors bench`. The newest result of a source is shown."""
    benchmarks.store(session, actor.person_id, request.results)
    return list_benchmarks(session, actor)


@operation("GET /detectors/learned/models", role=Role.VIEWER, command="detectors learned", tool=True)
def list_learned(session: Session, actor: Actor, request: DetectorScope) -> Page[LearnedDetectorResponse]:
    """List what the learned detector was trained on in each environment, and which verdicts it still needs."""
    return Page(items=learned.list_all(session, request.environment))


@operation("GET /detectors/learned/models/{environment}", role=Role.VIEWER)
def get_learned(session: Session, actor: Actor, environment: Environment) -> LearnedDetectorResponse:
    """Show the learned detector of an environment: its verdicts, threshold and cross-fitted recall."""
    return learned.get(session, environment)


@operation(
    "POST /detectors/learned/models/{environment}",
    role=Role.AUTHOR,
    command="detectors train",
    status=202,
    poll="/detectors/learned/models/{environment}",
    page="/detectors/learned#models",
    notice="The detector is being trained on the verdicts.",
)
def train_learned(session: Session, actor: Actor, environment: Environment) -> LearnedDetectorResponse:
    """Train the learned detector of an environment on all verdicts. Scans also do this when there are new verdicts."""
    return learned.start_training(session, actor, environment)


@operation("GET /detectors/{detector}", role=Role.VIEWER, command="detectors show")
def get_detector(
    session: Session,
    actor: Actor,
    detector: Annotated[str, Path(description="Name of a detector.")],
    request: DetectorScope,
) -> DetectorDetail:
    """Show a detector: its method, thresholds, record by environment and suggested cut-off."""
    found, _ = service.get_detector(session, detector, Scope(request.environment))
    return found


@operation("PUT /detectors/{detector}/settings/{environment}", role=Role.AUTHOR, audited=False)
def replace_settings(
    session: Session, actor: Actor, detector: str, environment: str, request: SettingsRequest
) -> DetectorSettingsResponse:
    """Replace the settings of a detector for an environment. An empty request restores the defaults."""
    place = get_environment(session, environment)
    return DetectorSettingsResponse.of(service.set_for_environment(session, actor, place, detector, request))


@operation("PATCH /detectors/{detector}/settings/{environment}", role=Role.AUTHOR, audited=False)
def change_settings(
    session: Session, actor: Actor, detector: str, environment: str, request: ChangesRequest
) -> DetectorSettingsResponse:
    """Change settings of a detector for an environment. `{"thresholds": {"suspicion": 0.7}}` applies a cut-off."""
    place = get_environment(session, environment)
    return DetectorSettingsResponse.of(service.change_for_environment(session, actor, place, detector, request))


@operation(
    "POST /runs/{run}/detection",
    role=Role.AUTHOR,
    command="run detect",
    status=202,
    tool=True,
    poll="/runs/{run_id}/detection",
    audited=False,
    page="/runs/{run_id}/flags",
    notice="The detectors scan all stored rollouts.",
)
def start_scan(session: Session, actor: Actor, run: Run, request: StartScan) -> DetectorScan:
    """Run all detectors on the completed rollouts of a run. Existing flags are not raised again.

    Returns the current scan if one is queued or running.
    """
    return scans.start_scan(session, actor, run, request)


@operation("GET /runs/{run}/detection", role=Role.VIEWER)
def get_scan(session: Session, actor: Actor, run: Run) -> DetectorScan | None:
    """Show the newest scan of a run, its progress and its new flags. Null if there is none."""
    return scans.newest_scan(session, run.id)
