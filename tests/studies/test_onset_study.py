"""An onset study in the product's own rows: evaluations are started, scanned, shared, stopped and resumed."""

import uuid

import pytest
from sqlalchemy import func, select

from backend.checkpoints.tables import Checkpoint
from backend.core.session import transaction
from backend.domain.studies.onset import OnsetOutcome
from backend.domain.studies.study import OnsetResult, StudyKind
from backend.domain.vocabulary import Role, RunKind, RunStatus
from backend.errors import Conflict, InvalidInput
from backend.notifications.tables import Notice
from backend.runs.tables import Run
from backend.studies.queries import get_studied_run
from backend.studies.schemas import StartOnset
from backend.studies.service import resume_study, start_onset, stop_study
from backend.studies.tables import Study
from tests.factories import make_environment_version, make_member, make_run
from tests.studies.worlds import CLUSTER, Laboratory, judged, make_training, read_study, samples_by_step, waits_for

pytestmark = pytest.mark.usefixtures("committed_database")
BY_STEP = Laboratory(lambda step: 0.0 if step < 50 else 0.5)


def training(steps: tuple[int, ...] = tuple(range(10, 90, 10)), judged_at: tuple[int, ...] = (55, 70)) -> uuid.UUID:
    with transaction() as session:
        run = make_training(session, steps)
        judged(session, run, judged_at)
        return run.id


def start(run_id: uuid.UUID, detector: str = "judge_directed", **request: object) -> uuid.UUID:
    with transaction() as session:
        actor = make_member(session, Role.AUTHOR)
        run = get_studied_run(session, run_id, StudyKind.ONSET)
        asked = StartOnset.model_validate({"detector": detector, "tasks": 16, "group_size": 1, **request})
        return start_onset(session, actor, run, asked).id


def result_of(study: Study) -> OnsetResult:
    assert study.onset_result is not None
    return study.onset_result


def evaluations(run_id: uuid.UUID) -> list[Run]:
    """That a training run's checkpoints played."""
    statement = select(Run).join(Checkpoint, Checkpoint.id == Run.checkpoint_id).where(Checkpoint.run_id == run_id)
    with transaction() as session:
        return list(session.scalars(statement.where(Run.kind == RunKind.EVALUATION).order_by(Run.id)))


@pytest.mark.slow
def test_it_finds_the_first_checkpoint_above_the_base_rate() -> None:
    run_id = training()
    study_id = start(run_id, cluster=CLUSTER)
    study = BY_STEP.finish(study_id)
    found = result_of(study)
    assert (study.status, found.outcome) == (RunStatus.COMPLETED, OnsetOutcome.FOUND)
    assert (found.honest_step, found.hacking_step, found.is_monotone, found.remarks) == (40, 50, True, [])
    samples = samples_by_step(study_id)
    assert samples[0].is_base
    assert samples[0].is_above is None
    assert (samples[50].flagged, samples[50].rollouts, samples[50].is_above) == (8, 16, True)
    assert samples[50].chance is not None
    assert samples[50].chance < 0.01
    assert (samples[40].flagged, samples[40].is_above, samples[40].chance) == (0, False, 1.0)
    assert len(samples) < 9, "not every checkpoint is sampled"
    played = evaluations(run_id)
    assert {run.configuration["tasks"] for run in played} == {16}
    assert len({(run.seed, str(run.configuration["sampling"]), run.version_id) for run in played}) == 1, "alike for all"
    assert {sample.run_id for sample in samples.values()} == {run.id for run in played}, "stored and linked"
    with transaction() as session:
        notice = session.scalars(select(Notice)).one()
        assert notice.path == f"/runs/{run_id}/studies"
        assert session.get_one(Checkpoint, found.honest_id).step == 40


@pytest.mark.slow
def test_only_the_cluster_that_is_requested_counts() -> None:
    run_id = training()
    with transaction() as session:
        judged(session, session.get_one(Run, run_id), (60,), cluster="names its score")
    found = result_of(BY_STEP.finish(start(run_id, cluster="names its score")))
    assert found.outcome is OnsetOutcome.NOT_SEEN
    assert "would not be detected" in found.remarks[0]


@pytest.mark.slow
def test_the_first_checkpoint_may_show_it_already() -> None:
    found = result_of(Laboratory(lambda step: 0.5 if step else 0.0).finish(start(training((10, 20)))))
    assert (found.outcome, found.honest_step, found.hacking_step) == (OnsetOutcome.AT_THE_FIRST, 0, 10)
    assert "2 checkpoints" in found.remarks[0]
    with transaction() as session:
        assert session.get_one(Checkpoint, found.honest_id).stage == "sft", "the policy that reinforcement began with"


@pytest.mark.slow
def test_what_is_coarse_or_not_monotone_is_reported() -> None:
    found = result_of(Laboratory(lambda step: 0.5 if step == 50 else 0.0).finish(start(training((20, 50, 80)))))
    assert (found.honest_step, found.hacking_step, found.is_monotone) == (20, 50, False)
    assert "step 80" in found.remarks[0]


