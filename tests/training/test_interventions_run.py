"""Whole training runs in which a detector steps in: it keeps rollouts out, pauses once, or stops with a branch."""

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import joinedload

from backend.core.queue import enqueue
from backend.core.session import transaction
from backend.detectors.tables import DetectorSetting, Flag
from backend.domain.detectors.spec import Action
from backend.domain.notifications.notices import NoticeKind
from backend.domain.training.alarms import CLEARED, INTERVENTION
from backend.domain.vocabulary import AlarmAction, AlarmAnswer, Phase, RunStatus
from backend.notifications.tables import Notice
from backend.rollouts.tables import Rollout
from backend.runs.service import resume_run
from backend.runs.tables import Run
from backend.training.alarms import answer_alarm
from backend.training.branches import JOB
from backend.training.tables import Alarm, Intervention, SettingChange
from tests.factories import make_member
from tests.training.conftest import checkpoints_of, points_of, run_of, take_up_again
from workers.storage.steering import WAS_SEEN
from workers.training.grpo_batch import MASKED, SCREENED
from workers.training.run import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

NewRun = Callable[..., uuid.UUID]
PADDED = "long_reply"
SIZES = {"steps": 3, "tasks_per_step": 5}


EASY = "long_reply.factor=1, long_reply.quantile=0.5, long_reply.fewest_characters=1, long_reply.spreads=0"


def watched(new_run: NewRun, action: Action | None = None, **detectors: Any) -> uuid.UUID:
    """A run in which the longer half of each step's replies counts as padded, by custom thresholds; `action`: the
    environment's setting.
    """
    run_id = new_run(grpo=SIZES, heldout={"every": 1}, detectors={"thresholds": EASY, **detectors})
    with transaction() as session:
        environment_id = session.get_one(Run, run_id, options=[joinedload(Run.version)]).version.environment_id
        session.add(DetectorSetting(environment_id=environment_id, detector=PADDED, action=action))
    return run_id


def flagged_steps(run_id: uuid.UUID) -> list[int]:
    statement = select(Flag.training_step).where(Flag.run_id == run_id, Flag.detector == PADDED).distinct()
    with transaction() as session:
        return sorted(step or 0 for step in session.scalars(statement))


def interventions_of(run_id: uuid.UUID) -> list[Intervention]:
    with transaction() as session:
        statement = select(Intervention).where(Intervention.run_id == run_id, Intervention.detector == PADDED)
        return list(session.scalars(statement.order_by(Intervention.step)))


def alarms_of(run_id: uuid.UUID) -> list[Alarm]:
    with transaction() as session:
        statement = select(Alarm).where(Alarm.run_id == run_id, Alarm.name == INTERVENTION)
        return list(session.scalars(statement.order_by(Alarm.id)))


def forget_the_rest(alarm_id: uuid.UUID) -> None:
    """As if the process had been killed between the step and the end of the attempt."""
    with transaction() as session:
        row = session.get_one(Alarm, alarm_id)
        row.evidence = {name: value for name, value in row.evidence.items() if name != WAS_SEEN}


def resume(run_id: uuid.UUID) -> None:
    with transaction() as session:
        enqueue(session, JOB, queue="gpu", run_id=run_id)
        resume_run(session, make_member(session), session.get_one(Run, run_id))
    take_up_again(run_id)


def test_what_is_screened_is_stored_counted_and_has_no_advantage_until_the_action_is_changed(new_run: NewRun) -> None:
    """In step 3 the detector notes, and keeps nothing out any more."""
    run_id = watched(new_run, Action.SCREEN)
    with transaction() as session:
        session.add(SettingChange(run_id=run_id, name=f"detectors.{PADDED}", before="as_set", after="note", step=3))
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    with transaction() as session:
        rows = session.scalars(select(Rollout).where(Rollout.run_id == run_id, Rollout.phase == Phase.TRAIN)).all()
        flagged = set(session.scalars(select(Flag.rollout_id).where(Flag.run_id == run_id, Flag.detector == PADDED)))
        notices = session.scalars(select(Notice.kind).where(Notice.run_id == run_id)).all()
    assert 0 < len(flagged) < len(rows)
    for row in rows:
        is_kept_out = row.id in flagged and row.training_step != 3
        assert (SCREENED in row.metrics, MASKED in row.metrics) == (is_kept_out, is_kept_out)
        assert (row.advantage is None) == is_kept_out
    assert flagged_steps(run_id) == [1, 2, 3]
    by_step = {row.step: row.rollouts for row in interventions_of(run_id)}
    assert sorted(by_step) == [1, 2]
    assert {step: count for step, count in points_of(run_id)["rollouts/screened"].items() if count} == by_step
    assert notices.count(NoticeKind.INTERVENTION) == 1, "once a run, however many steps"


