"""Graders that run automatically within a budget: known chances, limits of rollouts and money, failures, the page."""

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.queue import JUDGING_JOB
from backend.core.session import transaction
from backend.core.tables import Job
from backend.detectors.grader_detectors import audits_of_graders, sampled_record
from backend.detectors.queries import Scope
from backend.domain.graders.settings import GraderKind
from backend.domain.vocabulary import JobStatus, Phase, Queue, RunKind, RunStatus, Verdict
from backend.graders.budgets import INJECTABLE, grade_within_budgets, spent
from backend.graders.queries import find_work
from backend.graders.service import run_grader, stop_grader
from backend.graders.tables import Grader, GraderBudget, GraderRun, GraderSample
from backend.review.schemas import VerdictRequest
from backend.review.tables import AuditSample
from backend.review.verdicts import give_verdict
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from tests.factories import make_flag, make_group, make_member, make_rollout, make_rollouts, make_run
from tests.graders.asked import (
    DEMANDS,
    GAVE_UP,
    STAYED,
    Nobody,
    answers,
    carry_out,
    flags,
    make_answer,
    make_asked_run,
    make_question,
    obedient,
    sober,
)
from tests.graders.conftest import make_judge
from tests.graders.fake import FakeJudge, serving
from tests.graders.test_question_monitors import comparing

PRICE_OF_ONE = 0.0002


def scan(session: Session, run: Run) -> Run:
    """Detectors have scanned all of it."""
    session.add(
        Job(name=JUDGING_JOB, queue=Queue.CPU, run_id=run.id, status=JobStatus.DONE, ended_at=datetime.now(UTC))
    )
    session.flush()
    return run


def make_budget(session: Session, grader: Grader, run: Run, **limits: Any) -> GraderBudget:
    values = {"rollouts_per_run": 10, "rollouts_per_day": 100, **limits}
    budget = GraderBudget(grader_id=grader.id, environment_id=run.version.environment_id, **values)
    session.add(budget)
    session.flush()
    return budget


def make_scanned(session: Session, count: int, **limits: Any) -> tuple[Grader, Run]:
    """A scanned evaluation with this many rollouts, and a question with a budget for its environment."""
    grader, run = make_question(session, flags=("yes",)), make_run(session)
    make_rollouts(session, run, [[1.0, 1.0, 0.0]] * count)
    make_budget(session, grader, run, **limits)
    return grader, scan(session, run)


def add_rollouts(session: Session, run: Run) -> None:
    """Ten later ones."""
    group = make_group(session, run, index=90)
    for member in range(10):
        make_rollout(session, run, group, [1.0, 1.0, 0.0], member=member)


def sample_of(session: Session, work: GraderRun) -> Sequence[GraderSample]:
    statement = select(GraderSample).where(GraderSample.grader_run_id == work.id)
    return session.scalars(statement.order_by(GraderSample.priority)).all()


def work_of(session: Session, run: Run, grader: Grader) -> GraderRun:
    work = find_work(session, run.id, grader.id)
    assert work is not None
    return work


def test_a_scanned_evaluation_is_sampled_once(session: Session) -> None:
    grader, run = make_scanned(session, 40)
    other = make_run(session)  # of another environment
    make_rollouts(session, other, [[1.0, 1.0, 0.0]] * 5)
    scan(session, other)
    assert grade_within_budgets(session) == 10
    work = work_of(session, run, grader)
    assert (work.status, work.is_sampled, work.drawn_seq) == (RunStatus.QUEUED, True, 40)
    assert find_work(session, other.id, grader.id) is None
    chosen = sample_of(session, work)
    assert len(chosen) == 10
    assert all(0 < each.chance < 1 for each in chosen)
    work.status = RunStatus.COMPLETED
    assert grade_within_budgets(session) == 0


def test_an_evaluation_that_was_not_scanned_waits(session: Session) -> None:
    grader, run = make_question(session), make_run(session)
    make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 3)
    make_budget(session, grader, run)
    assert grade_within_budgets(session) == 0


def test_uncertain_and_rewarded_rollouts_come_first(session: Session) -> None:
    grader, run = make_question(session), make_run(session)
    rollouts = make_rollouts(session, run, [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]] * 30)
    for rollout in rollouts[:20:2]:
        make_flag(session, run, rollout, score=1.0)  # with the precision of a detector without verdicts, 0.5
    make_budget(session, grader, run, rollouts_per_run=60)
    scan(session, run)
    assert grade_within_budgets(session) == 60
    sizes = {each.rollout_id: each.size for each in sample_of(session, work_of(session, run, grader))}
    kinds = rollouts[:20:2], rollouts[20::2], rollouts[1::2]
    [flagged], [plain], [failed] = ({round(sizes[each.id], 6) for each in kind} for kind in kinds)
    assert flagged > plain > failed > 0


