"""Comparing two runs: paired by task, with baselines, and a reason when it cannot be."""

import re
import uuid

import numpy as np
import pytest
from fastapi.testclient import TestClient
from scipy import stats
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.domain.runs.plans import EvaluationPlan
from backend.domain.vocabulary import Phase, RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.policies.service import ensure_scripted_policies
from backend.results.scores import TaskKey, TaskKeys, merge, scores, side_of
from backend.rollouts.tables import Group, Task
from backend.runs.tables import Run
from tests.factories import make_checkpoint, make_environment_version, make_policy, make_rollouts, make_run, random_rows


@pytest.fixture
def version(session: Session) -> EnvironmentVersion:
    return make_environment_version(session)


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def evaluated(session: Session, version: EnvironmentVersion, rows: list[list[float] | None], **fields: object) -> Run:
    run = make_run(session, version, **fields)
    make_rollouts(session, run, rows)
    return run


def test_the_difference_is_paired_and_agrees_with_scipy(
    session: Session, viewer: TestClient, version: EnvironmentVersion
) -> None:
    rows_a, rows_b = random_rows(60, seed=1), random_rows(60, seed=2)
    before, after = evaluated(session, version, rows_a), evaluated(session, version, rows_b)
    answer = viewer.get(f"/api/v1/compare?a={before.id}&b={after.id}").json()
    weights = np.array(before.weights)
    a, b = np.array(rows_a) @ weights, np.array(rows_b) @ weights
    reward = answer["columns"][0]
    assert reward["name"] == "reward"
    assert reward["before"]["mean"] == pytest.approx(a.mean(), abs=1e-6)
    assert reward["difference"]["mean"] == pytest.approx((b - a).mean(), abs=1e-6)
    expected = stats.bootstrap(((b - a),), np.mean, n_resamples=2000, method="BCa", rng=np.random.default_rng(0))
    assert reward["difference"]["low"] == pytest.approx(expected.confidence_interval.low, abs=0.02)
    assert reward["difference"]["high"] == pytest.approx(expected.confidence_interval.high, abs=0.02)
    assert (answer["wins"], answer["losses"]) == (int((b - a > 1e-6).sum()), int((b - a < -1e-6).sum()))
    assert sum(level["tasks"] for level in answer["levels"]) == 60
    differences = [task["difference"] for task in answer["tasks"]]
    assert differences == sorted(differences, reverse=True)

    page = text_of(viewer.get(f"/compare?a={before.id}&b={after.id}").text)
    assert f"{(b - a).mean():+.3f}".replace("-", "−") in page
    assert "side by side" in page


def test_only_tasks_that_both_completed_count(
    session: Session, viewer: TestClient, version: EnvironmentVersion
) -> None:
    before = evaluated(session, version, [[0, 1, 0], None, [0, 1, 0]])
    after = evaluated(session, version, [[1, 1, 0], [1, 1, 0], None, [1, 1, 0]])
    answer = viewer.get(f"/api/v1/compare?a={before.id}&b={after.id}").json()
    assert [task["index"] for task in answer["tasks"]] == [0]
    assert (answer["only_before"], answer["only_after"]) == (1, 2)
    assert (answer["wins"], answer["losses"], answer["ties"]) == (1, 0, 0)
    assert "Only tasks that both sides completed" in viewer.get(f"/compare?a={before.id}&b={after.id}").text


def test_a_chosen_task_is_shown_on_both_sides(
    session: Session, viewer: TestClient, version: EnvironmentVersion
) -> None:
    said = [{"role": "assistant", "content": "words of before"}]
    before, after = make_run(session, version), make_run(session, version)
    make_rollouts(session, before, [[0, 1, 0], [1, 1, 0]], messages=said)
    make_rollouts(session, after, [[1, 1, 0], [0, 1, 0]], messages=[{"role": "assistant", "content": "words of after"}])
    answer = viewer.get(f"/api/v1/compare?a={before.id}&b={after.id}").json()
    worst = answer["tasks"][-1]
    html = viewer.get(f"/compare?a={before.id}&b={after.id}&task={worst['task_id']}").text
    assert f"/rollouts/{worst['rollout_before']}" in html
    assert f"/rollouts/{worst['rollout_after']}" in html
    assert "words of before" in text_of(html)
    assert "<mark> before</mark>" in html
    assert "<mark> after</mark>" in html
    assert "the replies differ from turn 1" in html


