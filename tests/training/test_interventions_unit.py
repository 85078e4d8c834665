"""Consequences of flags, without training: actions in force, patterns, alarms, the checkpoint to roll back to."""

import uuid
from typing import Any

import pytest
from pydantic import ValidationError

from backend.core.session import transaction
from backend.domain.detectors.registry import SPECS
from backend.domain.detectors.spec import Action, FlagDraft
from backend.domain.training.alarms import DetectorsChoice
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.steering import NotSafe, is_safe, with_setting
from backend.domain.vocabulary import AlarmAction, PolicyKind, RunKind, RunStatus, Severity
from backend.runs.tables import Run
from backend.training.alarms import good_checkpoint
from backend.training.tables import Alarm
from tests.factories import make_checkpoint, make_flag, make_policy, make_run
from workers.storage.steering import (
    PATTERNS,
    WAS_SEEN,
    AlarmDraft,
    accepted_patterns,
    close_interventions,
    open_interventions,
    prepared_branch,
    record_alarm,
)
from workers.training.context import TrainingOutcome
from workers.training.detector_actions import interventions_of, pattern_of, suspicions_of
from workers.training.run import finish


def draft(detector: str = "paid_exit", **fields: Any) -> FlagDraft:
    values: dict[str, Any] = {"key": "k", "severity": Severity.WARNING, "score": 0.8, "sentence": "Seen."}
    return FlagDraft(detector=detector, **{**values, "training_step": 12, **fields})


def about(rollout: uuid.UUID, cluster: str) -> FlagDraft:
    evidence = {"rollouts": [str(rollout)]}
    return draft(key=str(rollout), rollout_id=rollout, cluster=cluster, evidence=evidence)


@pytest.fixture
def run_id(committed_database: str) -> uuid.UUID:
    """A training run at step 12 with checkpoints of steps 0 (SFT), 5 and 10; `paid_exit` flagged first in step 7."""
    with transaction() as session:
        policy = make_policy(session, kind=PolicyKind.LOCAL)
        configuration = TrainingConfiguration().resolved()
        fields = {"status": RunStatus.RUNNING, "ended_at": None, "configuration": configuration}
        run = make_run(session, policy=policy, kind=RunKind.TRAINING, **fields)
        make_checkpoint(session, policy, run, stage="sft", step=800)
        for step in (5, 10):
            make_checkpoint(session, policy, run, stage="grpo", step=step, heldout_reward=step / 10)
        for step in (7, 12):
            make_flag(session, run, detector="paid_exit", training_step=step)
        return run.id


def intervention(run_id: uuid.UUID, patterns: list[str], step: int = 12, **evidence: Any) -> uuid.UUID:
    told = {"detector": "paid_exit", "on_flag": "pause", PATTERNS: patterns, **evidence}
    seen = AlarmDraft("intervention", step, "Seen.", AlarmAction.PAUSE, "intervention/paid_exit", step - 1, told)
    return record_alarm(run_id, seen)[0]


def test_every_detector_has_a_choice_that_is_as_set_and_may_change_between_steps() -> None:
    choice = DetectorsChoice()
    for name, spec in SPECS.items():
        assert choice.action_of(name, spec.action) is spec.action
        assert is_safe(f"detectors.{name}")
    now = with_setting(TrainingConfiguration(), "detectors.paid_exit", "pause")
    assert now.detectors.action_of("paid_exit", Action.NOTE) is Action.PAUSE
    assert now.detectors.action_of("gibberish", Action.SCREEN) is Action.SCREEN
    with pytest.raises(ValidationError):
        with_setting(now, "detectors.paid_exit", "shout")
    with pytest.raises(NotSafe):
        with_setting(now, "detectors.no_such", "pause")


