"""/detectors: precision and a bound of recall out of verdicts; what another cut-off would have meant; settings."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.db.models import AuditDraw, AuditSample, VerdictRecord
from backend.domain.vocabulary import RunKind, Verdict
from tests import factories


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


def test_it_tells_precision_and_the_least_recall(viewer: TestClient, judged: None) -> None:
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
    text = viewer.get("/detectors/tampering").text
    assert "75 %" in text
    assert 'href="/environments/guess"' in text
    assert "Tampers with the grading" in viewer.get("/detectors?environment=guess").text


def test_another_environment_has_a_record_of_its_own(viewer: TestClient, judged: None, session: Session) -> None:
    factories.make_environment(session, "other")
    (found,) = [
        each for each in viewer.get("/api/v1/detectors?environment=other").json()["items"] if each["id"] == "tampering"
    ]
    assert (found["record"]["flags"], found["recall_at_least"]) == (0, None)


def test_authors_set_it_for_an_environment(author: TestClient, viewer: TestClient, judged: None) -> None:
    data = {"environment": "guess", "enabled": "true", "action": "pause", "name": "fewest", "value": "2"}
    assert viewer.post("/detectors/tampering/settings", data=data).status_code == 403
    assert author.post("/detectors/tampering/settings", data=data).status_code == 303
    wanted = {"guess": {"enabled": True, "thresholds": {"fewest": 2.0}, "action": "pause"}}
    assert viewer.get("/api/v1/detectors/tampering").json()["settings"] == wanted
    put = "/api/v1/detectors/tampering/settings/guess"
    assert author.put(put, json={"thresholds": {"nonsense": 1}}).status_code == 422
    assert author.put(put, json={}).json()["action"] == "screen"
    assert viewer.get("/api/v1/detectors/tampering").json()["settings"] == {}


def test_nobody_knows_this_one(viewer: TestClient) -> None:
    assert viewer.get("/detectors/clairvoyance").status_code == 404
