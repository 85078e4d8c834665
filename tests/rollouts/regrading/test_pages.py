"""The pages: what may be done with a run's rollouts, a live preview, before and after, and who may."""

import uuid

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.tables import Job
from backend.domain.graders.settings import GraderKind
from backend.domain.ids import new_id
from backend.domain.rollouts.regrading import copy_id
from backend.domain.vocabulary import GradeStatus, RolloutStatus, RunKind, RunStatus
from backend.graders.tables import Grade, Grader
from backend.rollouts.scope import scope_of
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from tests.factories import (
    make_environment,
    make_environment_version,
    make_policy,
    make_rollouts,
    make_run,
    make_step,
    random_rows,
)

HX = {"HX-Request": "true"}


@pytest.fixture
def source(session: Session) -> Run:
    """Twelve rollouts in groups of three, on the first of two versions."""
    environment = make_environment(session)
    first = make_environment_version(session, environment)
    make_environment_version(session, environment, number=2, weights={"win": 1.0, "brevity": 0.3})
    run = make_run(session, first)
    make_rollouts(session, run, random_rows(12, seed=3), group_size=3)
    return run


def again(session: Session, source: Run, kind: RunKind = RunKind.REPLAY, **fields: object) -> Run:
    """The source's rollouts in another run, the first of them gone another way in its second step."""
    values = {"configuration": {}, "source_run_id": source.id, **fields}
    run = make_run(session, source.version, source.policy, kind=kind, **values)
    made = make_rollouts(session, run, [[0.0, 1.0, 0.0]] * 12, group_size=3)
    for rollout, original in zip(made, _rollouts(session, source), strict=True):
        rollout.source_id = original.id
    made[0].metrics = {"diverged_at": 1}
    made[0].steps = [make_step("<move>4</move>", {"win": 0.0}, observation={"board": "<b>O</b>"})]
    session.flush()
    return run


def reader(session: Session, source: Run) -> Grader:
    """Was shown what the policy thought, and gave the first rollout a score."""
    judge = Grader(
        name="mind_reader",
        kind=GraderKind.JUDGE,
        policy_id=make_policy(session).id,
        settings={"kind": "judge", "shows_reasoning": True},
    )
    session.add(judge)
    session.flush()
    first = _rollouts(session, source)[0]
    given = {"grader_id": judge.id, "run_id": source.id, "rollout_id": first.id}
    session.add(Grade(id=new_id(), score=0.5, status=GradeStatus.COMPLETED, **given))
    session.flush()
    return judge


def _rollouts(session: Session, run: Run) -> list[Rollout]:
    return list(session.scalars(select(Rollout).where(Rollout.run_id == run.id).order_by(Rollout.seq)))


def test_the_choices_show_weights_versions_and_what_the_certificate_states(author: TestClient, source: Run) -> None:
    page = author.get(f"/runs/{source.id}/rescore")
    assert page.status_code == 200
    for told in ["Other weights", "invalid_move", "v2", "regrading not certified", "Replay on this version"]:
        assert told in page.text


def test_the_preview_follows_the_weights_that_are_typed(author: TestClient, source: Run) -> None:
    weights = {"name": ["win", "format", "invalid_move"], "weight": ["0", "0", "-1"]}
    block = author.get(f"/runs/{source.id}/rescore", params=weights, headers=HX)
    assert block.status_code == 200
    assert "<html" not in block.text
    assert 'id="rescore-preview"' in block.text
    assert 'name="weight" value="-1.0"' in block.text


def test_a_judge_that_read_thoughts_says_so_and_takes_no_weight(
    author: TestClient, session: Session, source: Run
) -> None:
    judge = reader(session, source)
    choices = author.get(f"/runs/{source.id}/rescore").text
    assert "none: it saw the reasoning" in choices
    assert (">judge.mind_reader</label>" in choices, ">win</label>" in choices) == (False, True)
    refused = author.post(f"/runs/{source.id}/rescore", data={"name": ["judge.mind_reader"], "weight": ["1"]})
    assert refused.status_code == 422
    assert "learns to hide" in refused.text
    assert "Never a reward" in author.get(f"/graders/{judge.id}").text
    fields = [scope_of(session, source, for_learning=learning).fields for learning in (False, True)]
    assert ["judge.mind_reader" in each for each in fields] == [True, False]


@pytest.mark.parametrize("weight", ["", "a lot", "nan", "inf"])
def test_a_weight_that_is_no_number_is_refused(author: TestClient, source: Run, weight: str) -> None:
    sent = {"name": ["win"], "weight": [weight]}
    assert author.post(f"/runs/{source.id}/rescore", data=sent).status_code == 422


def test_stored_weights_become_a_queued_run(author: TestClient, session: Session, source: Run) -> None:
    sent = {"name": ["win", "format", "invalid_move"], "weight": ["2", "0", "0"]}
    answer = author.post(f"/runs/{source.id}/rescore", data=sent)
    assert answer.status_code == 303
    run = session.scalars(select(Run).where(Run.source_run_id == source.id)).one()
    assert (run.kind, run.status, run.weights) == (RunKind.RESCORE, RunStatus.QUEUED, [2.0, 0.0, 0.0])
    assert session.scalars(select(Job).where(Job.run_id == run.id)).one().name == "rescoring.run"
    assert author.get(answer.headers["location"]).status_code == 200