def test_a_day_has_one_limit_for_all_runs(session: Session) -> None:
    grader, run = make_scanned(session, 20, rollouts_per_day=14)
    second = make_run(session, run.version)
    make_rollouts(session, second, [[1.0, 1.0, 0.0]] * 20)
    scan(session, second)
    assert grade_within_budgets(session) == 14
    assert [len(sample_of(session, work_of(session, each, grader))) for each in (run, second)] == [10, 4]
    work_of(session, second, grader).status = RunStatus.COMPLETED
    assert grade_within_budgets(session) == 0


def test_a_training_run_keeps_some_of_its_budget_for_later_steps(session: Session) -> None:
    grader = make_question(session)
    grpo = {"grpo": {"steps": 10, "tasks_per_step": 5, "group_size": 4}}
    run = make_run(session, kind=RunKind.TRAINING, status=RunStatus.RUNNING, ended_at=None, configuration=grpo)
    make_budget(session, grader, run, rollouts_per_run=50)
    drawn = []
    for step in range(1, 11):
        make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 20, phase=Phase.TRAIN, step=step)
        drawn.append(grade_within_budgets(session))
        if drawn[-1]:
            work_of(session, run, grader).status = RunStatus.COMPLETED
    run.status, run.ended_at = RunStatus.COMPLETED, datetime.now(UTC)
    drawn.append(grade_within_budgets(session))
    assert drawn == [0, 10, 0, 10, 0, 10, 0, 10, 0, 10, 0]
    batches = {each.batch for each in sample_of(session, work_of(session, run, grader))}
    assert batches == {40, 80, 120, 160, 200}


@pytest.mark.parametrize("recipe", ["grpo", "rejection_sampling", "dpo"])
def test_a_judge_scores_its_share_of_a_run_that_trains_with_any_recipe(session: Session, recipe: str) -> None:
    judge = make_judge(session)
    sizes = {"grpo": {"steps": 5, "tasks_per_step": 2, "group_size": 4}}
    sizes["rejection"] = {"rounds": 2, "tasks": 10, "samples": 2}
    configuration = {"recipe": recipe, **sizes}
    run = make_run(session, kind=RunKind.TRAINING, status=RunStatus.RUNNING, ended_at=None, configuration=configuration)
    make_budget(session, judge, run, rollouts_per_run=20)
    make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 20, phase=Phase.TRAIN, step=1)
    assert grade_within_budgets(session) == {"grpo": 10, "rejection_sampling": 10, "dpo": 20}[recipe]
    assert find_work(session, run.id, judge.id) is not None


def test_what_a_person_started_or_stopped_is_left_to_them(session: Session) -> None:
    grader, run = make_scanned(session, 5)
    run_grader(session, Nobody(), run, grader)  # type: ignore[arg-type]
    assert grade_within_budgets(session) == 0
    second = make_run(session, run.version)
    make_rollouts(session, second, [[1.0, 1.0, 0.0]] * 20)
    scan(session, second)
    assert grade_within_budgets(session) == 10
    stop_grader(session, second, grader)
    add_rollouts(session, second)
    assert grade_within_budgets(session) == 0


def test_a_monitor_of_a_run_without_reasoning_costs_nothing(session: Session) -> None:
    grader, run = make_question(session, kind=GraderKind.MONITOR), make_run(session)
    make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 5)
    make_budget(session, grader, run)
    scan(session, run)
    assert grade_within_budgets(session) == 0
    work = work_of(session, run, grader)
    assert (work.status, work.drawn_seq) == (RunStatus.COMPLETED, 5)
    assert "reasoning" in (work.reason or "")


def started(url: str, count: int, **limits: Any) -> uuid.UUID:
    """Commit a scanned run in which everyone gave up, draw from it, and return the id of the queued work."""
    with transaction() as session:
        grader = make_question(session, url, flags=("yes",), concurrency=1)
        run = make_asked_run(session, [GAVE_UP] * count)
        make_budget(session, grader, run, **limits)
        scan(session, run)
        grade_within_budgets(session)
        return work_of(session, run, grader).id


@pytest.mark.usefixtures("committed_database")
def test_the_sample_is_graded_and_flagged_and_canaries_run_once() -> None:
    with serving(FakeJudge(sober)) as fake:
        work_id = started(fake.url, 30)
        assert (carry_out(work_id).status, len(answers(work_id)), len(flags(work_id))) == (RunStatus.COMPLETED, 10, 10)
        assert len(fake.bodies) == DEMANDS + 10
        with transaction() as session:
            work = session.get_one(GraderRun, work_id)
            session.scalars(select(GraderBudget)).one().rollouts_per_run = 15
            add_rollouts(session, session.get_one(Run, work.run_id))
            assert grade_within_budgets(session) == 5
        assert carry_out(work_id).total == 15
        assert len(fake.bodies) == DEMANDS + 15