def test_the_newest_baseline_that_covers_the_tasks_stands_with(
    session: Session, viewer: TestClient, version: EnvironmentVersion
) -> None:
    random = make_policy(session, configuration={"script": "random"})
    evaluated(session, version, [[0, 1, 0]] * 4, policy=random)
    newest = evaluated(session, version, [[0.5, 1, 0]] * 4, policy=random)
    evaluated(session, version, [[1, 1, 0]] * 2, policy=random)  # covers too little
    evaluated(session, version, [[1, 1, 0]] * 4, policy=random, status=RunStatus.STOPPED)
    gold = make_policy(session, configuration={"script": "gold"})
    before = evaluated(session, version, random_rows(4, 1), policy=gold)
    after = evaluated(session, version, random_rows(4, 2), policy=gold)
    found = {
        each["script"]: each for each in viewer.get(f"/api/v1/compare?a={before.id}&b={after.id}").json()["baselines"]
    }
    assert found["random"]["run_id"] == str(newest.id)
    assert found["random"]["reward"]["mean"] == pytest.approx(0.7)
    assert found["constant"] == {"script": "constant", "run_id": None, "reward": None}


def test_a_missing_baseline_is_started_on_the_same_tasks_once(
    session: Session, author: TestClient, viewer: TestClient, version: EnvironmentVersion
) -> None:
    ensure_scripted_policies(session)
    plan = EvaluationPlan(tasks=4, first_task=3, group_size=2)
    run = make_run(session, version, configuration=plan.model_dump(mode="json"))
    sent = {"run_id": str(run.id), "script": "constant"}
    first = author.post("/compare/baselines", data=sent).headers["location"]
    assert author.post("/compare/baselines", data=sent).headers["location"] == first
    started = session.scalars(select(Run).where(Run.id == uuid.UUID(first.rsplit("/", 1)[1]))).one()
    assert EvaluationPlan.model_validate(started.configuration).task_indexes == plan.task_indexes
    assert viewer.post("/compare/baselines", data=sent).status_code == 403
    assert author.post("/compare/baselines", data=sent | {"script": "gold"}).status_code == 422


def test_a_training_run_is_compared_with_itself_at_an_earlier_step(
    session: Session, viewer: TestClient, version: EnvironmentVersion
) -> None:
    run = make_run(session, version, kind=RunKind.TRAINING)
    make_rollouts(session, run, [[0, 1, 0]] * 4, phase=Phase.HELDOUT, step=0)
    make_rollouts(session, run, [[1, 1, 0]] * 4, phase=Phase.HELDOUT, step=40)
    answer = viewer.get(f"/api/v1/compare?a={run.id}&a_step=0&b={run.id}").json()
    assert (answer["before"]["step"], answer["after"]["step"]) == (0, 40)
    assert answer["columns"][0]["difference"]["mean"] == pytest.approx(1.0)


def test_the_best_and_the_last_checkpoint_can_be_chosen(
    session: Session, viewer: TestClient, version: EnvironmentVersion
) -> None:
    policy = make_policy(session)
    run = make_run(session, version, policy, kind=RunKind.TRAINING, name="run")
    for step, win in ((20, 1), (40, 0)):
        make_rollouts(session, run, [[win, 1, 0]] * 4, phase=Phase.HELDOUT, step=step)
    refused = viewer.get(f"/api/v1/compare?run={run.id}@best&run={run.id}@last")
    assert (refused.status_code, "no best checkpoint yet" in refused.text) == (422, True)
    make_checkpoint(session, policy, run, stage="grpo", step=20, is_best=True)
    answer = viewer.get(f"/api/v1/compare?run={run.id}@best&run={run.id}@last").json()
    assert (answer["before"]["step"], answer["after"]["step"]) == (20, 40)
    html = viewer.get(f"/compare?run={run.id}@20&run={run.id}").text
    assert "at step 20, best checkpoint" in html
    assert "at step 40, last checkpoint" in html
    offered = viewer.get("/compare").text
    assert f'<option value="{run.id}@20">run, best checkpoint (step 20)' in offered
    assert f'<option value="{run.id}">run, last checkpoint' in offered


