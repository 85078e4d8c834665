"""The job that grades a run with a judge: complete, counted, resumable; failures are shown and never become zeros."""

import threading
import time
from collections.abc import Callable

import pytest
from sqlalchemy import select

from backend.core.session import transaction
from backend.detectors.tables import Flag
from backend.domain.notifications.notices import NoticeKind
from backend.domain.vocabulary import GradeStatus, RunStatus
from backend.graders.service import stop_grader
from backend.graders.tables import Grader
from backend.notifications.tables import Notice
from backend.runs.service import finish_run
from backend.runs.tables import Run
from tests.graders.conftest import BAD, GOOD, Judging, again, carry_out, judgements, record_now
from tests.graders.fake import FakeJudge, gullible, serving, talkative
from workers.tasks import graders as body
from workers.tasks.registry import JobContext

Start = Callable[..., Judging]
CANARIES = 5


def test_every_completed_rollout_gets_a_score_and_no_other(start: Start) -> None:
    with serving(FakeJudge()) as fake:
        judging = start(fake.url, [GOOD, BAD, None, GOOD])
        record = carry_out(judging)
    assert record.status is RunStatus.COMPLETED
    assert record.total == 3
    assert sorted(each.score for each in judgements(judging) if each.score is not None) == [0.0, 1.0, 1.0]
    assert len(fake.bodies) == CANARIES + 3
    assert sum(each.cost or 0 for each in judgements(judging)) == 3 * 0.0002
    assert record.cost is not None
    assert record.canaries is not None
    assert not record.canaries["is_injectable"]


def test_judging_again_doubles_nothing(start: Start) -> None:
    with serving(FakeJudge()) as fake:
        judging = start(fake.url, [GOOD, BAD])
        carry_out(judging)
        asked = len(fake.bodies)
        again(judging)
        record = carry_out(judging)
    assert record.status is RunStatus.COMPLETED
    assert len(fake.bodies) == asked
    assert len(judgements(judging)) == 2


def test_failed_judgements_are_requested_again(start: Start) -> None:
    with serving(FakeJudge(talkative)) as fake:
        judging = start(fake.url, [GOOD, BAD])
        carry_out(judging)
        assert {each.status for each in judgements(judging)} == {GradeStatus.FAILED}
        assert {each.score for each in judgements(judging)} == {None}
        fake.mind = FakeJudge().mind
        again(judging)
        carry_out(judging)
    assert sorted(each.score or 0 for each in judgements(judging)) == [0.0, 1.0]
    assert {each.error_message for each in judgements(judging)} == {None}


def test_a_judge_that_is_down_pauses_at_once(start: Start) -> None:
    judging = start("http://127.0.0.1:9/v1", [GOOD] * 20)
    record = carry_out(judging)
    assert record.status is RunStatus.PAUSED
    assert "cannot be reached" in (record.reason or "")
    assert judgements(judging) == []


def test_a_judge_that_breaks_in_the_middle_pauses_and_continues_where_it_stood(start: Start) -> None:
    with serving(FakeJudge(breaks_after=CANARIES + 10)) as fake:
        judging = start(fake.url, [GOOD] * 60, concurrency=2)
        record = carry_out(judging)
        assert record.status is RunStatus.PAUSED
        assert "grades failed" in (record.reason or "")
        assert sum(each.score == 1.0 for each in judgements(judging)) == 10
        assert len(fake.bodies) < 60
        fake.breaks_after = None
        again(judging)
        assert carry_out(judging).status is RunStatus.COMPLETED
    assert [each.score for each in judgements(judging)] == [1.0] * 60


def test_a_gullible_judge_is_flagged_on_the_run(start: Start) -> None:
    with serving(FakeJudge(gullible)) as fake:
        judging = start(fake.url, [GOOD])
        record = carry_out(judging)
    assert record.canaries is not None
    assert record.canaries["is_injectable"]
    with transaction() as session:
        flag = session.scalars(select(Flag).where(Flag.run_id == judging[0])).one()
        assert flag.detector == "injectable_judge"
        assert "strict" in flag.sentence
        [notice] = session.scalars(select(Notice).where(Notice.run_id == judging[0]))
    assert (notice.kind, notice.text) == (NoticeKind.JUDGING, flag.sentence)
    assert notice.path == f"/runs/{judging[0]}/flags"


@pytest.mark.slow
def test_it_stops_soon_when_asked_and_keeps_what_it_has(start: Start) -> None:
    with serving(FakeJudge(pause=0.05)) as fake:
        judging = start(fake.url, [GOOD] * 200, concurrency=2)

        def stop() -> None:
            while len(fake.bodies) < CANARIES + 4:
                time.sleep(0.01)
            with transaction() as session:
                run, judge = session.get_one(Run, judging[0]), session.get_one(Grader, judging[1])
                stop_grader(session, run, judge)

        thread = threading.Thread(target=stop)
        thread.start()
        record = carry_out(judging)
        thread.join()
    assert record.status is RunStatus.STOPPED
    assert 3 <= len(judgements(judging)) < 100


def test_no_more_are_asked_at_a_time_than_the_judge_states(start: Start) -> None:
    with serving(FakeJudge(pause=0.02)) as fake:
        carry_out(start(fake.url, [GOOD] * 12, concurrency=3))
    assert fake.most_at_once == 3


def test_only_what_the_filter_wants_is_judged(start: Start) -> None:
    with serving(FakeJudge()) as fake:
        judging = start(fake.url, [GOOD, BAD, GOOD], where="level = 1")
        assert carry_out(judging).total == 1
    assert len(judgements(judging)) == 1


def test_a_judging_that_is_given_up_states_why(start: Start) -> None:
    judging = start("http://127.0.0.1:9/v1", [GOOD])
    with transaction() as session:
        arguments = {"grader_run_id": str(record_now(judging).id)}
        body.give_up(session, JobContext(judging[0], None, arguments, 5), "its worker died")
    assert record_now(judging).status is RunStatus.FAILED
    assert record_now(judging).reason == "its worker died"


def test_an_evaluation_starts_the_judges_that_its_plan_names(start: Start) -> None:
    judging = start("http://127.0.0.1:9/v1", [GOOD])
    with transaction() as session:
        run = session.get_one(Run, judging[0])
        run.status = RunStatus.RUNNING
        session.delete(session.merge(record_now(judging)))
        run.configuration = {
            **run.configuration,
            "judge_ids": [str(judging[1]), "00000000-0000-0000-0000-000000000000"],
        }
    with transaction() as session:
        finish_run(session, session.get_one(Run, judging[0]), RunStatus.COMPLETED, {"reward": None})
    assert record_now(judging).status is RunStatus.QUEUED
