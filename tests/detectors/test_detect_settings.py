"""Settings of detectors: layers over the defaults, stored per environment, and the threshold for reporting."""

from dataclasses import replace

import pytest
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from backend.detectors.queries import active_settings_for
from backend.detectors.tables import DetectorSetting
from backend.domain.detectors.registry import SPECS
from backend.domain.detectors.settings import DetectorSettings, Threshold, resolve_settings
from backend.domain.detectors.spec import Action
from tests.detectors.rows import BATCH, WIN, honest, row
from tests.factories import make_run
from workers.detectors.scanner import RunScanner

SPEC = SPECS["tampering"]


def test_each_layer_changes_what_it_names():
    layers = [DetectorSettings(thresholds={"fewest": 3}), DetectorSettings(action=Action.PAUSE)]
    found = resolve_settings(SPEC, layers)
    assert (found.enabled, found.thresholds, found.action) == (True, {"fewest": 3, "suspicion": 0}, Action.PAUSE)
    assert resolve_settings(SPEC).action is Action.SCREEN
    told = ["suspicion must be a number from 0 to 1.", "tampering has no threshold sum; it has fewest, suspicion."]
    assert sorted(DetectorSettings(thresholds={"sum": 1, "suspicion": 2}).problems(SPEC)) == told


def test_what_is_switched_off_is_silent_and_a_threshold_counts():
    bad = row(1.0, "```python\nimport sys\nsys.exit(0)\n```")
    for settings, count in ((DetectorSettings(enabled=False), 0), (DetectorSettings(thresholds={"fewest": 2}), 0)):
        scanner = RunScanner(BATCH, {"tampering": resolve_settings(SPEC, [settings])})
        assert len([d for d in scanner.scan(0, [bad, *honest(3)]) if d.detector == "tampering"]) == count


def test_an_environment_overrides_the_default(session: Session):
    run = make_run(session)
    wanted = DetectorSetting(
        environment_id=run.version.environment_id, detector="tampering", thresholds={"fewest": 2}, action=Action.PAUSE
    )
    session.add(wanted)
    session.flush()
    found = active_settings_for(session, run.version.environment_id)
    assert found["tampering"].action is Action.PAUSE
    assert found["tampering"].thresholds == {"fewest": 2, "suspicion": 0}
    assert found["gibberish"] == resolve_settings(SPECS["gibberish"])


def test_a_setting_belongs_to_an_environment(session: Session):
    session.add(DetectorSetting(detector="tampering"))
    with pytest.raises(IntegrityError):
        session.flush()


def test_less_suspicion_than_wanted_is_not_reported_of_rollouts():
    bad = row(1.0, "```python\nimport sys\nsys.exit(0)\n```")
    rows = [bad, *honest(3)]
    scanner = RunScanner(BATCH)
    [draft] = [d for d in scanner.scan(0, rows) if d.detector == "tampering"]
    for least, count in ((draft.score, 1), (draft.score + 4e-8, 1), (min(1.0, draft.score + 0.01), 0)):
        scanner.tune([Threshold(detector="tampering", name="suspicion", value=least)])
        told = [d for d in scanner.scan(0, rows) if d.detector == "tampering"]
        assert len(told) == count, "a suspicion is stored with seven digits"
        assert len(scanner.scan_ahead(rows, {"tampering"})) == count
    scanner.tune([])
    assert scanner.settings["tampering"] == resolve_settings(SPEC)


def test_less_suspicion_than_wanted_is_not_reported_of_runs_until_it_grows():
    scanner = RunScanner(replace(WIN, highest=1.2))
    scanner.tune([Threshold(detector="ceiling_saturation", name="suspicion", value=0.45)])
    told = []
    for step in range(1, 12):
        solved = 17 if step <= 6 else 20
        rows = [row(1.2 if number < solved else 0.0, f"<move>{number}</move>") for number in range(20)]
        told += [d for d in scanner.scan(step, rows) if d.detector == "ceiling_saturation"]
    [draft] = told
    assert (draft.training_step, draft.score >= 0.45) == (8, True)
