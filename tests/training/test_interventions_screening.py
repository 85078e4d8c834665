"""What detectors flag before a step is learned stays out of its gradient until a person judged it."""

import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sqlalchemy import select
from sqlalchemy.orm import joinedload

from backend.core.session import transaction
from backend.domain.detectors.registry import SPECS
from backend.domain.detectors.run_view import EnvironmentContext, row_of
from backend.domain.detectors.settings import DetectorSettings, resolve_settings
from backend.domain.detectors.spec import Action
from backend.domain.notifications.notices import NoticeKind
from backend.domain.results.pass_at_k import SuccessRule
from backend.domain.rollouts.rollout import Rollout
from backend.domain.vocabulary import Phase, RolloutStatus, RunKind, Verdict
from backend.notifications.sending import message_of
from backend.notifications.tables import Notice
from backend.review.tables import VerdictRecord
from backend.rollouts.tables import Rollout as RolloutRow
from backend.runs.tables import Run
from backend.training.tables import Intervention
from tests.factories import make_environment_version, make_flag, make_rollouts, make_run, make_step
from tests.training.game import CHOICE, Outcome
from tests.training.test_verdicts import played
from workers.detectors.scanner import RunScanner
from workers.storage.rollouts import rollout_id
from workers.storage.steering import ScreenedRollouts, record_screened
from workers.training.detector_actions import Screening, Verdicts
from workers.training.grpo_batch import MASKED, SCREENED

METRIC = "protected_files_changed"
SCREEN = {"protected_files": Action.SCREEN}


@pytest.fixture
def run_id(committed_database: str) -> uuid.UUID:
    """A training run whose step 1 has one rollout in task 0: it changed a protected file."""
    with transaction() as session:
        run = make_run(session, kind=RunKind.TRAINING, name="A training run")
        [row] = make_rollouts(
            session, run, [[1.0, 1.0, 0.0]], phase=Phase.TRAIN, step=1, steps=[make_step("rm tests", {})]
        )
        make_flag(session, run, row, detector="protected_files", training_step=1)
        return run.id


def screening(run_id: uuid.UUID, actions: Mapping[str, Action] = SCREEN) -> Screening:
    with transaction() as session:
        version_id = session.get_one(Run, run_id).version_id
    return Screening(run_id, RunScanner(EnvironmentContext(("win",))), Verdicts([version_id]), lambda: actions)


def changed(index: int, *replies: str, step: int = 2, member: int = 0) -> Rollout:
    """It changed a protected file."""
    rollout = honest(index, *replies, step=step, member=member)
    rollout.metrics[METRIC] = 1.0
    return rollout


def honest(index: int, *replies: str, step: int = 2, member: int = 0) -> Rollout:
    rollout = played(index, *replies)
    rollout.training_step, rollout.group, rollout.member, rollout.reward = step, index, member, 1.0
    rollout.columns = {"win": 1.0}
    return rollout


def judge(run_id: uuid.UUID, verdict: Verdict) -> None:
    """The stored rollout of task 0."""
    with transaction() as session:
        row = session.scalars(select(RolloutRow).where(RolloutRow.run_id == run_id)).one()
        session.add(VerdictRecord(run_id=run_id, rollout_id=row.id, verdict=verdict))


def test_only_a_detector_that_screens_keeps_rollouts_out(run_id: uuid.UUID) -> None:
    rollouts = [changed(0, "rm tests"), honest(1, "fine")]
    assert screening(run_id).screened(2, rollouts) == {0}
    for action in set(Action) - {Action.SCREEN}:
        assert screening(run_id, {"protected_files": action}).screened(2, rollouts) == set()


def test_failed_rollouts_are_nonexistent_suspects(run_id: uuid.UUID) -> None:
    failed = changed(0, "rm tests")
    failed.status, failed.reward = RolloutStatus.FAILED, None
    assert screening(run_id).screened(2, [failed]) == set()