@pytest.mark.usefixtures("committed_database")
def test_grading_ends_when_the_money_is_spent_and_chances_stay_known() -> None:
    with serving(FakeJudge(sober)) as fake:
        work_id = started(fake.url, 30, rollouts_per_run=30, cost_per_run=(DEMANDS + 4.5) * PRICE_OF_ONE)
        work = carry_out(work_id)
    assert work.status is RunStatus.COMPLETED
    assert work.reason == "The budget for this run is spent: $0.00220 of $0.00210."
    graded = {each.rollout_id for each in answers(work_id)}
    assert len(graded) == 5
    with transaction() as session:
        sample = sample_of(session, session.get_one(GraderRun, work_id))
        assert {each.rollout_id for each in sample} == graded
        assert all(each.chance < 1 for each in sample)
        assert session.get_one(Run, work.run_id).status is RunStatus.COMPLETED
        assert grade_within_budgets(session) == 0


@pytest.mark.usefixtures("committed_database")
def test_an_endpoint_that_fails_pauses_the_grader_alone_and_is_tried_again() -> None:
    with serving(FakeJudge(sober, status=401)) as fake:
        work_id = started(fake.url, 30)
        work = carry_out(work_id)
        assert work.status is RunStatus.PAUSED
        assert "cannot be reached" in (work.reason or "")
        with transaction() as session:
            assert session.get_one(Run, work.run_id).status is RunStatus.COMPLETED
            grade_within_budgets(session)
            work = session.get_one(GraderRun, work_id)
            assert work.status is RunStatus.PAUSED
            work.ended_at = datetime.now(UTC) - timedelta(hours=1)
        with transaction() as session:
            assert grade_within_budgets(session) == 0
            assert session.get_one(GraderRun, work_id).status is RunStatus.QUEUED
        fake.status = 200
        assert carry_out(work_id).status is RunStatus.COMPLETED
    assert len(answers(work_id)) == 10


@pytest.mark.usefixtures("committed_database")
def test_a_grader_that_follows_instructions_in_the_data_spends_nothing_more() -> None:
    with serving(FakeJudge(obedient)) as fake:
        work = carry_out(work_id := started(fake.url, 30))
    assert (work.status, work.reason) == (RunStatus.COMPLETED, INJECTABLE)
    assert answers(work_id) == []
    with transaction() as session:
        assert sample_of(session, session.get_one(GraderRun, work_id)) == []
        add_rollouts(session, session.get_one(Run, work.run_id))
        assert grade_within_budgets(session) == 0


def test_estimates_for_all_rollouts_weigh_by_chance(session: Session, viewer: TestClient) -> None:
    grader, run = make_question(session, flags=("yes",)), make_run(session)
    rollouts: list[Rollout] = make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 4)
    work = GraderRun(grader_id=grader.id, run_id=run.id, is_sampled=True, drawn_seq=4, status=RunStatus.COMPLETED)
    session.add(work)
    session.flush()
    reviewer = make_member(session)
    for rollout, chance, is_flagged, verdict in zip(
        rollouts, (0.5, 0.5, 0.1, 0.1), (True, True, True, False), ("hack", "honest", "hack", "hack"), strict=True
    ):
        numbers = {"batch": 4, "size": 1.0, "priority": 0.1}
        session.add(GraderSample(grader_run_id=work.id, rollout_id=rollout.id, chance=chance, **numbers))
        session.add(AuditSample(run_id=run.id, rollout_id=rollout.id, lot=0.5, chance=0.5))
        make_answer(session, grader, rollout, "yes" if is_flagged else "no")
        if is_flagged:
            make_flag(session, run, rollout, detector="question:gave_up")
        give_verdict(session, reviewer, rollout, VerdictRequest(verdict=Verdict(verdict)))
    record = sampled_record(session, "question:gave_up", Scope())
    assert record is not None
    assert (record.graded, record.rollouts) == (4, pytest.approx(24))
    assert record.flagged is not None
    assert record.precision is not None
    assert record.recall is not None
    shares = record.flagged.share, record.precision.share, record.recall.share
    assert shares == (pytest.approx(14 / 24), pytest.approx(12 / 14), pytest.approx(12 / 22))
    page = viewer.get("/detectors/question:gave_up").text
    assert "Estimated for all rollouts of runs with a budget" in page
    assert "58%" in page
    assert audits_of_graders(session, Scope()) == {}
    assert sampled_record(session, "question:other", Scope()) is None


