"""A sweep in the product's own rows: runs are started, pruned, stopped and resumed, and the sweep ends."""

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.core.queue import SWEEP_JOB
from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.sweeps.sweep import TrialState
from backend.domain.vocabulary import JobStatus, Role, RunKind, RunStatus
from backend.errors import Conflict
from backend.notifications.tables import Notice
from backend.policies.tables import Policy
from backend.projects.tables import Project
from backend.runs.service import finish_run, request_stop
from backend.runs.tables import Run
from backend.sweeps import queries
from backend.sweeps.service import resume_sweep, stop_sweep
from backend.sweeps.tables import Sweep
from backend.sweeps.waking import wake_sweep_of
from tests.factories import make_environment_version, make_member, make_policy
from tests.sweeps.worlds import RATES, complete, evaluate, make_sweep, run_of, trials_of
from workers.tasks import sweeps as job
from workers.tasks.registry import JobContext
from workers.tasks.sweeps import advance


def states(session: Session, sweep: Sweep) -> list[str]:
    return [str(trial.state) for trial in trials_of(session, sweep)]


def waiting_jobs(session: Session) -> int:
    statement = select(func.count(Job.id)).where(Job.name == SWEEP_JOB, Job.status == JobStatus.QUEUED)
    return session.scalar(statement) or 0


def test_trials_are_ordinary_runs_with_their_own_values(session: Session) -> None:
    sweep = make_sweep(session, parallel=2, trials=3)
    advance(session, sweep)
    assert (sweep.status, states(session, sweep)) == (RunStatus.RUNNING, ["running"] * 2)
    for trial in trials_of(session, sweep):
        run = run_of(session, trial)
        assert run.configuration["grpo"]["learning_rate"] == trial.values["grpo.learning_rate"]
        assert run.configuration["grpo"]["steps"] == 40
        assert run.name == f"rates {trial.number}"
        assert run.configuration["without_certificate"]
    advance(session, sweep)
    assert len(trials_of(session, sweep)) == 2, "no more than fit at the same time"
    names = session.scalars(select(Policy.name).where(Policy.name.startswith("rates"))).all()
    assert sorted(names) == ["rates 1", "rates 2"]


def test_the_end_of_a_run_starts_the_next_and_the_last_ends_the_sweep(session: Session) -> None:
    sweep = make_sweep(session, trials=3)
    advance(session, sweep)
    for number, reward in ((1, 0.3), (2, 0.8), (3, 0.5)):
        complete(session, sweep, number, reward / 2, reward)
    assert sweep.status is RunStatus.COMPLETED
    assert states(session, sweep) == ["completed"] * 3
    found = queries.sweep_detail(session, queries.get_sweep(session, sweep.id))
    assert found.best is not None
    assert (found.best.number, found.best.reward, found.best.step) == (2, 0.8, 40)
    assert (found.best.low, found.best.high) == pytest.approx((0.7, 0.9))
    assert (found.done, found.total, found.is_successful) == (3, 3, True)
    (notice,) = session.scalars(select(Notice)).all()
    assert notice.path == f"/sweeps/{sweep.id}", "one notice for the sweep, none for its runs"
    assert "Run 2 is the best: 0.800" in notice.text


def test_a_held_out_reward_wakes_the_sweep_which_stops_a_run_that_does_worse(session: Session) -> None:
    sweep = make_sweep(session, trials=10, startup_trials=2)
    advance(session, sweep)
    complete(session, sweep, 1, 0.5, 0.6)
    complete(session, sweep, 2, 0.6, 0.7)
    session.query(Job).delete()
    trial = trials_of(session, sweep)[2]
    run = evaluate(session, trial, {20: 0.1})
    wake_sweep_of(session, run.id)
    wake_sweep_of(session, run.id)
    assert waiting_jobs(session) == 1
    advance(session, sweep)
    assert run.stop_requested_at is not None
    assert trial.state is TrialState.RUNNING, "until the run has saved its state"
    finish_run(session, run, RunStatus.STOPPED, reason="Stopped on request.")
    advance(session, sweep)
    assert trial.state is TrialState.PRUNED
    assert run.reason == trial.reason
    assert "below the median of the finished runs at this step, 0.550" in (run.reason or "")
    assert states(session, sweep) == ["completed", "completed", "pruned", "running"]


def test_stopping_keeps_everything_and_resuming_continues_its_runs(session: Session) -> None:
    actor = make_member(session, Role.TRAINER)
    sweep = make_sweep(session, actor=actor, trials=4, parallel=2)
    advance(session, sweep)
    first, second = trials_of(session, sweep)
    run = evaluate(session, first, {20: 0.4})
    stop_sweep(session, actor, sweep)
    assert run.stop_requested_at is not None
    assert run_of(session, second).status is RunStatus.STOPPED, "it had not begun"
    finish_run(session, run, RunStatus.STOPPED, reason="Stopped on request.")
    advance(session, sweep)
    assert (sweep.status, states(session, sweep)) == (RunStatus.STOPPED, ["stopped", "stopped"])
    assert first.reward == 0.4
    with pytest.raises(Conflict):
        stop_sweep(session, actor, sweep)
    resume_sweep(session, sweep)
    advance(session, sweep)
    assert (sweep.status, states(session, sweep)) == (RunStatus.RUNNING, ["running", "running"])
    assert run.status is RunStatus.QUEUED
    with pytest.raises(Conflict):
        resume_sweep(session, sweep)


