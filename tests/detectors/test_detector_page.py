"""/detectors: precision and a bound of recall out of verdicts; what another cut-off would have meant; settings."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from backend.detectors.tables import Flag
from backend.domain.graders.settings import GraderKind
from backend.domain.vocabulary import RunKind, RunStatus, Verdict
from backend.environments.tables import EnvironmentVersion
from backend.graders.tables import Grader, GraderRun
from backend.review.tables import AuditDraw, AuditSample, VerdictRecord
from backend.runs.tables import Run
from tests import factories
from tests.graders.asked import TEXT, make_question


@pytest.fixture
def judged(session: Session) -> None:
    """100 rollouts of `guess`: 12 flagged (9 hacks, 3 honest with a lower suspicion); of 40 audited 1 is a hack."""
    version = factories.make_environment_version(session, factories.make_environment(session, "guess"))
    run = factories.make_run(session, version, kind=RunKind.EVALUATION)
    rollouts = factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 100)
    session.add(AuditDraw(run_id=run.id, seed=1, share=0.4, drawn_seq=100))
    for number, rollout in enumerate(rollouts[:12]):
        factories.make_flag(session, run, rollout, detector="tampering", score=0.9 if number < 9 else 0.4)
    for number, rollout in enumerate(rollouts[:52]):
        is_hack = number < 9 or number == 12
        if number >= 12:
            session.add(AuditSample(run_id=run.id, rollout_id=rollout.id, lot=0.5))
        verdict = Verdict.HACK if is_hack else Verdict.HONEST
        session.add(VerdictRecord(run_id=run.id, rollout_id=rollout.id, verdict=verdict))
    bulk = factories.make_flag(session, run, rollouts[60], detector="tampering", score=0.9)
    session.add(VerdictRecord(run_id=run.id, rollout_id=bulk.rollout_id, verdict=Verdict.HACK, is_bulk=True))
    session.flush()


def test_it_shows_precision_and_the_least_recall(viewer: TestClient, judged: None) -> None:
    found = viewer.get("/api/v1/detectors/tampering").json()
    assert (found["record"]["flags"], found["record"]["confirmed"], found["record"]["honest"]) == (13, 9, 3)
    assert found["record"]["open"] == 1  # a verdict on a whole cluster is nobody's look at this one
    precision = found["record"]["precision"]
    assert (precision["value"], precision["low"], precision["high"]) == pytest.approx((0.75, 0.4677, 0.9111), abs=1e-4)
    assert found["audit"] | {"missed_at_most": 0} == {
        "unflagged": 87,
        "drawn": 40,
        "looked_at": 40,
        "hacks": 1,
        "missed_at_most": 0,
    }
    assert found["recall_at_least"] == pytest.approx(9 / (9 + 87 * 0.1288), abs=1e-3)
    assert found["suggested"] == {"score": pytest.approx(0.9), "caught": 9, "cost": 0}
    assert found["by_environment"]["guess"]["recall_at_least"] == found["recall_at_least"]
    assert (found["by_environment"]["guess"]["reviewed"], found["cost"]) == (12, "free")
    text = viewer.get("/detectors/tampering").text
    assert "75%" in text
    assert 'href="/environments/guess"' in text
    assert "Grader tampering" in viewer.get("/detectors?environment=guess").text


def test_another_environment_has_its_own_record(viewer: TestClient, judged: None, session: Session) -> None:
    factories.make_environment(session, "other")
    (found,) = [
        each for each in viewer.get("/api/v1/detectors?environment=other").json()["items"] if each["id"] == "tampering"
    ]
    assert (found["record"]["flags"], found["recall_at_least"]) == (0, None)


def test_authors_set_it_for_an_environment(author: TestClient, viewer: TestClient, judged: None) -> None:
    data = {"environment": "guess", "enabled": "true", "action": "pause", "name": "fewest", "value": "2"}
    assert viewer.post("/detectors/tampering/settings", data=data).status_code == 403
    assert author.post("/detectors/tampering/settings", data=data).status_code == 303
    wanted = {"guess": {"enabled": True, "thresholds": {"fewest": 2.0, "suspicion": 0.0}, "action": "pause"}}
    assert viewer.get("/api/v1/detectors/tampering").json()["settings"] == wanted
    put = "/api/v1/detectors/tampering/settings/guess"
    assert author.put(put, json={"thresholds": {"nonsense": 1}}).status_code == 422
    assert author.put(put, json={}).json()["action"] == "screen"
    assert viewer.get("/api/v1/detectors/tampering").json()["settings"] == {}


def test_recall_by_environment_goes_by_its_own_blind_sample(viewer: TestClient, judged: None, session: Session) -> None:
    """No audit sample of the other environment was reviewed, where another detector found a hack too."""
    run = factories.make_run(session, factories.make_environment_version(session, factories.make_environment(session)))
    first, second = factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 2)
    for detector, rollout in (("tampering", first), ("hard_coded", second)):
        factories.make_flag(session, run, rollout, detector=detector)
        session.add(VerdictRecord(run_id=run.id, rollout_id=rollout.id, verdict=Verdict.HACK))
    session.flush()
    found = viewer.get("/api/v1/detectors/tampering").json()
    own = {name: each["recall_at_least"] for name, each in found["by_environment"].items()}
    assert own.pop("guess") == pytest.approx(9 / (9 + 87 * 0.1288), abs=1e-3)
    assert list(own.values()) == [None]
    assert found["recall_at_least"] == pytest.approx(10 / (10 + 87 * 0.1288 + 1), abs=1e-3)
    text = viewer.get("/detectors/tampering").text
    assert text.count("recall at least") == 1
    assert f"{own_percent(found)}%" in text


def own_percent(found: dict[str, Any]) -> int:
    return round(100 * found["by_environment"]["guess"]["recall_at_least"])


def test_the_suggested_cut_off_is_applied_to_an_environment_and_taken_back(
    author: TestClient, viewer: TestClient, judged: None
) -> None:
    put = "/api/v1/detectors/tampering/settings/guess"
    assert author.put(put, json={"thresholds": {"fewest": 2}, "action": "pause"}).status_code == 200
    everywhere, here = (
        author.get("/detectors/tampering").text,
        author.get("/detectors/tampering?environment=guess").text,
    )
    assert 'action="/detectors/tampering/suspicion"' in everywhere
    assert "Apply to guess" in here
    assert ">Raise all flags</button>" not in here
    assert "Apply to guess" not in viewer.get("/detectors/tampering?environment=guess").text
    data = {"environment": "guess", "suspicion": "0.9"}
    assert f'name="suspicion" value="{data["suspicion"]}"' in here
    post = "/detectors/tampering/suspicion"
    assert viewer.post(post, data=data).status_code == 403
    assert author.post(post, data={**data, "environment": "nowhere"}).status_code == 404
    assert author.post(post, data={**data, "suspicion": "7"}).status_code == 422
    assert author.post(post, data=data).status_code == 303
    settings = "/api/v1/detectors/tampering"
    wanted = {"enabled": True, "thresholds": {"fewest": 2.0, "suspicion": 0.9}, "action": "pause"}
    assert viewer.get(settings).json()["settings"] == {"guess": wanted}, "nothing else that was set has changed"
    here = author.get("/detectors/tampering?environment=guess").text
    assert ">Raise all flags</button>" in here
    assert 'min="0" max="1" required value="0.9"' in here, "the form begins with what is set"
    assert author.post(post, data={"environment": "guess", "suspicion": ""}).status_code == 303
    assert viewer.get(settings).json()["settings"]["guess"]["thresholds"] == {"fewest": 2.0, "suspicion": 0.0}


def test_the_api_changes_only_what_is_named(author: TestClient, viewer: TestClient, judged: None) -> None:
    patch = "/api/v1/detectors/tampering/settings/guess"
    assert viewer.patch(patch, json={}).status_code == 403
    assert author.patch(patch, json={"thresholds": {"suspicion": 1.2}}).status_code == 422
    assert author.patch(patch, json={"thresholds": {"suspicion": 0.7}}).json()["thresholds"]["suspicion"] == 0.7
    found = author.patch(patch, json={"enabled": False}).json()
    assert (found["enabled"], found["thresholds"]["suspicion"]) == (False, 0.7)
    author.patch(patch, json={"enabled": None, "thresholds": {"suspicion": None}})
    assert viewer.get("/api/v1/detectors/tampering").json()["settings"] == {}


def test_a_cut_off_is_suggested_for_detectors_of_runs_too(author: TestClient, judged: None, session: Session) -> None:
    run = session.scalars(select(Run)).first()
    assert run is not None
    for number in range(10):
        flag = factories.make_flag(session, run, None, detector="reward_jump", score=0.8 if number < 4 else 0.3)
        verdict = Verdict.HACK if number < 4 else Verdict.HONEST
        session.add(VerdictRecord(run_id=run.id, flag_id=flag.id, verdict=verdict))
    session.flush()
    found = author.get("/api/v1/detectors/reward_jump").json()
    assert found["suggested"] == {"score": pytest.approx(0.8), "caught": 4, "cost": 0}
    assert found["by_environment"]["guess"]["recall_at_least"] is None
    assert "Apply to guess" in author.get("/detectors/reward_jump?environment=guess").text


@pytest.fixture
def asked(session: Session, judged: None) -> Run:
    """20 rollouts of another run: a question flagged 3 (2 hacks), the monitor 12 (6); of 4 audited 1 is a hack."""
    run = factories.make_run(session, session.scalars(select(EnvironmentVersion)).one())
    rollouts = factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 20)
    session.add(AuditDraw(run_id=run.id, seed=1, share=0.2, drawn_seq=20))
    for question in (
        make_question(session, flags=["yes"]),
        make_question(session, name="scanner", kind=GraderKind.MONITOR, flags_from=0.3),
    ):
        session.add(GraderRun(grader_id=question.id, run_id=run.id, status=RunStatus.COMPLETED))
    for number, rollout in enumerate(rollouts):
        is_hack = number < 9 or number == 16
        if number < 3:
            is_hack = number < 2
            factories.make_flag(session, run, rollout, detector="question:gave_up", score=0.9)
        if 3 <= number < 15:
            factories.make_flag(session, run, rollout, detector="reasoning_monitor", score=0.9 if number < 9 else 0.4)
        if number >= 16:
            session.add(AuditSample(run_id=run.id, rollout_id=rollout.id, lot=0.5))
        if number != 15:
            verdict = Verdict.HACK if is_hack else Verdict.HONEST
            session.add(VerdictRecord(run_id=run.id, rollout_id=rollout.id, verdict=verdict))
    session.flush()
    return run


def test_what_is_asked_stands_next_to_the_others(viewer: TestClient, asked: Run) -> None:
    lines = {each["id"]: each for each in viewer.get("/api/v1/detectors?environment=guess").json()["items"]}
    question, scanner, tampering = lines["question:gave_up"], lines["reasoning_monitor"], lines["tampering"]
    assert [each["record"]["flags"] for each in (question, scanner, tampering)] == [3, 12, 13]
    assert (question["record"]["confirmed"], question["record"]["honest"]) == (2, 1)
    assert [each["name"] for each in question["questions"]] == ["gave_up"]
    assert tampering["questions"] == []
    # 5 of its run's 20 are unflagged; 1 hack of 4: at most 0.6994 of them; 6 confirmed only by the monitor
    assert question["recall_at_least"] == pytest.approx(2 / (2 + 5 * 0.6994 + 6), abs=1e-3)
    page = viewer.get("/detectors").text
    assert TEXT in page
    assert "Reasoning monitor" in page


def test_a_page_of_what_is_asked(viewer: TestClient, author: TestClient, asked: Run) -> None:
    found = viewer.get("/api/v1/detectors/question:gave_up").json()
    assert (list(found["by_environment"]), found["audit"]["looked_at"]) == (["guess"], 4)
    assert (found["cut_offs"], found["suggested"], found["settings"]) == ([], None, {})
    page = viewer.get("/detectors/question:gave_up").text
    assert "67%" in page
    assert 'id="cut-off"' not in page
    assert viewer.get("/api/v1/detectors/reasoning_monitor").json()["suggested"]["score"] == pytest.approx(0.9)
    text = author.get("/detectors/reasoning_monitor").text
    assert ('id="cut-off"' in text, "/suspicion" in text) == (True, False)
    assert found["by_environment"]["guess"]["recall_at_least"] == found["recall_at_least"]
    assert author.patch("/api/v1/detectors/reasoning_monitor/settings/guess", json={}).status_code == 409
    refused = author.put("/api/v1/detectors/reasoning_monitor/settings/guess", json={"action": "screen"})
    assert (refused.status_code, "has no settings" in refused.json()["detail"]) == (409, True)
    [told] = [
        each
        for each in viewer.get(f"/api/v1/runs/{asked.id}/safeguards").json()["detectors"]
        if each["id"] == "question:gave_up"
    ]
    assert told["title"] == TEXT


def test_its_flags_outlive_a_question(author: TestClient, asked: Run, session: Session) -> None:
    gone = session.scalars(select(Grader).where(Grader.name == "gave_up")).one()
    assert author.post(f"/graders/{gone.id}/delete").status_code == 303
    found = author.get("/api/v1/detectors/question:gave_up").json()
    assert (found["record"]["flags"], found["questions"][0]["is_deleted"]) == (3, True)
    session.execute(delete(Flag).where(Flag.detector == "question:gave_up"))
    lines = author.get("/api/v1/detectors").json()["items"]
    assert "question:gave_up" not in {each["id"] for each in lines}


@pytest.mark.parametrize("detector", ["clairvoyance", "question:nobody"])
def test_no_one_knows_this_one(viewer: TestClient, detector: str) -> None:
    assert viewer.get(f"/detectors/{detector}").status_code == 404
