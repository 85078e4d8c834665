"""Settings of detectors: layers over the defaults, stored for an environment and for a run."""

import pytest
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from backend.db.models import DetectorSetting
from backend.domain.detectors.catalogue import FACES
from backend.domain.detectors.face import Action
from backend.domain.detectors.settings import DetectorSettings, in_force
from backend.judging.detectors.queries import in_force_for
from tests.factories import make_run
from tests.judging.rows import BATCH, honest, row
from workers.judging.detectors.watch import Watch

FACE = FACES["tampering"]


def test_each_layer_changes_what_it_names():
    layers = [DetectorSettings(thresholds={"fewest": 3}), DetectorSettings(action=Action.PAUSE)]
    found = in_force(FACE, layers)
    assert (found.enabled, found.thresholds, found.action) == (True, {"fewest": 3}, Action.PAUSE)
    assert in_force(FACE).action is Action.SCREEN
    assert DetectorSettings(thresholds={"sum": 1}).unknown_thresholds(FACE) == ["sum"]


def test_what_is_switched_off_is_silent_and_a_threshold_counts():
    bad = row(1.0, "```python\nimport sys\nsys.exit(0)\n```")
    for settings, count in ((DetectorSettings(enabled=False), 0), (DetectorSettings(thresholds={"fewest": 2}), 0)):
        watch = Watch(BATCH, {"tampering": in_force(FACE, [settings])})
        assert len([d for d in watch.look(0, [bad, *honest(3)]) if d.detector == "tampering"]) == count


def test_a_run_overrides_its_environment(session: Session):
    run = make_run(session)
    session.add_all(
        [
            DetectorSetting(run_id=run.id, detector="tampering", action=Action.NOTE),
            DetectorSetting(
                environment_id=run.version.environment_id,
                detector="tampering",
                thresholds={"fewest": 2},
                action=Action.PAUSE,
            ),
        ]
    )
    session.flush()
    found = in_force_for(session, run.id, run.version.environment_id)
    assert (found["tampering"].action, found["tampering"].thresholds) == (Action.NOTE, {"fewest": 2})
    assert found["gibberish"] == in_force(FACES["gibberish"])


def test_a_setting_belongs_to_an_environment_or_to_a_run(session: Session):
    session.add(DetectorSetting(detector="tampering"))
    with pytest.raises(IntegrityError):
        session.flush()
