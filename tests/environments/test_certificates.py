"""A version's certificates: the page while one is made, older ones, the badge elsewhere, checks on publishing."""

from dataclasses import asdict
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.domain.environments.certificate import CheckResult, certificate_status
from backend.domain.vocabulary import CheckStatus, RunKind, RunStatus
from backend.environments.service import publish_version, start_check
from backend.environments.tables import Certificate, Environment, EnvironmentVersion
from backend.environments.validation import validate_package
from backend.runs.tables import Run
from tests.environments.packages import make_files
from tests.factories import make_rollouts, make_run

API = "/api/v1/environments"
PAGE = "/environments/guess/versions/1"


def result(check: str, status: CheckStatus, **fields: Any) -> CheckResult:
    return CheckResult(check, f"What {check} holds.", status, f"Evidence of {check}.", theme="start", **fields)


def audited() -> list[CheckResult]:
    """Results of the audit, with all three shares of its coverage."""
    missed = {"path": "server/guess.py", "line": 12, "function": "Guess.win", "source": "if given < 0:"}
    missed |= {"condition": "given < 0", "outcome": "true"}
    return [
        result("wrong_answers_lose", CheckStatus.PASSED, details={"killed": 90, "played": 100}),
        result("equal_answers_win", CheckStatus.PASSED, details={"kept": 40, "played": 50}),
        result("branches_executed", CheckStatus.WARNED, details={"executed": 30, "total": 60, "missed": [missed]}),
    ]


def certify(session: Session, version: EnvironmentVersion, *results: CheckResult) -> Certificate:
    run = start_check(session, None, version, "guess")
    run.status = RunStatus.COMPLETED
    certificate = Certificate(
        version_id=version.id,
        run_id=run.id,
        status=certificate_status(results),
        results=[asdict(result) for result in results],
    )
    session.add(certificate)
    session.flush()
    session.expire(version)
    return certificate


def test_what_does_not_apply_does_not_count():
    does_not_apply = result("levels", CheckStatus.SKIPPED, applies=False)
    assert certificate_status([result("gold", CheckStatus.PASSED), does_not_apply]) is CheckStatus.PASSED
    assert certificate_status([result("gold", CheckStatus.SKIPPED), does_not_apply]) is CheckStatus.WARNED
    assert certificate_status([does_not_apply]) is CheckStatus.FAILED


def test_results_appear_one_by_one(session: Session, viewer: TestClient, version: EnvironmentVersion):
    run = start_check(session, None, version, "guess")
    run.status = RunStatus.RUNNING
    to_come = {"theme": "start", "status": None}
    run.progress = {
        "done": 1,
        "total": 3,
        "phase": "second",
        "results": [
            asdict(result("first", CheckStatus.PASSED)),
            {"check": "second", "sentence": "What second holds.", **to_come},
            {"check": "third", "sentence": "What third holds.", **to_come},
        ],
    }
    session.flush()
    text = viewer.get(PAGE).text
    assert "Evidence of first." in text
    assert text.index("in progress") > text.index("Evidence of first.")
    assert text.index("queued") > text.index("What second holds.")
    assert f"{PAGE}/events" in text


def test_a_check_leads_to_its_rollouts_and_shows_what_it_cost(
    session: Session, viewer: TestClient, version: EnvironmentVersion
):
    rollout = "01890000-0000-7000-8000-00000000abcd"
    certify(session, version, result("gold", CheckStatus.FAILED, rollouts=[rollout], episodes=1234, seconds=2.0))
    text = viewer.get(PAGE).text
    assert f'href="/rollouts/{rollout}"' in text
    assert "Offending rollouts" in text
    assert "1,234" in text
    assert version.content_hash in text


def test_an_older_certificate_can_be_read(session: Session, viewer: TestClient, version: EnvironmentVersion):
    older = certify(session, version, result("first", CheckStatus.FAILED))
    newer = certify(session, version, result("second", CheckStatus.PASSED))
    page = viewer.get(PAGE, params={"check": str(older.run_id)}).text
    assert "older certificate" in page
    assert "Evidence of first." in page
    assert "older certificate" not in viewer.get(PAGE, params={"check": str(newer.run_id)}).text
    assert viewer.get(PAGE, params={"check": "00000000-0000-7000-8000-000000000000"}).status_code == 404
    history = viewer.get(f"{API}/guess/versions/1/certificates").json()["items"]
    assert {item["id"] for item in history} == {str(older.id), str(newer.id)}
    assert {item["content_hash"] for item in history} == {version.content_hash}