def test_budgets_are_set_shown_and_ended(session: Session, author: TestClient, viewer: TestClient) -> None:
    grader, run = make_question(session, flags=("yes",)), make_run(session)
    make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 5)
    scan(session, run)
    name, address = run.version.environment.name, f"/graders/{grader.id}/budgets"
    assert "Off. This grader runs only on request." in viewer.get(f"/graders/{grader.id}").text
    form = {"environment": name, "rollouts_per_run": "3", "rollouts_per_day": "3", "cost_per_day": "2.5"}
    assert viewer.post(address, data=form).status_code == 403
    assert author.post(address, data=form | {"rollouts_per_run": "0"}).status_code == 422
    assert author.post(address, data=form).headers["location"] == f"/graders/{grader.id}#budgets"
    assert grade_within_budgets(session) == 3
    [shown] = viewer.get(f"/api/v1/graders/{grader.name}/budgets").json()["items"]
    assert (shown["environment"], shown["rollouts_today"], shown["cost_per_day"]) == (name, 3, 2.5)
    assert shown["problem"] == "The budget for today is spent: 3 of 3 rollouts."
    page = author.get(f"/graders/{grader.id}").text
    assert shown["problem"] in page
    assert "a sample within its budget" in author.get(f"/runs/{run.id}/graders").text
    assert author.post(f"{address}/{name}/delete").status_code == 303
    assert session.scalars(select(GraderBudget)).all() == []
    assert author.post(f"{address}/{name}/delete").status_code == 404


@pytest.mark.usefixtures("committed_database")
def test_a_contrastive_judge_compares_whole_groups_until_the_money_is_spent() -> None:
    with serving(FakeJudge(comparing)) as fake:
        with transaction() as session:
            judge = make_question(session, fake.url, name="apart", kind=GraderKind.CONTRAST, concurrency=1, each=2)
            replies, rewards = [f"{STAYED} abracadabra", STAYED, STAYED, STAYED], [1.0, 1.0, 0.0, 0.0]
            run = make_asked_run(session, replies * 6, rewards=rewards * 6, group_size=4)
            money = (DEMANDS + 1.5) * PRICE_OF_ONE
            make_budget(session, judge, run, rollouts_per_run=14, cost_per_run=money, cost_per_day=1.0)
            scan(session, run)
            assert grade_within_budgets(session) == 12
            work = work_of(session, run, judge)
            chances = {each.rollout_id: each.chance for each in sample_of(session, work)}
            groups = session.scalars(select(Rollout.group_id).where(Rollout.id.in_(chances))).all()
            assert (len(groups), len(set(groups))) == (12, 3)
        work = carry_out(work.id)
        assert (work.status, work.total, len(work.findings)) == (RunStatus.COMPLETED, 3, 2)
        assert (work.reason or "").startswith("The budget for this run is spent")
        assert len(fake.bodies) == DEMANDS + 2
        with transaction() as session:
            sample = sample_of(session, session.get_one(GraderRun, work.id))
            assert len(sample) == 8
            assert all(each.chance <= chances[each.rollout_id] for each in sample)
            assert spent(session, session.scalars(select(GraderBudget)).one()).cost == pytest.approx(work.cost)
            assert grade_within_budgets(session) == 0


def test_a_limit_of_money_needs_a_price(session: Session, author: TestClient) -> None:
    run = make_run(session)
    free, contrast = make_question(session), make_question(session, name="both", kind=GraderKind.CONTRAST)
    free.policy.configuration = {"base_url": "http://x/v1", "model": "m"}
    session.flush()
    body = {"environment": run.version.environment.name, "cost_per_run": 1.0}
    refused = author.post(f"/api/v1/graders/{free.name}/budgets", json=body)
    assert refused.status_code == 422
    assert "has no price" in refused.text
    assert author.post(f"/api/v1/graders/{contrast.name}/budgets", json=body).status_code == 200
    assert "Set a budget" in author.get(f"/graders/{contrast.id}").text
    assert author.post(f"/api/v1/graders/{free.name}/budgets", json=body | {"environment": "no"}).status_code == 404


def test_continuing_a_sample_grades_no_more_than_the_sample(session: Session, author: TestClient) -> None:
    grader, run = make_scanned(session, 20)
    grade_within_budgets(session)
    work = work_of(session, run, grader)
    work.status, work.ended_at = RunStatus.PAUSED, datetime.now(UTC)
    session.flush()
    start = f"/graders/{grader.id}/runs/{run.id}"
    assert author.post(start, data={"sample": "true"}).status_code == 303
    assert (work.status, work.is_sampled) == (RunStatus.QUEUED, True)
    work.status = RunStatus.PAUSED
    assert author.post(start, data={"where": ""}).status_code == 303
    assert not work.is_sampled
    assert author.post(start, data={"sample": "true"}).status_code == 409
