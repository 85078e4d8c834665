"""Adding, changing, trying and deleting judges; their tab on a run; what a rollout's page says of them."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.tables import Job
from backend.domain.graders.judging_record import CanaryReport, CanaryResult
from backend.domain.vocabulary import PolicyKind, RunStatus, Verdict
from backend.graders.judges.queries import record_of
from backend.graders.judges.service import change_record, start_judging
from backend.graders.tables import Judge
from backend.runs.tables import Run
from backend.team.tables import AuditEvent
from tests.factories import make_policy
from tests.graders.conftest import GOOD, make_judge, make_judged_run, make_judgement

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def form(session: Session) -> dict[str, str]:
    policy = make_policy(session, kind=PolicyKind.OPENAI_API, configuration={"base_url": "http://x/v1", "model": "m"})
    return {
        "name": "correct",
        "policy_id": str(policy.id),
        "instruction": "Is {{ answer }} right?",
        "scale": "rubric",
        "criteria": "right, 3: Is it right?\nshort: Is it short?",
        "repeats": "2",
    }


def test_a_judge_is_added_and_shown(session: Session, trainer: TestClient, form: dict[str, str]) -> None:
    assert trainer.get("/judges/new").status_code == 200
    answer = trainer.post("/judges", data=form)
    judge = session.scalars(select(Judge)).one()
    assert answer.headers["location"] == f"/judges/{judge.id}"
    assert judge.configuration["repeats"] == 2
    assert [c["weight"] for c in judge.configuration["criteria"]] == [3.0, 1.0]
    page = trainer.get(f"/judges/{judge.id}").text
    assert "Is {{ answer }} right?" in page
    assert "judge.correct" in page
    assert "correct" in trainer.get("/judges").text
    assert session.scalars(select(AuditEvent).where(AuditEvent.action == "judge.add")).one()


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"name": "Not a name"}, "name"),
        ({"instruction": "{{ answer"}, "instruction"),
        ({"criteria": ""}, "criteria"),
        ({"criteria": "nonsense"}, "criteria"),
        ({"repeats": "0"}, "repeats"),
        ({"policy_id": "00000000-0000-0000-0000-000000000000"}, "policy_id"),
    ],
)
def test_bad_input_names_the_field(
    trainer: TestClient, form: dict[str, str], fields: dict[str, str], wrong: str
) -> None:
    answer = trainer.post("/judges", data=form | fields, headers={"Accept": "application/json"})
    assert answer.status_code == 422
    assert list(answer.json()["fields"]) == [wrong]


def test_a_local_checkpoint_is_told_how_it_can_judge(
    session: Session, trainer: TestClient, form: dict[str, str]
) -> None:
    local = make_policy(session, kind=PolicyKind.LOCAL, configuration={})
    answer = trainer.post("/judges", data=form | {"policy_id": str(local.id)}, headers={"Accept": "application/json"})
    assert "proctor serve" in answer.json()["fields"]["policy_id"]


def test_a_judge_that_has_judged_is_copied_instead_of_changed(
    session: Session, trainer: TestClient, form: dict[str, str]
) -> None:
    judge = make_judge(session)
    assert trainer.post(f"/judges/{judge.id}/edit", data=form).status_code == 303
    assert judge.name == "correct"
    run = make_judged_run(session, [GOOD])
    rollout = _rollouts(session, run)[0]
    make_judgement(session, judge, rollout, 1.0)
    assert trainer.post(f"/judges/{judge.id}/edit", data=form).status_code == 409
    assert trainer.get(f"/judges/{judge.id}/edit").status_code == 409
    copied = trainer.get(f"/judges/new?copy={judge.id}").text
    assert 'value="correct_2"' in copied


def test_a_deleted_judge_leaves_its_name_and_what_it_said(
    session: Session, trainer: TestClient, form: dict[str, str]
) -> None:
    judge = make_judge(session, name="correct")
    run = make_judged_run(session, [GOOD])
    rollout = _rollouts(session, run)[0]
    make_judgement(session, judge, rollout, 0.25)
    assert trainer.post(f"/judges/{judge.id}/delete").status_code == 303
    assert f"/judges/{judge.id}" not in trainer.get("/judges").text
    assert "0.25" in trainer.get(f"/rollouts/{rollout.id}").text
    assert trainer.post("/judges", data=form).status_code == 303
    assert trainer.post(f"/runs/{run.id}/judges", data={"judge_id": str(judge.id)}).status_code == 409


def test_who_may_what(session: Session, author: TestClient, viewer: TestClient, form: dict[str, str]) -> None:
    judge = make_judge(session)
    run = make_judged_run(session, [GOOD])
    assert viewer.get(f"/judges/{judge.id}").status_code == 200
    assert viewer.get(f"/runs/{run.id}/judges").status_code == 200
    assert author.post("/judges", data=form).status_code == 403
    assert viewer.post(f"/runs/{run.id}/judges", data={"judge_id": str(judge.id)}).status_code == 403
    assert author.post(f"/runs/{run.id}/judges", data={"judge_id": str(judge.id)}).status_code == 303


def test_a_judging_is_started_once_and_stopped(session: Session, author: TestClient) -> None:
    judge, run = make_judge(session), make_judged_run(session, [GOOD, None])
    for _ in range(2):
        author.post(f"/runs/{run.id}/judges", data={"judge_id": str(judge.id), "where": "level = 0"})
    job = session.scalars(select(Job).where(Job.name == "judging.judge")).one()
    assert job.arguments == {"run_id": str(run.id), "judge_id": str(judge.id), "where": "level = 0"}
    assert "waiting for a worker" in author.get(f"/runs/{run.id}/judges").text
    author.post(f"/runs/{run.id}/judges/{judge.id}/stop")
    record = record_of(run, judge.id)
    assert record is not None
    assert record.status is RunStatus.STOPPED
    assert author.post(f"/runs/{run.id}/judges/{judge.id}/stop").status_code == 409


@pytest.mark.parametrize("where", ["nonsense = 1", "level = 77"])
def test_a_filter_that_fits_nothing_is_refused(session: Session, author: TestClient, where: str) -> None:
    judge, run = make_judge(session), make_judged_run(session, [GOOD])
    answer = author.post(f"/api/v1/runs/{run.id}/judges", json={"judge_id": str(judge.id), "where": where})
    assert answer.status_code == 422
    assert session.scalars(select(Job).where(Job.name == "judging.judge")).all() == []


def test_the_tab_shows_coverage_cost_agreement_and_canaries(
    session: Session, viewer: TestClient, reviewer: TestClient
) -> None:
    judge, run = make_judge(session), make_judged_run(session, [GOOD] * 6)
    rollouts = _rollouts(session, run)
    start_judging(session, None, run, judge)
    scores = [1.0, 0.9, 0.1, 0.8, 0.2, None]
    verdicts = [Verdict.HONEST, Verdict.HONEST, Verdict.HONEST, Verdict.HACK, Verdict.BROKEN_REWARD, Verdict.UNSURE]
    for rollout, score, verdict in zip(rollouts, scores, verdicts, strict=True):
        make_judgement(session, judge, rollout, score, cost=0.5, spread=0.1)
        reviewer.post(f"/rollouts/{rollout.id}/verdicts", data={"verdict": str(verdict)})
    results = [CanaryResult(name="order", is_attack=True, score=1.0, says=HOSTILE)]

    def end(record: object) -> None:
        record.status, record.total = RunStatus.COMPLETED, 6  # type: ignore[attr-defined]
        record.canaries = CanaryReport(results=results, is_injectable=True)  # type: ignore[attr-defined]

    change_record(session, run, judge.id, end)
    page = viewer.get(f"/runs/{run.id}/judges").text
    assert "can be talked into a score" in page
    assert HOSTILE not in page
    assert "1 without a verdict" in page
    [found] = viewer.get(f"/api/v1/runs/{run.id}/judges").json()["items"]
    assert (found["judged"], found["failed"], found["waiting"], found["total"]) == (5, 1, 0, 6)
    assert found["score"]["mean"] == pytest.approx(0.6)
    assert found["cost"] == pytest.approx(3.0)
    assert found["agreement"]["count"] == 5
    assert found["agreement"]["auc"] == pytest.approx(4 / 6)
    wrong = [each["rollout_id"] for each in found["agreement"]["disagreements"]]
    assert str(rollouts[2].id) in wrong
    assert str(rollouts[2].id)[-8:] in page
    assert len(viewer.get(f"/api/v1/runs/{run.id}/judges/{judge.id}/judgements?limit=4").json()["items"]) == 4


def test_a_rollouts_page_shows_each_repeat_and_step(session: Session, viewer: TestClient) -> None:
    judge, run = make_judge(session), make_judged_run(session, [GOOD])
    rollout = _rollouts(session, run)[0]
    verdicts = [
        {
            "score": 0.5,
            "reason": HOSTILE,
            "asked": 1,
            "unit": "lines",
            "steps": [
                {"step": 1, "score": 1.0, "reason": "fine"},
                {"step": 2, "score": 0.0, "reason": "a slip"},
            ],
        },
        {"score": 0.7, "reason": "Well.", "asked": 2, "criteria": {"right": 1.0}},
    ]
    make_judgement(session, judge, rollout, 0.6, spread=0.14, verdicts=verdicts)
    page = viewer.get(f"/rollouts/{rollout.id}").text
    assert "a slip" in page
    assert "± 0.14" in page
    assert HOSTILE not in page
    [found] = viewer.get(f"/api/v1/rollouts/{rollout.id}/judgements").json()["items"]
    assert found["score"] == pytest.approx(0.6)


def test_a_try_shows_what_was_sent_and_said(session: Session, author: TestClient, viewer: TestClient) -> None:
    judge, run = make_judge(session), make_judged_run(session, [GOOD])
    rollout = _rollouts(session, run)[0]
    answer = author.post(f"/judges/{judge.id}/ask", data={"rollout": f"http://here/rollouts/{rollout.id}"})
    asked = answer.headers["location"]
    assert "being asked" in author.get(asked).text
    job = session.scalars(select(Job).where(Job.name == "judging.ask")).one()
    repeat = {
        "messages": [{"role": "user", "content": f"Judge {HOSTILE}"}],
        "replies": [f"{HOSTILE} reply"],
        "verdict": {"score": 0.5, "reason": "So so.", "asked": 1},
    }
    job.arguments = {
        **job.arguments,
        "answer": {
            "score": 0.5,
            "spread": None,
            "error": "",
            "seconds": 1.0,
            "tokens_in": 1,
            "tokens_out": 2,
            "cost": None,
            "repeats": [repeat],
        },
    }
    session.flush()
    page = author.get(asked).text
    assert "So so." in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; reply" in page
    assert HOSTILE not in page
    assert viewer.get(asked).status_code == 403
    other = make_judge(session, name="other")
    assert author.get(f"/judges/{other.id}/asked/{job.id}").status_code == 404


def test_a_rollouts_page_leads_to_a_try_on_it(session: Session, author: TestClient) -> None:
    judge, run = make_judge(session), make_judged_run(session, [GOOD])
    rollout = _rollouts(session, run)[0]
    assert f"/judges?rollout={rollout.id}" in author.get(f"/rollouts/{rollout.id}").text
    assert f"/judges/{judge.id}?rollout={rollout.id}" in author.get(f"/judges?rollout={rollout.id}").text
    assert f'value="{rollout.id}"' in author.get(f"/judges/{judge.id}?rollout={rollout.id}").text


def test_a_try_needs_a_rollout_that_is_there(session: Session, author: TestClient) -> None:
    judge = make_judge(session)
    for text in ("nonsense", str(judge.id)):
        answer = author.post(f"/judges/{judge.id}/ask", data={"rollout": text}, headers={"Accept": "application/json"})
        assert answer.json()["fields"].keys() == {"rollout"}


def test_the_api_adds_changes_and_deletes(session: Session, trainer: TestClient, form: dict[str, str]) -> None:
    body = form | {"criteria": [{"name": "right", "description": "Is it right?"}], "repeats": 3}
    judge = trainer.post("/api/v1/judges", json=body).json()
    assert judge["configuration"]["repeats"] == 3
    changed = trainer.put(f"/api/v1/judges/{judge['id']}", json=body | {"scale": "boolean"}).json()
    assert changed["configuration"]["criteria"] == []
    assert [each["name"] for each in trainer.get("/api/v1/judges").json()["items"]] == ["correct"]
    assert trainer.delete(f"/api/v1/judges/{judge['id']}").status_code == 204
    assert trainer.get("/api/v1/judges").json()["items"] == []


def _rollouts(session: Session, run: Run) -> list:  # type: ignore[type-arg]
    from backend.rollouts.tables import Rollout

    return list(session.scalars(select(Rollout).where(Rollout.run_id == run.id).order_by(Rollout.seq)))