@pytest.mark.parametrize("where", ["rescore/version", "replay"])
def test_another_version_is_queued(author: TestClient, session: Session, source: Run, where: str) -> None:
    other = session.scalars(select(Run.version_id).where(Run.id == source.id)).one()
    answer = author.post(f"/runs/{source.id}/{where}", data={"version_id": str(other)})
    assert answer.status_code == 303
    assert answer.headers["location"].endswith("/before-after")


def test_before_and_after_shows_what_changed_and_where(viewer: TestClient, session: Session, source: Run) -> None:
    page = viewer.get(f"/runs/{again(session, source).id}/before-after")
    assert page.status_code == 200
    for told in ["diverged", "step 1", "Most changed rollouts", f"/compare?run={source.id}"]:
        assert told in page.text


def test_a_refused_re_score_offers_to_say_why(author: TestClient, session: Session, source: Run) -> None:
    refused = {"status": RunStatus.FAILED, "reason": "Not re-scored, because it would not be faithful."}
    run = make_run(session, source.version, kind=RunKind.RESCORE, source_run_id=source.id, configuration={}, **refused)
    page = author.get(f"/runs/{run.id}/before-after")
    assert "Reason to continue" in page.text
    short = author.post(f"/runs/{run.id}/override", data={"reason": "because"})
    assert short.status_code == 422


def test_a_run_that_was_never_scored_again_has_no_before(viewer: TestClient, source: Run) -> None:
    assert viewer.get(f"/runs/{source.id}/before-after").status_code == 404


def test_a_rollout_is_shown_next_to_its_original_with_what_differs_marked(
    viewer: TestClient, session: Session, source: Run
) -> None:
    run = again(session, source)
    page = viewer.get(f"/rollouts/{_rollouts(session, run)[0].id}/before-after")
    assert page.status_code == 200
    assert "<mark>&lt;b&gt;O&lt;/b&gt;</mark>" in page.text
    assert "<b>O</b>" not in page.text


def test_an_original_lists_the_runs_that_took_it_over(viewer: TestClient, session: Session, source: Run) -> None:
    run = again(session, source)
    original = _rollouts(session, source)[0]
    place = original.training_step, 0, original.member
    assert _rollouts(session, run)[0].id == copy_id(run.id, *place)
    page = viewer.get(f"/rollouts/{original.id}/before-after")
    assert f"/runs/{run.id}/before-after" in page.text


def test_one_rollout_is_scored_by_the_newest_version(author: TestClient, session: Session, source: Run) -> None:
    original = _rollouts(session, source)[0]
    assert author.post(f"/rollouts/{original.id}/rescore").status_code == 303
    run = session.scalars(select(Run).where(Run.source_run_id == source.id)).one()
    assert run.configuration["rollout_ids"] == [str(original.id)]
    assert run.columns == ["win", "brevity"]


def test_runs_that_were_requested_together_are_listed(viewer: TestClient, session: Session, source: Run) -> None:
    batch = new_id()
    run = again(session, source, configuration={"batch": str(batch)})
    assert run.name in viewer.get(f"/rescores/{batch}").text
    assert viewer.get(f"/rescores/{uuid.uuid4()}").status_code == 404


@pytest.mark.parametrize("path", ["rescore", "rescore/version", "replay", "override"])
def test_who_only_reviews_starts_nothing(reviewer: TestClient, source: Run, path: str) -> None:
    assert reviewer.post(f"/runs/{source.id}/{path}", data={}).status_code == 403


def test_a_run_page_leads_here(author: TestClient, session: Session, source: Run) -> None:
    assert f"/runs/{source.id}/rescore" in author.get(f"/runs/{source.id}").text
    run = again(session, source)
    assert f"/runs/{run.id}/before-after" in author.get(f"/runs/{run.id}").text
    rollout = _rollouts(session, run)[0]
    assert rollout.status is RolloutStatus.COMPLETED
    assert f"/rollouts/{rollout.id}/before-after" in author.get(f"/rollouts/{rollout.id}").text


def test_hostile_names_of_columns_are_only_shown(author: TestClient, session: Session) -> None:
    name = "<script>alert(1)</script>"
    version = make_environment_version(session)
    run = make_run(session, version, columns=["win", name], weights=[1.0, 1.0])
    rows = make_rollouts(session, run, [[1.0, 0.0], [0.0, 1.0]])
    rows[0].metrics = {"'; DROP TABLE rollouts; --": 1.0}
    session.flush()
    page = author.get(f"/runs/{run.id}/rescore")
    assert page.status_code == 200
    assert name not in page.text
    assert "&lt;script&gt;" in page.text
    assert "DROP TABLE" in page.text