def test_an_honest_verdict_lets_the_same_replies_in_the_same_task_pass_and_a_hack_keeps_them_out(
    run_id: uuid.UUID,
) -> None:
    rollouts = [changed(0, "rm tests"), changed(0, "rm -r tests", member=1), changed(1, "rm tests")]
    here = screening(run_id)
    assert here.screened(2, rollouts) == {0, 1, 2}
    for verdict in (Verdict.UNSURE, Verdict.BROKEN_REWARD):
        judge(run_id, verdict)
        assert here.screened(2, rollouts) == {0, 1, 2}, "nobody said that it is honest"
    judge(run_id, Verdict.HONEST)
    assert here.screened(2, rollouts) == {1, 2}
    judge(run_id, Verdict.HACK)
    assert here.screened(2, rollouts) == {0, 1, 2}


def test_who_was_flagged_before_groups_gave_place_stays_out(run_id: uuid.UUID) -> None:
    first, second = changed(0, "rm tests"), changed(1, "rm tests")
    here = screening(run_id)
    assert here.screened(2, [first, honest(2, "fine")]) == {0}
    assert here.screened(2, [first, second]) == {0, 1}
    rows = [row_of(uuid.uuid4(), each) for each in (first, second)]
    flags = here.scan(2, [row for row in rows if row is not None])
    assert [draft.detector for draft in flags] == ["protected_files"] * 2, "each once, as it was flagged ahead"
    assert here.screened(3, [honest(2, "fine", step=3)]) == set()


def test_a_repeat_of_what_a_detector_of_runs_names_is_kept_out_until_it_is_judged_honest(run_id: uuid.UUID) -> None:
    with transaction() as session:
        run = session.get_one(Run, run_id)
        named = str(session.scalars(select(RolloutRow.id).where(RolloutRow.run_id == run_id)).one())
        make_flag(session, run, detector="early_exit", key="run", training_step=1, evidence={"rollouts": [named]})
    actions = {"early_exit": Action.SCREEN}
    rollouts = [honest(0, "rm tests"), honest(0, "another", member=1)]
    here = screening(run_id, actions)
    assert here.screened(1, [honest(0, "rm tests", step=1)]) == set(), "the flag came after this step"
    assert here.screened(2, rollouts) == {0}
    rollouts[0].metrics[SCREENED] = 1.0
    [told] = here.interventions(rollouts, [])
    assert (told.detector, told.rollouts, told.sentence) == ("early_exit", 1, "1 of 2 rollouts.")
    assert told.examples == (rollout_id(run_id, rollouts[0]),)
    assert "repeats" in told.seen
    judge(run_id, Verdict.HONEST)
    assert screening(run_id, actions).screened(3, [honest(0, "rm tests", step=3)]) == set()


def test_only_repeats_in_the_environment_that_it_speaks_of_are_kept_out(run_id: uuid.UUID) -> None:
    """Of a run on several, where the same number is another task in each."""
    with transaction() as session:
        run = session.get_one(Run, run_id)
        own, other = run.version_id, make_environment_version(session).id
        named = str(session.scalars(select(RolloutRow.id).where(RolloutRow.run_id == run_id)).one())
        make_flag(session, run, detector="cheat_rate", key="boards", training_step=1, evidence={"rollouts": [named]})
    watch = RunScanner(
        EnvironmentContext(("win",), rules={name: SuccessRule("win", 1.0) for name in ("boards", "sums")})
    )
    names = {None: "boards", other: "sums"}
    here = Screening(run_id, watch, Verdicts([own, other]), lambda: {"cheat_rate": Action.SCREEN}, names)
    repeated, elsewhere = honest(0, "rm tests"), honest(0, "rm tests", member=1)
    elsewhere.task = replace(elsewhere.task, version_id=other)
    assert here.screened(2, [repeated, elsewhere]) == {0}
    rows = here.rows([uuid.uuid4(), uuid.uuid4()], [repeated, elsewhere])
    assert [row.environment for row in rows] == ["boards", "sums"]


