"""The safeguards report of a run lists detectors, people, alarms and changes; the team page lists the backlog."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from backend.detectors.tables import DetectorSetting, Flag
from backend.domain.vocabulary import AlarmAction, AlarmAnswer, CheckStatus, Phase, RunKind
from backend.environments.tables import Certificate
from backend.review import queue
from backend.review.tables import AuditDraw, AuditSample
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from backend.training.tables import Alarm, SettingChange
from tests import factories


@pytest.fixture
def run(session: Session) -> Run:
    """A training run with ten rollouts at step 4: two flagged, two in the audit sample."""
    version = factories.make_environment_version(session, checks={"floor_maximum": 0.2})
    run = factories.make_run(session, version, kind=RunKind.TRAINING, name="Night run")
    rollouts = factories.make_rollouts(session, run, [[1.0, 0.0, 0.0]] * 10, phase=Phase.TRAIN, step=4)
    check = factories.make_run(session, version, kind=RunKind.CHECK)
    results = [{"check": "starts", "status": "passed"}, {"check": "fixtures_hold", "status": "failed"}]
    session.add(Certificate(version_id=version.id, run_id=check.id, status=CheckStatus.FAILED, results=results))
    for rollout in rollouts[:2]:
        factories.make_flag(session, run, rollout, detector="tampering")
    session.add(AuditDraw(run_id=run.id, seed=1, share=0.2, drawn_seq=10))
    session.add_all(AuditSample(run_id=run.id, rollout_id=each.id, lot=0.5) for each in rollouts[2:4])
    person = factories.make_person(session, name="Grace")
    answered = {"answer": AlarmAnswer.ROLL_BACK, "answered_by": person.id, "answered_at": datetime.now(UTC)}
    alarm = Alarm(run_id=run.id, name="suspicion", step=4, sentence="Tampering.", action=AlarmAction.PAUSE, **answered)
    session.add(alarm)
    session.flush()
    changed = {"name": "grpo.learning_rate", "before": 1e-5, "after": 5e-6, "step": 3}
    session.add(SettingChange(run_id=run.id, alarm_id=alarm.id, **changed))
    session.add(DetectorSetting(environment_id=version.environment_id, detector="gibberish", enabled=False))
    session.flush()
    return run


def _ids(session: Session, table: type[Flag] | type[AuditSample], run: Run) -> list[uuid.UUID]:
    """Rollouts of the run that a table names, in order."""
    return list(session.scalars(select(table.rollout_id).where(table.run_id == run.id).order_by(table.id)))


def test_it_shows_all_of_it(reviewer: TestClient, run: Run, session: Session) -> None:
    flagged, drawn = _ids(session, Flag, run), _ids(session, AuditSample, run)
    reviewer.post(f"/rollouts/{flagged[0]}/verdicts", data={"verdict": "hack"})
    for each in drawn:
        reviewer.post(f"/rollouts/{each}/verdicts", data={"verdict": "honest"})
    told = reviewer.get(f"/api/v1/runs/{run.id}/safeguards").json()
    assert (told["certificate"]["status"], told["certificate"]["failed"]) == ("failed", ["fixtures_hold"])
    assert (told["verdicts"], told["reviewers"], told["rollouts"]) == ({"hack": 1, "honest": 2}, 1, 10)
    (detector,) = told["detectors"]
    assert (detector["id"], detector["flags"], detector["confirmed"], detector["open"]) == ("tampering", 2, 1, 1)
    assert (told["audit"]["unflagged"], told["audit"]["looked_at"], told["audit"]["hacks"]) == (8, 2, 0)
    assert told["fixtures_hack"] == 1
    assert told["reward"]["trained"] == pytest.approx(1.0)
    assert told["reward"]["judged"] < 1.0
    assert told["switched_off"] == ["gibberish"]
    (alarm,) = told["interventions"]
    assert (alarm["action"], alarm["answer"], alarm["answered_by"]) == ("pause", "roll_back", "Grace")
    (change,) = told["changes"]
    assert (change["name"], change["by"]) == ("grpo.learning_rate", "an alarm")
    text = reviewer.get(f"/runs/{run.id}/safeguards").text
    for words in ("Night run", "fixtures_hold", "2 honest, 1 hack", "roll back by Grace", "grpo.learning_rate"):
        assert words in text
    points = reviewer.get(f"/runs/{run.id}/judged.json").json()
    assert points["x"] == [4]
    assert "judged.json" in reviewer.get(f"/runs/{run.id}").text


def test_columns_that_reward_surface_are_named(reviewer: TestClient, run: Run, session: Session) -> None:
    found = {"family": "hedging", "feature": "hedges", "share": 0.72, "low": 0.61, "high": 0.8, "gain": 0.31}
    evidence = {"column": "style", "returns": [found], "window": [1, 4], "rollouts": []}
    factories.make_flag(session, run, detector="column_surface", evidence=evidence, training_step=4)
    (told,) = reviewer.get(f"/api/v1/runs/{run.id}/safeguards").json()["columns"]
    assert told == {"run_id": str(run.id), "run": "Night run", "column": "style", "step": 4, **found} | {
        "environment": run.version.environment.name
    }
    for page in (f"/runs/{run.id}/safeguards", "/detectors/column_surface"):
        text = reviewer.get(page).text
        for words in ("style", "hedging", "72%", "61% to 80%"):
            assert words in text


def test_a_run_that_nobody_judged_says_so(viewer: TestClient, session: Session) -> None:
    run = factories.make_run(session)
    told = viewer.get(f"/api/v1/runs/{run.id}/safeguards").json()
    assert (told["reward"], told["certificate"], told["detectors"]) == (None, None, [])
    text = viewer.get(f"/runs/{run.id}/safeguards").text
    assert "the reward has not been checked" in text
    assert "judged.json" not in viewer.get(f"/runs/{run.id}").text


def test_the_team_sees_what_waits_and_who_judged(reviewer: TestClient, run: Run, session: Session) -> None:
    rollout, _ = _ids(session, Flag, run)
    reviewer.post(f"/rollouts/{rollout}/verdicts", data={"verdict": "hack"})
    told = reviewer.get("/api/v1/team/review").json()
    assert told["judged"] == 1
    assert told["reviewers"][0]["by_day"][-1] == 1
    assert (told["open"], told["by_environment"][0]["open"]) == (1, 1)
    assert run.version.environment.name in reviewer.get("/team/review").text


def test_what_waits_does_so_since_it_was_flagged_or_drawn(reviewer: TestClient, run: Run, session: Session) -> None:
    """Counted from the review, not the rollout: an old run may be reviewed today."""
    drawn = _ids(session, AuditSample, run)
    queue.place(session, drawn)
    session.execute(update(Rollout).values(created_at=datetime.now(UTC) - timedelta(days=40)))
    times = [datetime.now(UTC) - timedelta(days=days) for days in (2, 3)]
    for table, at in zip((Flag, AuditSample), times, strict=True):
        session.execute(update(table).values(created_at=at))
    queue.refresh(session)
    assert datetime.fromisoformat(reviewer.get("/api/v1/team/review").json()["oldest"]) == times[1]
    for each in drawn:
        reviewer.post(f"/rollouts/{each}/verdicts", data={"verdict": "honest"})
    assert datetime.fromisoformat(reviewer.get("/api/v1/team/review").json()["oldest"]) == times[0]