def test_the_choices_are_read_again_from_a_stored_run() -> None:
    stored = TrainingConfiguration.model_validate({"detectors": {"tampering": "note", "start_branch": True}}).resolved()
    again = TrainingConfiguration.of_run(stored).detectors
    assert (again.action_of("tampering", Action.SCREEN), again.start_branch) == (Action.NOTE, True)


def test_what_screens_by_default() -> None:
    screening = {name for name, spec in SPECS.items() if spec.action is not Action.NOTE}
    assert screening - {"canary", "cheat_rate"} == {"tampering", "protected_files"}


def test_a_pattern_is_the_cluster_or_what_the_flag_is_about() -> None:
    assert pattern_of(about(uuid.uuid4(), "exits by x")) == "exits by x"
    assert pattern_of(draft("reward_jump", key="step-41")) == "step"
    assert pattern_of(draft(rollout_id=uuid.uuid4())) == "a rollout"


def test_a_detector_that_ends_the_run_speaks_once_a_step_for_all_its_flags() -> None:
    first, second = uuid.uuid4(), uuid.uuid4()
    drafts = [about(first, "exits by x"), about(second, "exits by y"), draft("gibberish")]
    [found] = interventions_of(drafts, {"paid_exit": Action.PAUSE, "gibberish": Action.SCREEN})
    assert (found.detector, found.action) == ("paid_exit", Action.PAUSE)
    assert found.patterns == {"exits by x", "exits by y"}
    assert set(found.sighting.evidence["rollouts"]) == {str(first), str(second)}
    assert "1 more flags" in found.sighting.sentence
    assert found.sighting.onset == 11
    assert interventions_of(drafts, {"paid_exit": Action.NOTE}) == []


def test_what_ends_the_run_automatically_is_no_suspicion_with() -> None:
    grave = draft("early_exit", severity=Severity.ALERT)
    assert len(suspicions_of([grave])) == 1
    assert suspicions_of([grave], elsewhere=["early_exit"]) == []


def test_it_goes_back_to_what_played_nothing_of_the_pattern(run_id: uuid.UUID) -> None:
    sound, prepared = prepared_branch(run_id, "paid_exit", onset=11)
    assert sound == 6
    assert prepared is not None
    assert (prepared["stage"], prepared["step"]) == ("grpo", 5)
    sound, prepared = prepared_branch(run_id, "paid_exit", onset=4)
    assert prepared is not None
    assert (sound, prepared["stage"]) == (4, "sft"), "the window of a detector of runs may begin before its flag"


def test_the_prepared_checkpoint_is_taken_while_its_weights_are_kept(run_id: uuid.UUID) -> None:
    _, prepared = prepared_branch(run_id, "paid_exit", onset=11)
    alarm_id = intervention(run_id, ["exits by x"], branch=prepared)
    with transaction() as session:
        alarm, run = session.get_one(Alarm, alarm_id), session.get_one(Run, run_id)
        good = good_checkpoint(session, run, alarm)
        assert good is not None
        assert str(good.id) == (prepared or {})["checkpoint_id"]


def test_a_pattern_is_let_pass_once_the_run_rested_for_it(run_id: uuid.UUID) -> None:
    intervention(run_id, ["exits by x"])
    assert accepted_patterns(run_id) == {}, "its process may have died before it could rest"
    assert len(open_interventions(run_id, reached=12)) == 1
    assert open_interventions(run_id, reached=11) == [], "the step will be played again"
    finish(run_id, TrainingOutcome(RunStatus.PAUSED, "Seen."), {})
    assert accepted_patterns(run_id) == {"paid_exit": {"exits by x"}}
    assert open_interventions(run_id, reached=12) == []
    with transaction() as session:
        [alarm] = session.query(Alarm).where(Alarm.run_id == run_id)
    assert alarm.evidence[WAS_SEEN] is True
    assert "cleared_step" not in alarm.evidence
    close_interventions(run_id, 12)
    with transaction() as session:
        assert session.get_one(Alarm, alarm.id).evidence["cleared_step"] == 12
