"""A branch continues with another version of its environment, such as one with a repaired reward."""

import uuid
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.domain.vocabulary import CheckStatus, Role, RunKind
from backend.environments.tables import Certificate, Environment, EnvironmentVersion
from backend.runs.tables import Run
from backend.training.branches import branch_points
from tests.factories import make_environment_version, make_run
from tests.training.pages.test_steer_a_run import alarm, ask, changes_of, post, training
from tests.web_fixtures import ClientFor

REASON = "The repair was read line by line."


@pytest.fixture
def run(session: Session) -> Run:
    return training(session)


@pytest.fixture
def repaired(session: Session, run: Run) -> EnvironmentVersion:
    """Its reward has another column and another weight."""
    own = session.get_one(EnvironmentVersion, run.version_id)
    environment = session.get_one(Environment, own.environment_id)
    return make_environment_version(session, environment, number=own.number + 1, weights={"win": 2.0, "care": 0.5})


def branch_of(session: Session, answer: Any) -> Run:
    return session.get_one(Run, uuid.UUID(answer.json()["id"]))


def test_it_has_the_other_versions_columns_and_says_so(
    session: Session, client_for: ClientFor, run: Run, repaired: EnvironmentVersion
) -> None:
    body = {"step": 20, "version": repaired.number, "without_certificate": REASON}
    branch = branch_of(session, ask(client_for(Role.TRAINER), f"/runs/{run.id}/branch", body))
    assert (branch.version_id, branch.branch_step, branch.source_run_id) == (repaired.id, 20, run.id)
    assert (branch.columns, branch.weights) == (["win", "care"], [2.0, 0.5])
    assert branch.configuration["content_hash"] == repaired.content_hash
    assert branch.configuration["without_certificate"] == REASON
    assert branch.name.endswith(f"from step 20 on v{repaired.number}")
    assert run.columns != branch.columns, "the source stays as it is"
    assert "branched onto another version at step 20 off" in client_for(Role.VIEWER).get(f"/runs/{branch.id}").text


def test_a_version_without_a_certificate_asks_for_a_reason(
    session: Session, client_for: ClientFor, run: Run, repaired: EnvironmentVersion
) -> None:
    client, body = client_for(Role.TRAINER), {"step": 20, "version": repaired.number}
    refused = ask(client, f"/runs/{run.id}/branch", body)
    assert refused.status_code == 422
    assert "no certificate" in refused.json()["fields"]["without_certificate"]
    check = make_run(session, repaired, kind=RunKind.CHECK)
    session.add(Certificate(version_id=repaired.id, run_id=check.id, status=CheckStatus.PASSED, results=[]))
    session.flush()
    session.expire(repaired, ["certificate"])  # read in this session before
    branch = branch_of(session, ask(client, f"/runs/{run.id}/branch", body))
    assert branch.configuration["without_certificate"] is None


def test_an_alarm_is_answered_by_continuing_with_the_repaired_version(
    session: Session, client_for: ClientFor, run: Run, repaired: EnvironmentVersion
) -> None:
    seen = alarm(session, run, onset=30)
    client = client_for(Role.TRAINER)
    page = client.get(f"/runs/{run.id}/branch?alarm_id={seen.id}").text
    assert "grpo step 20" in page
    assert f'<option value="{repaired.number}">' in page
    form = {"answer": "roll_back", "version": repaired.number, "without_certificate": REASON}
    answered = post(client, f"/runs/{run.id}/alarms/{seen.id}", **form)
    branch = session.get_one(Run, uuid.UUID(answered.headers["location"].rpartition("/")[2]))
    assert (branch.version_id, branch.branch_step) == (repaired.id, 20)
    assert changes_of(session, branch) == [], "the rate stays: the reward was at fault"
    assert seen.answer == "roll_back"


def test_the_page_offers_checkpoints_and_versions(
    client_for: ClientFor, run: Run, repaired: EnvironmentVersion
) -> None:
    client = client_for(Role.TRAINER)
    page = client.get(f"/runs/{run.id}/branch").text
    for shown in ("sft step 800", "grpo step 20", "grpo step 40", f"v{repaired.number}"):
        assert shown in page
    assert client_for(Role.AUTHOR).get(f"/runs/{run.id}/branch").status_code == 403


def test_what_does_not_fit_is_refused_with_a_message(client_for: ClientFor, run: Run) -> None:
    client = client_for(Role.TRAINER)
    missing = ask(client, f"/runs/{run.id}/branch", {"step": 20, "version": 99})
    assert (missing.status_code, "v99" in missing.json()["fields"]["version"]) == (422, True)
    answer = ask(client, f"/runs/{run.id}/alarms/{uuid.uuid4()}", {"answer": "dismiss", "version": 1})
    assert answer.status_code == 422


def test_a_branch_has_its_own_budget_that_the_form_shows(session: Session, client_for: ClientFor, run: Run) -> None:
    run.configuration = run.configuration | {"budget": {"minutes": 15, "tokens": None, "rollouts": 900}}
    session.flush()
    client = client_for(Role.TRAINER)
    html = client.get(f"/runs/{run.id}/branch").text
    assert 'name="budget.minutes" type="number" value="15.0"' in html
    assert "Usage of this run does not count" in html
    checkpoint = branch_points(session, run)[0]
    sent = {"checkpoint_id": str(checkpoint.id), "budget.minutes": "30", "budget.tokens": "", "budget.rollouts": ""}
    assert post(client, f"/runs/{run.id}/branch", **sent).status_code in (200, 303)
    branch = session.scalars(select(Run).where(Run.source_run_id == run.id)).one()
    assert changes_of(session, branch) == [("budget.minutes", 15.0, 30.0), ("budget.rollouts", 900, None)]