def test_thresholds_of_the_run_may_change_between_two_steps(new_run: NewRun) -> None:
    run_id = watched(new_run)
    after = "long_reply.factor=1000"
    with transaction() as session:
        session.add(SettingChange(run_id=run_id, name="detectors.thresholds", before=EASY, after=after, step=3))
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    assert flagged_steps(run_id) == [1, 2]


def test_a_detector_that_pauses_does_it_once_for_a_pattern_and_in_spite_of_a_kill(new_run: NewRun) -> None:
    run_id = watched(new_run, long_reply="pause")
    assert train(run_id).status is RunStatus.PAUSED
    [alarm] = alarms_of(run_id)
    [first] = flagged_steps(run_id)
    assert (alarm.step, alarm.action, alarm.evidence["detector"]) == (first, AlarmAction.PAUSE, PADDED)
    assert alarm.evidence["patterns"] == ["padded"]
    assert alarm.sentence in (run_of(run_id).reason or "")
    [told] = interventions_of(run_id)
    assert (told.action, told.alarm_id) == (Action.PAUSE, alarm.id)
    with transaction() as session:
        [notice] = session.scalars(select(Notice).where(Notice.run_id == run_id))
    assert notice.path == f"/runs/{run_id}/alarms#alarm-{alarm.id}"
    assert not any(points_of(run_id)["rollouts/screened"].values()), "pausing masks nothing"

    forget_the_rest(alarm.id)
    take_up_again(run_id)
    assert train(run_id).status is RunStatus.PAUSED
    assert flagged_steps(run_id) == [first], "nothing was played"

    resume(run_id)
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    assert len(flagged_steps(run_id)) > 1, "the same pattern went on, and is flagged as before"
    [alarm] = alarms_of(run_id)
    assert alarm.evidence[CLEARED] == first


def test_stop_and_roll_back_prepares_a_branch_that_one_click_starts(new_run: NewRun) -> None:
    run_id = watched(new_run, long_reply="stop_and_roll_back")
    assert train(run_id).status is RunStatus.STOPPED
    [alarm] = alarms_of(run_id)
    prepared = alarm.evidence["branch"]
    assert alarm.action is AlarmAction.STOP
    assert "is prepared" in (run_of(run_id).reason or "")
    honest = checkpoints_of(run_id)[prepared["stage"], prepared["step"]]
    assert honest.stage == "sft" or honest.step < alarm.step - 1
    with transaction() as session:
        assert session.scalars(select(Run.id).where(Run.source_run_id == run_id)).all() == []
        trainer, run = make_member(session), session.get_one(Run, run_id)
        branch = answer_alarm(session, trainer, run, alarm.id, AlarmAnswer.ROLL_BACK)
        assert branch is not None
        assert (branch.checkpoint_id, branch.status) == (honest.id, RunStatus.QUEUED)


def test_the_branch_starts_by_itself_only_where_the_run_says_so(new_run: NewRun) -> None:
    run_id = watched(new_run, Action.STOP_AND_ROLL_BACK, start_branch=True)
    assert train(run_id).status is RunStatus.STOPPED
    with transaction() as session:
        [branch] = session.scalars(select(Run).where(Run.source_run_id == run_id)).all()
    assert (branch.status, branch.created_by) == (RunStatus.QUEUED, None)
    assert branch.name in (run_of(run_id).reason or "")