def test_a_run_that_a_person_stopped_stays_stopped(session: Session) -> None:
    actor = make_member(session, Role.TRAINER)
    sweep = make_sweep(session, actor=actor, trials=2)
    advance(session, sweep)
    run = run_of(session, trials_of(session, sweep)[0])
    request_stop(session, actor, run)
    advance(session, sweep)
    assert states(session, sweep) == ["stopped", "running"]
    stop_sweep(session, actor, sweep)
    resume_sweep(session, sweep)
    advance(session, sweep)
    assert states(session, sweep) == ["stopped", "running"]


def test_a_killed_worker_leaves_no_half_trial(session: Session) -> None:
    sweep = make_sweep(session, trials=3, parallel=2)
    nested = session.begin_nested()
    advance(session, sweep)
    started = [trial.run_id for trial in trials_of(session, sweep)]
    nested.rollback()  # its transaction never committed
    session.refresh(sweep)
    assert trials_of(session, sweep) == []
    assert session.scalar(select(func.count(Run.id))) == 0
    advance(session, sweep)
    assert [trial.run_id for trial in trials_of(session, sweep)] == started, "the same runs, with the same ids"
    advance(session, sweep)
    assert len(trials_of(session, sweep)) == 2


def test_a_run_that_cannot_start_is_a_failed_trial_with_the_reason(session: Session) -> None:
    space = {"grpo.tasks_per_step": [1, 2, 3], "grpo.micro_batches": [1, 16, 24]}
    sweep = make_sweep(session, space, sampler="random", trials=9, parallel=9)
    advance(session, sweep)
    failed = [trial for trial in trials_of(session, sweep) if trial.state is TrialState.FAILED]
    assert 1 <= len(failed) <= 5
    assert all("cannot be divided into" in (trial.reason or "") for trial in failed)
    assert len(trials_of(session, sweep)) == 9
    of_training = select(func.count(Run.id)).where(Run.kind == RunKind.TRAINING)
    assert session.scalar(of_training) == 9 - len(failed)


def test_a_sweep_whose_first_runs_all_fail_ends(session: Session) -> None:
    sweep = make_sweep(session, trials=20)
    advance(session, sweep)
    for number in (1, 2, 3):
        run = evaluate(session, trials_of(session, sweep)[number - 1], {})
        finish_run(session, run, RunStatus.FAILED, reason="The model has no chat template.")
        advance(session, sweep)
    assert sweep.status is RunStatus.FAILED
    assert sweep.reason == "The first 3 runs failed. The last one: The model has no chat template."
    resume_sweep(session, sweep)
    advance(session, sweep)
    assert states(session, sweep) == ["running", "failed", "failed"], "one at a time"


def test_limits_of_steps_and_hours_end_the_sweep_after_the_runs_in_progress(session: Session) -> None:
    version = make_environment_version(session)
    sweep = make_sweep(
        session, version=version, configuration={"grpo": {"steps": 40}, "sft": {"steps": 10}}, max_steps=120
    )
    advance(session, sweep)
    complete(session, sweep, 1, 0.1, 0.2)
    assert states(session, sweep) == ["completed", "running"]
    complete(session, sweep, 2, 0.1, 0.2)
    assert sweep.status is RunStatus.COMPLETED
    assert sweep.reason == "The next run would exceed the limit of 120 training steps."
    timed = make_sweep(session, version=version, max_hours=1e-9, name="timed")
    advance(session, timed)
    complete(session, timed, 1, 0.3)
    assert (timed.status, timed.reason) == (RunStatus.COMPLETED, "The limit of 1e-09 hours of training was reached.")


def test_a_taken_name_and_a_removed_person_are_no_dead_end(session: Session) -> None:
    sweep = make_sweep(session, trials=1)
    make_policy(session, "rates 1")
    advance(session, sweep)
    assert states(session, sweep) == ["running"]
    orphan = make_sweep(session, name="orphan")
    orphan.created_by = None
    session.flush()
    with pytest.raises(Conflict, match="was removed"):
        advance(session, orphan)


def test_runs_belong_to_the_project_of_the_sweep(session: Session) -> None:
    secret = Project(name="Secret", is_restricted=True)
    session.add(secret)
    session.flush()
    sweep = make_sweep(session)
    sweep.project_id = secret.id
    session.flush()
    advance(session, sweep)
    run = run_of(session, trials_of(session, sweep)[0])
    assert run.project_id == secret.id
    assert session.get_one(Policy, run.policy_id).project_id == secret.id


@pytest.mark.usefixtures("committed_database")
def test_the_job_itself_runs_and_records_what_it_cannot_do() -> None:
    with transaction() as session:
        sweep_id = make_sweep(session, RATES, trials=1).id
    context = JobContext(sweep_id, None, {"sweep_id": str(sweep_id)}, 1)
    job.run(context)
    with transaction() as session:
        sweep = session.get_one(Sweep, sweep_id)
        assert states(session, sweep) == ["running"]
        sweep.created_by = None
    job.run(context)
    with transaction() as session:
        sweep = session.get_one(Sweep, sweep_id)
        assert (sweep.status, sweep.reason) == (
            RunStatus.FAILED,
            "The person who started this sweep was removed. Start a new sweep.",
        )
        sweep.status = RunStatus.RUNNING
        job.give_up(session, context, "It crashed.")
        assert (sweep.status, sweep.reason) == (RunStatus.FAILED, "It crashed.")
    job.run(JobContext(sweep_id, None, {"sweep_id": "00000000-0000-4000-8000-00000000dead"}, 1))
