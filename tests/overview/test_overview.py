"""The front page and the settings."""

from datetime import UTC, datetime, timedelta

from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.core.queue import enqueue
from backend.core.tables import Worker
from backend.domain.vocabulary import Queue, RunStatus
from tests import factories
from tests.statements import statements_of


def test_a_fresh_installation_shows_the_next_step_next(viewer: TestClient) -> None:
    text = viewer.get("/").text
    assert "Write an environment" in text
    assert "Nothing is running." in text


def test_the_first_steps_lead_no_one_to_a_page_that_is_closed_to_them(viewer: TestClient, trainer: TestClient) -> None:
    for closed in ("/environments/new", "/evaluations/new", "/training/new"):
        assert f'href="{closed}"' not in viewer.get("/").text
        assert f'href="{closed}"' in trainer.get("/").text


def test_it_shows_what_runs_what_waits_and_what_is_over(viewer: TestClient, session: Session) -> None:
    over = factories.make_run(session, name="yesterday's evaluation", summary={"reward": {"mean": 0.625}})
    progress = {"phase": "play", "done": 30, "total": 200}
    factories.make_run(session, name="today's run", status=RunStatus.RUNNING, progress=progress, ended_at=None)
    factories.make_flag(session, over, None, sentence="The reward jumped.")
    text = viewer.get("/").text
    assert "First steps" not in text
    for expected in ("today&#39;s run", "30 / 200", "yesterday&#39;s evaluation", "0.625", "The reward jumped."):
        assert expected in text


def test_odd_figures_do_not_break_it(viewer: TestClient, session: Session) -> None:
    for summary in ({}, {"reward": None}, {"reward": {}}, {"reward": 0.5}, {"reward": "high"}):
        factories.make_run(session, summary=summary)
    factories.make_run(session, status=RunStatus.RUNNING, progress={"done": 1}, ended_at=None)
    assert viewer.get("/").status_code == 200


def test_work_without_a_worker_is_reported(viewer: TestClient, session: Session) -> None:
    enqueue(session, "evaluations.run", queue=Queue.GPU)
    session.flush()
    assert "no worker serves it" in viewer.get("/").text
    session.add(Worker(name="w", queues=["gpu"], capabilities={}))
    session.flush()
    assert "no worker serves it" not in viewer.get("/").text


def test_the_settings_name_launcher_and_silent_workers(viewer: TestClient, session: Session) -> None:
    session.add(Worker(name="good", queues=["cpu"], capabilities={"launcher": "jail", "cpus": 2, "memory_mb": 1000}))
    session.add(Worker(name="gone", queues=["gpu"], seen_at=datetime.now(UTC) - timedelta(minutes=5)))
    session.flush()
    text = viewer.get("/settings").text
    assert 'data-state="passed">jail' in text
    assert "silent" in text


def test_the_front_page_asks_the_database_a_bounded_number_of_times(viewer: TestClient, session: Session) -> None:
    for _ in range(5):
        run = factories.make_run(session)
        factories.make_flag(session, run, None)
    with statements_of(session) as sent:
        viewer.get("/")
    assert sum(each.lstrip().upper().startswith("SELECT") for each in sent) <= 28