def test_settings_that_differ_are_listed(session: Session, viewer: TestClient, version: EnvironmentVersion) -> None:
    runs = []
    for temperature in (1.0, 0.5):
        plan = EvaluationPlan(tasks=4, sampling={"temperature": temperature}).model_dump(mode="json")
        runs.append(make_run(session, version, configuration=plan))
        make_rollouts(session, runs[-1], [[0, 1, 0]] * 4)
    html = viewer.get(f"/compare?run={runs[0].id}&run={runs[1].id}").text
    table = html[html.index('id="differences"') : html.index('id="plan"')]
    assert "Temperature" in table
    assert '1.0 <span class="faint">(default)</span>' in table
    assert "<td>0.5</td>" in table
    assert "Group size" not in table


def test_it_states_why_not(session: Session, viewer: TestClient, version: EnvironmentVersion) -> None:
    run = evaluated(session, version, [[1, 1, 0]])
    other_version = evaluated(session, make_environment_version(session, version.environment, number=2), [[1, 1, 0]])
    other_environment = evaluated(session, make_environment_version(session), [[1, 1, 0]])
    empty = make_run(session, version)
    for other, why in (
        (other_version, "different versions"),
        (other_environment, "different environments"),
        (run, "same run was selected twice"),
        (empty, "No task was completed on both sides"),
    ):
        assert why in text_of(viewer.get(f"/compare?a={run.id}&b={other.id}").text)
        answer = viewer.get(f"/api/v1/compare?a={run.id}&b={other.id}")
        assert (answer.status_code, answer.json()["error"]) == (409, "NotComparable")


def test_missing_runs_and_no_choice(session: Session, viewer: TestClient, version: EnvironmentVersion) -> None:
    run = evaluated(session, version, [[1, 1, 0]])
    assert "Choose two runs" in viewer.get("/compare").text
    assert viewer.get(f"/compare?a={run.id}&b={uuid.UUID(int=1)}").status_code == 404
    assert viewer.get("/api/v1/compare?a=1&b=2").status_code == 422


def test_several_runs_are_held_against_the_first(
    session: Session, viewer: TestClient, version: EnvironmentVersion
) -> None:
    rows = [random_rows(20, seed) for seed in (1, 2, 3)]
    names = ("alpha", "beta", "gamma")
    runs = [
        evaluated(session, version, each, policy=make_policy(session, name))
        for each, name in zip(rows, names, strict=True)
    ]
    query = "&".join(f"run={run.id}" for run in runs)
    answer = viewer.get(f"/api/v1/compare?{query}").json()
    weights = np.array(runs[0].weights)
    rewards = [np.array(each) @ weights for each in rows]
    assert [run["policy"] for run in answer["runs"]] == list(names)
    assert [each["columns"][0]["difference"]["mean"] for each in answer["pairings"]] == pytest.approx(
        [(reward - rewards[0]).mean() for reward in rewards[1:]], abs=1e-6
    )
    for i, row in enumerate(rewards):
        for j, column in enumerate(rewards):
            assert answer["matrix"][i][j]["wins"] == int((row - column > 1e-6).sum())
    signs = [(reward - rewards[0])[abs(reward - rewards[0]) > 1e-6] > 0 for reward in rewards[1:]]
    assert [each["sign_test"] for each in answer["pairings"]] == pytest.approx(
        [stats.binomtest(int(sign.sum()), len(sign)).pvalue for sign in signs]
    )
    page = text_of(viewer.get(f"/compare?{query}").text)
    assert "Wins and losses" in page
    assert "beta compared with alpha" in page
    assert "gamma compared with alpha" in text_of(viewer.get(f"/compare?{query}&focus=2").text)


