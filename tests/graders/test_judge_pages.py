"""Adding, changing, trying and deleting judges; their tab on a run; their grades on a rollout's page."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.tables import Job
from backend.domain.graders.canaries import CanaryReport, CanaryResult
from backend.domain.vocabulary import PolicyKind, RunStatus, Verdict
from backend.graders.queries import find_work
from backend.graders.service import run_grader
from backend.graders.tables import Grader
from backend.team.tables import AuditEvent
from tests.factories import make_policy
from tests.graders.conftest import GOOD, make_judge, make_judged_run, make_judgement, rollouts_of

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def form(session: Session) -> dict[str, str]:
    policy = make_policy(session, kind=PolicyKind.OPENAI_API, configuration={"base_url": "http://x/v1", "model": "m"})
    return {
        "name": "correct",
        "policy": str(policy.id),
        "kind": "judge",
        "instruction": "Is {{ answer }} right?",
        "scale": "rubric",
        "criteria": "right, 3: Is it right?\nshort: Is it short?",
        "repeats": "2",
    }


def test_a_judge_is_added_and_shown(session: Session, trainer: TestClient, form: dict[str, str]) -> None:
    assert trainer.get("/graders/new").status_code == 200
    answer = trainer.post("/graders", data=form)
    judge = session.scalars(select(Grader)).one()
    assert answer.headers["location"] == f"/graders/{judge.id}"
    assert judge.settings["repeats"] == 2
    assert [c["weight"] for c in judge.settings["criteria"]] == [3.0, 1.0]
    page = trainer.get(f"/graders/{judge.id}").text
    assert "Is {{ answer }} right?" in page
    assert "judge.correct" in page
    assert "correct" in trainer.get("/graders").text
    assert session.scalars(select(AuditEvent).where(AuditEvent.action == "grader.create")).one()


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"name": "Not a name"}, "name"),
        ({"instruction": "{{ answer"}, "instruction"),
        ({"criteria": ""}, "criteria"),
        ({"criteria": "nonsense"}, "criteria"),
        ({"repeats": "0"}, "repeats"),
        ({"policy": "00000000-0000-0000-0000-000000000000"}, "policy"),
    ],
)
def test_bad_input_names_the_field(
    trainer: TestClient, form: dict[str, str], fields: dict[str, str], wrong: str
) -> None:
    answer = trainer.post("/graders", data=form | fields, headers={"Accept": "application/json"})
    assert answer.status_code == 422
    assert list(answer.json()["fields"]) == [wrong]


def test_a_local_checkpoint_is_reported_how_it_can_judge(
    session: Session, trainer: TestClient, form: dict[str, str]
) -> None:
    local = make_policy(session, kind=PolicyKind.LOCAL, configuration={})
    answer = trainer.post("/graders", data=form | {"policy": str(local.id)}, headers={"Accept": "application/json"})
    assert "proctor serve" in answer.json()["fields"]["policy"]


def test_a_judge_that_has_judged_is_copied_instead_of_changed(
    session: Session, trainer: TestClient, form: dict[str, str]
) -> None:
    judge = make_judge(session)
    assert trainer.post(f"/graders/{judge.id}/edit", data=form).status_code == 303
    assert judge.name == "correct"
    run = make_judged_run(session, [GOOD])
    run_grader(session, None, run, judge)
    assert trainer.post(f"/graders/{judge.id}/edit", data=form).status_code == 409
    assert trainer.get(f"/graders/{judge.id}/edit").status_code == 409
    copied = trainer.get(f"/graders/new?copy={judge.id}").text
    assert 'value="correct_2"' in copied


def test_a_deleted_judge_leaves_its_name_and_what_it_said(
    session: Session, trainer: TestClient, form: dict[str, str]
) -> None:
    judge = make_judge(session, name="correct")
    run = make_judged_run(session, [GOOD])
    rollout = rollouts_of(session, run)[0]
    make_judgement(session, judge, rollout, 0.25)
    assert trainer.post(f"/graders/{judge.id}/delete").status_code == 303
    assert f"/graders/{judge.id}" not in trainer.get("/graders").text
    assert "0.25" in trainer.get(f"/rollouts/{rollout.id}").text
    assert trainer.post("/graders", data=form).status_code == 303
    assert trainer.post(f"/graders/{judge.id}/runs/{run.id}").status_code == 409


def test_who_may_what(session: Session, author: TestClient, viewer: TestClient, form: dict[str, str]) -> None:
    judge = make_judge(session)
    run = make_judged_run(session, [GOOD])
    assert viewer.get(f"/graders/{judge.id}").status_code == 200
    assert viewer.get(f"/runs/{run.id}/graders").status_code == 200
    assert author.post("/graders", data=form).status_code == 403
    assert viewer.post(f"/graders/{judge.id}/runs/{run.id}").status_code == 403
    assert author.post(f"/graders/{judge.id}/runs/{run.id}").status_code == 303


def test_a_judging_is_started_once_and_stopped(session: Session, author: TestClient) -> None:
    judge, run = make_judge(session), make_judged_run(session, [GOOD, None])
    for _ in range(2):
        author.post(f"/graders/{judge.id}/runs/{run.id}", data={"where": "level = 0"})
    job = session.scalars(select(Job).where(Job.name == "graders.run")).one()
    work = find_work(session, run.id, judge.id)
    assert work is not None
    assert (job.arguments, work.where) == ({"grader_run_id": str(work.id)}, "level = 0")
    assert "waiting for a worker" in author.get(f"/runs/{run.id}/graders").text
    author.post(f"/graders/{judge.id}/runs/{run.id}/stop")
    assert work.status is RunStatus.STOPPED
    assert author.post(f"/graders/{judge.id}/runs/{run.id}/stop").status_code == 409


@pytest.mark.parametrize("where", ["nonsense = 1", "level = 77"])
def test_a_filter_that_fits_nothing_is_refused(session: Session, author: TestClient, where: str) -> None:
    judge, run = make_judge(session), make_judged_run(session, [GOOD])
    answer = author.post(f"/api/v1/graders/{judge.id}/runs/{run.id}", json={"where": where})
    assert answer.status_code == 422
    assert session.scalars(select(Job).where(Job.name == "graders.run")).all() == []


def test_the_tab_shows_coverage_cost_agreement_and_canaries(
    session: Session, viewer: TestClient, reviewer: TestClient
) -> None:
    judge, run = make_judge(session), make_judged_run(session, [GOOD] * 6)
    rollouts = rollouts_of(session, run)
    work = run_grader(session, None, run, judge)
    scores = [1.0, 0.9, 0.1, 0.8, 0.2, None]
    verdicts = [Verdict.HONEST, Verdict.HONEST, Verdict.HONEST, Verdict.HACK, Verdict.BROKEN_REWARD, Verdict.UNSURE]
    for rollout, score, verdict in zip(rollouts, scores, verdicts, strict=True):
        make_judgement(session, judge, rollout, score, cost=0.5, spread=0.1)
        reviewer.post(f"/rollouts/{rollout.id}/verdicts", data={"verdict": str(verdict)})
    results = [CanaryResult(name="order", is_attack=True, score=1.0, says=HOSTILE)]

    work.status, work.total = RunStatus.COMPLETED, 6
    work.canaries = CanaryReport(results=results, is_injectable=True).model_dump(mode="json")
    page = viewer.get(f"/runs/{run.id}/graders").text
    assert "This judge is injectable" in page
    assert HOSTILE not in page
    assert "1 failed" in page
    [found] = viewer.get(f"/api/v1/runs/{run.id}/graders").json()["items"]
    assert (found["graded"], found["failed"], found["waiting"], found["total"]) == (5, 1, 0, 6)
    assert found["score"]["mean"] == pytest.approx(0.6)
    assert found["cost"] == pytest.approx(3.0)
    assert found["agreement"]["count"] == 5
    assert found["agreement"]["auc"] == pytest.approx(4 / 6)
    wrong = [each["rollout_id"] for each in found["agreement"]["disagreements"]]
    assert str(rollouts[2].id) in wrong
    assert str(rollouts[2].id)[-8:] in page
    assert len(viewer.get(f"/api/v1/graders/{judge.id}/runs/{run.id}/grades?limit=4").json()["items"]) == 4


def test_a_rollouts_page_shows_each_repeat_and_step(session: Session, viewer: TestClient) -> None:
    judge, run = make_judge(session), make_judged_run(session, [GOOD])
    rollout = rollouts_of(session, run)[0]
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
    [found] = viewer.get(f"/api/v1/rollouts/{rollout.id}/grades").json()["items"]
    assert found["score"] == pytest.approx(0.6)


def test_a_try_shows_what_was_sent_and_said(session: Session, author: TestClient, viewer: TestClient) -> None:
    judge, run = make_judge(session), make_judged_run(session, [GOOD])
    rollout = rollouts_of(session, run)[0]
    answer = author.post(f"/graders/{judge.id}/tries", data={"rollout": f"http://here/rollouts/{rollout.id}"})
    asked = answer.headers["location"]
    assert "Waiting for the grader" in author.get(asked).text
    job = session.scalars(select(Job).where(Job.name == "graders.try")).one()
    exchange = {
        "messages": [{"role": "user", "content": f"Judge {HOSTILE}"}],
        "replies": [f"{HOSTILE} reply"],
        "verdict": {"score": 0.5, "reason": "So so.", "asked": 1},
    }
    graded = {"rollout_id": str(rollout.id), "score": 0.5, "seconds": 1.0, "exchanges": [exchange]}
    job.arguments = {**job.arguments, "answer": {"rollouts": [graded]}}
    session.flush()
    page = author.get(asked).text
    assert "So so." in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; reply" in page
    assert HOSTILE not in page
    assert viewer.get(asked).status_code == 403
    other = make_judge(session, name="other")
    assert author.get(f"/graders/{other.id}/tries/{job.id}").status_code == 404


def test_a_rollouts_page_leads_to_a_try_on_it(session: Session, author: TestClient) -> None:
    judge, run = make_judge(session), make_judged_run(session, [GOOD])
    rollout = rollouts_of(session, run)[0]
    assert f"/graders?rollout={rollout.id}" in author.get(f"/rollouts/{rollout.id}").text
    assert f"/graders/{judge.id}?rollout={rollout.id}" in author.get(f"/graders?rollout={rollout.id}").text
    assert f'value="{rollout.id}"' in author.get(f"/graders/{judge.id}?rollout={rollout.id}").text


def test_a_try_needs_a_rollout_that_is_there(session: Session, author: TestClient) -> None:
    judge = make_judge(session)
    for text in ("nonsense", str(judge.id)):
        answer = author.post(
            f"/graders/{judge.id}/tries", data={"rollout": text}, headers={"Accept": "application/json"}
        )
        assert answer.json()["fields"].keys() == {"rollout"}


def test_the_api_adds_changes_and_deletes(session: Session, trainer: TestClient, form: dict[str, str]) -> None:
    body = form | {"criteria": [{"name": "right", "description": "Is it right?"}], "repeats": 3}
    judge = trainer.post("/api/v1/graders", json=body).json()
    assert judge["settings"]["repeats"] == 3
    changed = trainer.put(f"/api/v1/graders/{judge['id']}", json=body | {"scale": "boolean"}).json()
    assert changed["settings"]["criteria"] == []
    assert [each["name"] for each in trainer.get("/api/v1/graders").json()["items"]] == ["correct"]
    assert trainer.delete(f"/api/v1/graders/{judge['id']}").status_code == 200
    assert trainer.get("/api/v1/graders").json()["items"] == []


def test_the_list_is_filtered_by_kind(session: Session, viewer: TestClient) -> None:
    make_judge(session, name="strict")
    assert "strict" in viewer.get("/graders?kind=judge").text
    assert "strict" not in viewer.get("/graders?kind=question").text
    assert viewer.get("/api/v1/graders?kind=monitor").json()["items"] == []
    assert viewer.get("/api/v1/graders/strict").json()["settings"]["scale"] == "unit"


def test_a_cost_estimate_counts_repeats_and_canaries(session: Session, author: TestClient) -> None:
    judge, run = make_judge(session, repeats=3, temperature=1.0), make_judged_run(session, [GOOD, GOOD, None])
    found = author.get(f"/api/v1/graders/strict/runs/{run.id}/estimate").json()
    assert (found["count"], found["graded"], found["problem"]) == (2, 0, "")
    assert found["tokens_out"] == (2 + 5) * 3 * 250
    assert found["cost"] > 0
    assert "<b>2</b> rollouts to grade" in author.get(f"/runs/{run.id}/graders?grader={judge.id}").text