def test_who_is_reported_sees_examples_and_what_the_detector_saw(run_id: uuid.UUID) -> None:
    rollouts = [changed(number, "rm tests") for number in range(5)]
    here = screening(run_id)
    for place in here.screened(2, rollouts):
        rollouts[place].metrics[SCREENED] = 1.0
    record_screened(run_id, 2, here.interventions(rollouts, []))
    with transaction() as session:
        [notice] = session.scalars(select(Notice).options(joinedload(Notice.run)).where(Notice.run_id == run_id))
    message = message_of(notice, "1")
    ids = [str(rollout_id(run_id, each)) for each in rollouts[:3]]
    assert notice.evidence["rollouts"] == ids
    assert [each["url"].partition("/rollouts/")[2] for each in message.rollouts] == ids
    assert notice.evidence["screened"] == 5
    assert notice.evidence["seen"]
    assert notice.evidence["seen"] in notice.text


def test_it_is_stored_by_detector_and_step_and_people_are_reported_once(run_id: uuid.UUID) -> None:
    record_screened(run_id, 2, [ScreenedRollouts("tampering", 3, "3 of 8 rollouts.")])
    record_screened(run_id, 2, [ScreenedRollouts("tampering", 4, "4 of 8 rollouts.")])
    record_screened(run_id, 3, [ScreenedRollouts("tampering", 1, "1 of 8 rollouts.")])
    with transaction() as session:
        rows = session.scalars(select(Intervention).where(Intervention.run_id == run_id).order_by(Intervention.step))
        stored = [(row.step, row.detector, row.action, row.rollouts) for row in rows]
        [notice] = session.scalars(select(Notice).where(Notice.run_id == run_id))
    assert stored == [(2, "tampering", Action.SCREEN, 4), (3, "tampering", Action.SCREEN, 1)]
    assert notice.kind is NoticeKind.INTERVENTION
    assert "detector=tampering" in notice.path


def test_switched_off_or_with_another_threshold_it_keeps_nothing_out(run_id: uuid.UUID) -> None:
    rollouts = [changed(0, "rm tests")]
    for settings in (DetectorSettings(enabled=False), DetectorSettings(thresholds={"changed": 5})):
        watch = RunScanner(
            EnvironmentContext(("win",)), {"protected_files": resolve_settings(SPECS["protected_files"], [settings])}
        )
        here = Screening(run_id, watch, Verdicts([uuid.uuid4()]), lambda: SCREEN)
        assert here.screened(2, rollouts) == set()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_screened_rollout_moves_no_weight_and_is_in_no_mean_of_its_group(run_id: uuid.UUID, tmp_path: Path) -> None:
    """The run whose flagged rollouts had failed, so that they count nowhere, comes to the same weights."""
    choice = CHOICE.model_copy(update={"steps": 2, "scale_rewards": "group"})

    def flag(rollouts: list[Rollout]) -> None:
        for place in (1, 5, 6, 8, 9, 10):
            rollouts[place].metrics[METRIC] = 1.0

    def fail(rollouts: list[Rollout]) -> None:
        for place in (1, 5, 6, 8, 9, 10):
            rollouts[place].status, rollouts[place].reward = RolloutStatus.FAILED, None

    screened = Outcome(tmp_path / "a", choice=choice, spoil=flag, screened=screening(run_id).screened)
    absent = Outcome(tmp_path / "b", choice=choice, spoil=fail)
    noted = Outcome(tmp_path / "c", choice=choice, spoil=flag)
    # only learned tokens are multiplied with the head, in products of other sizes; where a gradient is nearly 0, Adam
    # turns the difference in rounding into a hundredth of its step
    assert torch.allclose(screened.weights, absent.weights, atol=1e-4)
    assert not torch.allclose(screened.weights, noted.weights, atol=1e-3)
    for step in screened.steps:
        kept = [rollout for rollout in step.rollouts if SCREENED in rollout.metrics]
        assert len(kept) == 6
        assert all(rollout.advantage is None and MASKED in rollout.metrics for rollout in kept)
        assert step.rollouts[11].advantage == pytest.approx(0.0, abs=1e-6), "one is left: it is compared with nobody"