@pytest.mark.parametrize("status", [CheckStatus.PASSED, CheckStatus.FAILED])
def test_the_badge_stands_where_the_version_is_named(
    session: Session, viewer: TestClient, version: EnvironmentVersion, status: CheckStatus
):
    run = make_run(session, version)
    assert "not checked" in viewer.get(f"/runs/{run.id}").text
    certify(session, version, result("gold", status))
    title = f'title="Certificate: the checks {status}"'
    for page in (f"/runs/{run.id}", "/runs", f"/runs/{run.id}/configuration", f"/policies/{run.policy_id}"):
        assert title in viewer.get(page).text, page


def test_a_run_without_a_passing_certificate_states_why(
    session: Session, viewer: TestClient, version: EnvironmentVersion
):
    run = make_run(session, version, kind=RunKind.TRAINING, configuration={"without_certificate": "Only a <try>."})
    assert "Only a &lt;try&gt;." in viewer.get(f"/runs/{run.id}").text


@pytest.mark.parametrize("wanted", [True, False])
def test_publishing_has_the_version_checked_if_wanted(
    session: Session, author: TestClient, guess: Environment, wanted: bool
):
    answer = author.post(f"{API}/guess/publish", json={} if wanted else {"check": False})
    assert answer.status_code == 201
    checks = session.scalar(select(func.count()).select_from(Run).where(Run.kind == RunKind.CHECK))
    assert checks == int(wanted)


def test_the_editor_offers_the_checks_with_a_tick(author: TestClient, guess: Environment):
    text = author.get("/environments/guess/edit").text
    assert '<input type="checkbox" name="check" value="true" checked>' in text


def test_a_version_that_is_published_manually_is_not_checked_automatically(session: Session, guess: Environment):
    version = publish_version(session, None, guess, revision=1)
    assert version.certificate is None
    assert session.scalar(select(func.count()).select_from(Run)) == 0


def test_what_is_wrong_with_a_fixture_is_reported_while_it_is_edited():
    fixtures = {
        "fixtures/odd.json": '{"replies": ["1"], "columns": {"lose": 1}}',
        "fixtures/foreign.json": '{"rows": []}',
    }
    [problem] = validate_package(make_files() | fixtures, "guess").problems
    assert (problem.path, problem.message) == (
        "fixtures/odd.json",
        "columns: the manifest declares no lose; it declares win, format",
    )


def test_a_failed_check_shows_its_advice(session: Session, viewer: TestClient, version: EnvironmentVersion):
    texts = {"label": "Gold", "advice": "Fix the reward."}
    certify(session, version, result("gold", CheckStatus.FAILED, **texts), result("levels", CheckStatus.PASSED))
    text = viewer.get(PAGE).text
    assert "Gold." in text
    assert text.count("Fix the reward.") == 1


def test_the_coverage_of_the_grader_is_shown_with_the_branches_that_no_answer_reached(
    session: Session, viewer: TestClient, version: EnvironmentVersion
):
    certify(session, version, *audited())
    text = " ".join(viewer.get(PAGE).text.split())
    assert "Coverage of the grader: 0.71" in text
    assert "[0.63, 0.77]" in text
    assert "50%</a> <span" in text
    assert "server/guess.py:12" in text
    assert "if given &lt; 0:" in text
    found = viewer.get(f"{API}/guess/versions/1/certificate").json()["coverage"]
    assert found["score"] == pytest.approx(0.7114, abs=1e-4)
    assert [each["found"] for each in found["shares"]] == [90, 40, 30]


def test_a_surviving_answer_becomes_a_fixture_with_one_click(
    session: Session, author: TestClient, viewer: TestClient, version: EnvironmentVersion
):
    [rollout, *_] = make_rollouts(session, make_run(session, version), [[1.0, 0.0]])
    survivor = {"variant": "a hedged answer", "task": "heldout/3", "reply": "It could be 4 or 5.", "reward": 1.0}
    survivor |= {"gold": 1.0, "bound": 0.5, "rollout": str(rollout.id)}
    details = {"survivors": [survivor]}
    certify(session, version, result("wrong_answers_lose", CheckStatus.FAILED, details=details))
    text = author.get(PAGE).text
    assert "It could be 4 or 5." in text
    assert f'action="/rollouts/{rollout.id}/fixture"' in text
    assert "Make it a fixture" not in viewer.get(PAGE).text
    answer = author.post(f"/rollouts/{rollout.id}/fixture", data={"verdict": "hack", "bound": "0.5"})
    assert answer.status_code == 303
    [fixture] = author.get(f"{API}/guess/judged-fixtures").json()["items"]
    assert fixture["highest"] == 0.5
