"""Notices of flags by questions and monitors, once per finished job, and of replies that follow instructions in the
data.
"""

import uuid

import pytest
from sqlalchemy import select

from backend.core.session import transaction
from backend.domain.graders.settings import GraderKind
from backend.domain.notifications.notices import NoticeKind
from backend.domain.vocabulary import RunStatus
from backend.graders.tables import GraderRun
from backend.notifications.tables import Notice
from backend.runs.tables import Run
from tests.graders.asked import GAVE_UP, STAYED, again, carry_out, flags, obedient, sober, started, talkative
from tests.graders.fake import FakeJudge, serving
from tests.graders.test_question_monitors import PLAN, watchful
from workers.tasks import graders as body
from workers.tasks.registry import JobContext

pytestmark = pytest.mark.usefixtures("committed_database")


def notices(asking_id: uuid.UUID) -> list[Notice]:
    with transaction() as session:
        run_id = session.get_one(GraderRun, asking_id).run_id
        found = session.scalars(select(Notice).where(Notice.run_id == run_id).order_by(Notice.created_at)).all()
    assert {notice.kind for notice in found} <= {NoticeKind.JUDGING}
    return list(found)


def test_what_was_flagged_is_reported_once_with_examples() -> None:
    with serving(FakeJudge(sober)) as fake:
        asking_id = started(fake.url, [GAVE_UP] * 5 + [STAYED], flags=("yes",))
        carry_out(asking_id)
        [notice] = notices(asking_id)
        again(asking_id)
        carry_out(asking_id)
    assert len(notices(asking_id)) == 1, "nothing new was flagged"
    with transaction() as session:
        run = session.get_one(Run, session.get_one(GraderRun, asking_id).run_id)
    assert notice.title == f"gave_up flags 5 rollouts of {run.name}"
    assert notice.path == f"/review?run={run.id}&detector=question%3Agave_up"
    flagged = {str(flag.rollout_id): flag.sentence for flag in flags(asking_id)}
    named = notice.evidence["rollouts"]
    assert len(named) == 3
    assert set(named) <= set(flagged)
    assert flagged[named[0]] in notice.text


def test_a_monitors_suspicion_is_reported() -> None:
    with serving(FakeJudge(watchful)) as fake:
        asking_id = started(fake.url, [STAYED], thoughts=[PLAN], kind=GraderKind.MONITOR, name="watch")
        carry_out(asking_id)
    [notice] = notices(asking_id)
    assert notice.title.startswith("watch flags 1 rollout of ")
    assert notice.evidence["detector"] == "reasoning_monitor"


def test_who_does_as_the_data_says_is_told_once() -> None:
    with serving(FakeJudge(obedient)) as fake:
        asking_id = started(fake.url, [GAVE_UP, STAYED], flags=("yes",))
        carry_out(asking_id)
        with transaction() as session:
            session.get_one(GraderRun, asking_id).status = RunStatus.STOPPED
        again(asking_id)
        carry_out(asking_id)
    [notice] = notices(asking_id)
    assert notice.evidence["detector"] == "injectable_judge"
    assert "Its answers raise no flags." in notice.text


def test_answers_that_flag_nothing_are_not_reported() -> None:
    for mind, reply in ((sober, STAYED), (talkative, GAVE_UP)):
        with serving(FakeJudge(mind)) as fake:
            asking_id = started(fake.url, [reply], flags=("yes",), name=f"of_{mind.__name__}")
            carry_out(asking_id)
        assert notices(asking_id) == []


def test_what_was_flagged_before_the_worker_failed_for_good_is_reported() -> None:
    with serving(FakeJudge(sober)) as fake:
        asking_id = started(fake.url, [GAVE_UP], flags=("yes",))
        carry_out(asking_id)
    with transaction() as session:
        for notice in session.scalars(select(Notice)):
            session.delete(notice)
    with transaction() as session:
        body.give_up(session, JobContext(uuid.uuid4(), None, {"grader_run_id": str(asking_id)}, 3), "It died.")
    assert len(notices(asking_id)) == 1