@pytest.mark.slow
def test_a_second_search_plays_nothing_again() -> None:
    """For the same run on the same tasks, regardless of who starts it."""
    run_id = training()
    with transaction() as session:
        actor = make_member(session, Role.AUTHOR)
        run = get_studied_run(session, run_id, StudyKind.ONSET)
        ask = StartOnset(detector="judge_directed", tasks=16, group_size=1)
        first = start_onset(session, actor, run, ask).id
        assert start_onset(session, actor, run, ask).id == first, "it is under way"
    BY_STEP.finish(first)
    count = len(evaluations(run_id))
    with transaction() as session:
        ask = StartOnset(detector="judge_directed", cluster=CLUSTER, tasks=16, group_size=1)
        second = start_onset(session, actor, get_studied_run(session, run_id, StudyKind.ONSET), ask).id
    found = BY_STEP.finish(second, moves=1)
    assert (found.status, result_of(found).hacking_step) == (RunStatus.COMPLETED, 50)
    assert len(evaluations(run_id)) == count


@pytest.mark.slow
def test_it_continues_where_it_was_interrupted() -> None:
    study_id = start(training())
    BY_STEP.finish(study_id, moves=2)
    before = samples_by_step(study_id)
    assert [sample.rollouts for sample in before.values()] == [16, None], "played, and not looked at yet"
    with transaction() as session:
        row = session.get_one(Study, study_id)
        assert row.status is RunStatus.RUNNING
    found = BY_STEP.finish(study_id)
    assert result_of(found).hacking_step == 50
    assert {step: each.run_id for step, each in samples_by_step(study_id).items()}.items() >= {
        (step, each.run_id) for step, each in before.items()
    }


@pytest.mark.slow
def test_a_stopped_search_stops_its_evaluation_and_resumes_it() -> None:
    run_id = training()
    study_id = start(run_id)
    BY_STEP.wake(study_id)
    waiting = waits_for(study_id)
    assert waiting is not None
    with transaction() as session:
        stop_study(session, session.get_one(Study, study_id))
    BY_STEP.wake(study_id)
    (evaluation,) = evaluations(run_id)
    assert evaluation.status is RunStatus.STOPPED, "it was still queued"
    with transaction() as session:
        resume_study(session, session.get_one(Study, study_id))
    found = BY_STEP.finish(study_id)
    assert (found.status, result_of(found).hacking_step) == (RunStatus.COMPLETED, 50)


def test_an_evaluation_that_someone_stops_stops_the_search() -> None:
    study_id = start(training())
    BY_STEP.wake(study_id)
    waiting = waits_for(study_id)
    assert waiting is not None
    BY_STEP.play(*waiting, status=RunStatus.STOPPED)
    BY_STEP.wake(study_id)
    found = read_study(study_id)
    assert found.status is RunStatus.STOPPED
    assert "did not complete" in (found.reason or "")


@pytest.mark.slow
def test_pruned_checkpoints_are_passed_over() -> None:
    run_id = training((30, 40, 50, 60))
    with transaction() as session:
        pruned = select(Checkpoint).where(Checkpoint.run_id == run_id, Checkpoint.step.in_((40, 60)))
        for each in session.scalars(pruned):
            each.pruned_at = func.now()
    found = result_of(BY_STEP.finish(start(run_id)))
    assert (found.honest_step, found.hacking_step) == (30, 50)


def test_what_cannot_be_searched_for_is_refused_with_a_message() -> None:
    run_id = training()
    with pytest.raises(InvalidInput, match=r".*") as unknown:
        start(run_id, detector="tampering")
    assert "No rollout with this flag" in unknown.value.fields["detector"]
    with transaction() as session:
        judged(session, session.get_one(Run, run_id), (61,), detector="early_exit")
    with pytest.raises(InvalidInput) as curves:
        start(run_id, detector="early_exit")
    assert "curves" in curves.value.fields["detector"]
    with pytest.raises(InvalidInput) as tasks:
        start(run_id, tasks=2000)
    assert "200 held-out tasks" in tasks.value.fields["tasks"]
    with pytest.raises(Conflict):
        start(training(()))


def test_the_amount_follows_from_the_tasks_there_are() -> None:
    with transaction() as session:
        version = make_environment_version(session, tasks={"train": 100, "heldout": 20, "levels": 1})
        run = make_training(session, version=version)
        judged(session, run, (55, 70))
    settings = read_study(start(run.id, tasks=None, group_size=None)).onset_settings
    assert (settings.tasks, settings.group_size, settings.last_step, settings.hint_step) == (20, 7, 80, 55)


def test_an_evaluation_has_no_onset() -> None:
    with transaction() as session:
        run_id = make_run(session).id
    with pytest.raises(Exception, match="training run"):
        start(run_id)
