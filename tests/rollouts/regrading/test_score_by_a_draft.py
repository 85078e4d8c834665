"""A draft's reward on stored episodes before it is published: requested on the transcript, computed in the job."""

import uuid

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.session import transaction
from backend.core.tables import Job
from backend.environments.library import load_package
from backend.environments.tables import Environment, EnvironmentDraft
from backend.rollouts.regrading.service import score_by_draft
from tests import factories
from tests.envhost_fixture import HostProcess
from workers.tasks.drafts import score
from workers.tasks.registry import JobContext

HACK = ["<guess>50</guess>", "I stop here."]
FILES = load_package("sloppy_guess")
REPAIRED = FILES | {"openenv.yaml": FILES["openenv.yaml"].replace("weight: 1.0,", "weight: 0.1,")}


def a_hack(session: Session) -> tuple[Environment, uuid.UUID]:
    """Six rollouts of one pattern on `sloppy_guess`; the draft is repaired."""
    environment = factories.make_environment(session, "sloppy_guess")
    version = factories.make_package_version(session, FILES, environment)
    session.add(EnvironmentDraft(environment_id=environment.id, files=REPAIRED))
    evaluation = factories.make_run(session, version)
    steps = [factories.make_step(reply, {}, done=False) for reply in HACK]
    rollouts = factories.make_rollouts(session, evaluation, [[0.0, 1.0, 0.5]] * 6, steps=steps, turns=2)
    for rollout in rollouts[:3]:
        factories.make_flag(session, evaluation, rollout, detector="early_exit", cluster="one guess")
    return environment, rollouts[0].id


@pytest.mark.slow
def test_it_shows_this_rollout_its_pattern_and_the_history(found_host: HostProcess) -> None:
    with transaction() as session:
        _, rollout_id = a_hack(session)
        job = score_by_draft(session, rollout_id)
        context = JobContext(job.id, None, job.arguments, 1)
    score(context)
    with transaction() as session:
        answer = session.get_one(Job, job.id).arguments["answer"]
    assert answer["error"] == ""
    assert [answer[part]["count"] for part in ("this", "cluster", "history")] == [1, 2, 6]
    assert answer["this"]["before"]["mean"] == pytest.approx(1.05)
    assert answer["this"]["after"]["mean"] == pytest.approx(0.15)
    assert answer["history"]["lower"] == 6
    (policy,) = answer["policies"]
    assert (policy["count"], policy["place_before"], policy["place_after"]) == (6, 1, 1)


@pytest.mark.slow
def test_the_editor_shows_the_rollout_next_to_the_code(author: TestClient, reviewer: TestClient, session: Session):
    environment, rollout_id = a_hack(session)
    author.post(f"/rollouts/{rollout_id}/verdicts", data={"verdict": "broken_reward"})
    link = f"/environments/{environment.name}/edit?beside={rollout_id}"
    assert link in author.get(f"/rollouts/{rollout_id}").text
    assert link not in reviewer.get(f"/rollouts/{rollout_id}").text
    text = author.get(link).text
    assert "beside-transcript" in text
    assert f"&amp;beside={rollout_id}" in text
    answer = author.post(f"/rollouts/{rollout_id}/draft-score")
    (job,) = session.scalars(select(Job).where(Job.name == "rescoring.draft"))
    assert answer.headers["location"] == f"/draft-scores/{job.id}"
    assert "being played" in author.get(f"/draft-scores/{job.id}").text
    assert reviewer.post(f"/rollouts/{rollout_id}/draft-score").status_code == 403
    assert author.get(f"/environments/{environment.name}/edit?beside={uuid.uuid4()}").status_code == 404