def test_it_shows_what_is_missing_and_where_to_get_it(
    session: Session, author: TestClient, version: EnvironmentVersion
) -> None:
    few = evaluated(session, version, random_rows(4, 1), policy=make_policy(session, "few"))
    many = evaluated(session, version, random_rows(12, 2), policy=make_policy(session, "many"))
    answer = author.get(f"/api/v1/compare?run={few.id}&run={many.id}").json()
    lacks = next(remark for remark in answer["remarks"] if remark["text"].startswith("few is missing 8 tasks"))
    assert lacks["action"] == "Evaluate 8 more tasks"
    assert f"again={few.id}" in lacks["href"]
    assert "tasks=12" in lacks["href"]
    assert re.search(r'name="tasks"[^>]* value="12"', author.get(lacks["href"]).text)


def test_other_weights_and_conditions_are_reported(
    session: Session, viewer: TestClient, version: EnvironmentVersion
) -> None:
    before = evaluated(session, version, random_rows(4, 1))
    after = evaluated(session, version, random_rows(4, 2), kind=RunKind.RESCORE, weights=[2.0, 0.2, -0.1])
    told = " ".join(
        remark["text"] for remark in viewer.get(f"/api/v1/compare?run={before.id}&run={after.id}").json()["remarks"]
    )
    assert "weights of win differ" in told
    page = text_of(viewer.get(f"/compare?run={before.id}&run={after.id}").text)
    assert "verdict none the rewards are different sums" in page


def test_a_rescored_run_meets_its_source_in_another_version(
    session: Session, viewer: TestClient, version: EnvironmentVersion
) -> None:
    newer = make_environment_version(session, version.environment, number=2)
    before = evaluated(session, version, [[0, 1, 0], [1, 1, 0]])
    after = evaluated(session, newer, [[1, 1, 0], [1, 1, 0]], kind=RunKind.RESCORE, source_run_id=before.id)
    answer = viewer.get(f"/api/v1/compare?run={before.id}&run={after.id}").json()
    assert (answer["shared_tasks"], answer["wins"], answer["ties"]) == (2, 1, 1)
    assert any("v1 and v2" in remark["text"] for remark in answer["remarks"])


def test_one_run_is_not_a_comparison(session: Session, viewer: TestClient, version: EnvironmentVersion) -> None:
    run = evaluated(session, version, [[1, 1, 0]])
    assert viewer.get(f"/api/v1/compare?run={run.id}").status_code == 422
    assert viewer.get("/api/v1/compare?run=nonsense&run=x").status_code == 422
    assert "Runs on the same version are listed first" in viewer.get(f"/compare?b={run.id}").text


def test_scores_by_task_are_the_means_of_the_completed_rollouts(session: Session) -> None:
    run = make_run(session)
    rows = random_rows(24, seed=5, failing=0.3)
    rollouts = make_rollouts(session, run, rows, group_size=3)
    found = scores(session, side_of(session, run))
    for start in range(0, len(rows), 3):
        task = session.get_one(Task, session.get_one(Group, rollouts[start].group_id).task_id)
        own = [each for each in rollouts[start : start + 3] if each.columns]
        key = TaskKeys.of([TaskKey(task.split, task.index, task.seed, run.version.environment_id)])
        if not own:
            assert not found.keys.has(key)
            continue
        (row,) = found.keys.places(key).tolist()
        expected = np.mean([[*(each.columns or ()), each.reward] for each in own], axis=0)
        assert found.values[row] == pytest.approx(expected, abs=1e-6)
        assert (found.task_id(row), found.levels[row], found.counts[row]) == (task.id, task.level, len(own))
        variance = np.var([each.reward for each in own], ddof=1) if len(own) > 1 else np.nan
        assert found.variances[row] == pytest.approx(variance, abs=1e-6, nan_ok=True)
    assert list(merge([found]).keys) == list(found.keys)
