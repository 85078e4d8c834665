"""What detectors do in a training run: the action in force for each, and what was carried out."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.detectors.queries import active_settings_for
from backend.domain.detectors.registry import SPECS
from backend.domain.detectors.settings import Threshold, override_thresholds
from backend.domain.detectors.spec import Action, DetectorSpec
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.detector_actions import AS_SET
from backend.domain.vocabulary import RunKind
from backend.environments.tables import EnvironmentVersion
from backend.runs.tables import Run
from backend.training.steering import current_settings
from backend.training.tables import Intervention


@dataclass(frozen=True, slots=True)
class DetectorAction:
    """A detector in a training run."""

    spec: DetectorSpec
    wanted: str
    """The run's own choice; `as_set` where it has none."""
    action: Action
    """In force."""
    is_enabled: bool
    thresholds: Mapping[str, float]
    """The run's own; those that it does not name are its environment's, else the defaults."""


def detector_actions(session: Session, run: Run, now: TrainingConfiguration) -> list[DetectorAction]:
    """`now`: the run's choices with all changes. What the environment wants is read when an attempt begins."""
    version = session.get_one(EnvironmentVersion, run.version_id)
    found = override_thresholds(active_settings_for(session, version.environment_id), now.detectors.thresholds)
    return [
        DetectorAction(
            spec,
            str(getattr(now.detectors, name, AS_SET)),
            now.detectors.action_of(name, found[name].action),
            found[name].enabled,
            {each.name: each.value for each in now.detectors.thresholds if each.detector == name},
        )
        for name, spec in SPECS.items()
    ]


def thresholds_of_run(session: Session, run: Run) -> Sequence[Threshold]:
    """A training run's own, with all changes; none where its stored choices are of another version of Proctor."""
    if run.kind is not RunKind.TRAINING:
        return ()
    try:
        return current_settings(session, run).detectors.thresholds
    except ValidationError:
        return ()


def interventions_of(session: Session, run_id: uuid.UUID) -> Sequence[Intervention]:
    """Newest first."""
    statement = select(Intervention).where(Intervention.run_id == run_id)
    return session.scalars(statement.order_by(Intervention.step.desc(), Intervention.detector)).all()
