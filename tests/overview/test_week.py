"""The week at a glance: each figure, by project and row access, on the page, in JSON and on the command line."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.cli.renderers import show_week
from backend.core.tables import Job, Worker
from backend.domain.statistics import estimate_mean, paired_difference
from backend.domain.vocabulary import JobStatus, PolicyKind, Queue, RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.notifications.tables import Notice
from backend.overview.week import week_of
from backend.policies.tables import Policy
from backend.projects.tables import Project
from backend.results.comparison import compare
from backend.results.paired import paired_differences
from backend.results.regressions import announce_regression
from backend.results.scores import side_of
from backend.runs.service import finish_run
from backend.runs.tables import Run
from backend.runs.usage import usage_by_project
from tests import factories
from tests.review.test_corrected_rates import audited
from tests.statements import statements_of

NOW = datetime.now(UTC)
WEEK = timedelta(days=7)


def evaluated(
    session: Session, version: EnvironmentVersion, policy: Policy, wins: Sequence[float], **fields: Any
) -> Run:
    """A complete evaluation with a rollout for each value of the column `win`."""
    estimate = estimate_mean(wins)
    assert estimate is not None
    summary = {
        "reward": {"mean": estimate.mean, "low": estimate.low, "high": estimate.high, "count": len(wins)},
        "completed": len(wins),
        "rollouts": len(wins),
        "tokens_in": 40 * len(wins),
        "tokens_out": 8 * len(wins),
        "cost": 0.5,
    }
    plan = {"split": "heldout", "tasks": len(wins), "first_task": 0, "group_size": 1}
    run = factories.make_run(session, version, policy, summary=summary, configuration=plan, **fields)
    factories.make_rollouts(session, run, [[win, 0.0, 0.0] for win in wins])
    return run


@pytest.fixture
def version(session: Session) -> EnvironmentVersion:
    return factories.make_environment_version(session, factories.make_environment(session, "maze"))


def endpoint(session: Session, name: str) -> Policy:
    return factories.make_policy(session, name, PolicyKind.OPENAI_API, {"model": "m"})


def test_the_best_policy_has_its_gain_over_the_baseline_on_the_same_tasks(
    session: Session, version: EnvironmentVersion, viewer: TestClient
) -> None:
    random = evaluated(session, version, factories.make_policy(session, "random legal"), [0.0, 0.5, 0.0, 0.5] * 12)
    best = evaluated(session, version, endpoint(session, "good"), [1.0, 1.0, 0.5, 1.0] * 12)
    evaluated(session, version, endpoint(session, "poor"), [0.0, 0.0, 0.5, 0.0] * 12)
    (found,) = week_of(session).environments
    assert (found.environment, found.policy, found.run_id, found.ranked) == ("maze", "good", best.id, 3)
    assert (found.baseline_run_id, found.baseline) == (random.id, "random legal")
    assert found.gain is not None
    compared = compare(session, [side_of(session, random), side_of(session, best)]).pairings[0].reward.difference
    assert (found.gain.mean, found.gain.count) == (pytest.approx(compared.mean), 48)
    assert found.gain.low == pytest.approx(compared.low, abs=0.02)  # there by bootstrap
    assert viewer.get("/api/v1/week").json()["environments"][0]["policy"] == "good"
    text = viewer.get("/").text
    for shown in ("Last 7 days", f"/compare?run={random.id}&amp;run={best.id}", "+0.625", "48 tasks"):
        assert shown in text


def test_paired_differences_are_those_of_the_tasks_that_both_completed(
    session: Session, version: EnvironmentVersion
) -> None:
    one, other = (factories.make_run(session, version) for _ in range(2))
    before, after = factories.random_rows(30, 1, failing=0.2), factories.random_rows(30, 2, failing=0.2)
    rewards = [
        [each.reward for each in factories.make_rollouts(session, run, rows)]
        for run, rows in ((one, before), (other, after))
    ]
    both = [pair for pair in zip(*rewards, strict=True) if None not in pair]
    expected = paired_difference(*zip(*both, strict=True))
    empty = factories.make_run(session, version)
    found, none = paired_differences(session, [(one.id, other.id), (one.id, empty.id)])
    assert none is None
    assert found is not None
    assert expected is not None
    assert (found.count, found.mean) == (expected.count, pytest.approx(expected.mean, abs=1e-6))
    (first,) = paired_differences(session, [(one.id, other.id)], most=10)
    assert first is not None
    assert first.count == sum(None not in pair for pair in list(zip(*rewards, strict=True))[:10])


def test_regressions_are_clear_and_on_the_same_tasks(
    session: Session, version: EnvironmentVersion, viewer: TestClient
) -> None:
    policy, ago = endpoint(session, "assistant"), NOW - timedelta(days=9)
    fine, worse = [1.0, 1.0, 0.5, 1.0] * 4, [0.0, 0.5, 0.0, 0.5] * 4
    first = evaluated(session, version, policy, fine, ended_at=ago)
    again = evaluated(session, version, policy, worse, ended_at=NOW - timedelta(days=2))
    evaluated(session, version, policy, worse[:4], ended_at=NOW - timedelta(days=1))  # other tasks
    noisy = endpoint(session, "noisy")
    evaluated(session, version, noisy, [1.0, 0.0] * 8, ended_at=ago)
    evaluated(session, version, noisy, [0.0, 1.0] * 7 + [0.0, 0.5], ended_at=NOW)  # within the interval
    harder = factories.make_environment_version(session, version.environment, number=2)
    on_new = evaluated(session, harder, policy, [0.0] * 16, ended_at=NOW)
    trained = factories.make_policy(session, "trained", PolicyKind.LOCAL)
    old, new = (
        factories.make_checkpoint(session, trained, created_at=NOW - timedelta(hours=hours)) for hours in (9, 1)
    )
    evaluated(session, version, trained, fine, checkpoint_id=new.id, ended_at=NOW - timedelta(hours=3))
    evaluated(session, version, trained, worse, checkpoint_id=old.id, ended_at=NOW)  # an older checkpoint
    week = week_of(session)
    assert {(each.before_run_id, each.run_id, each.cause) for each in week.regressions} == {
        (first.id, again.id, "nothing known"),
        (again.id, on_new.id, "environment version"),
    }
    assert week.compared == 3
    runs = session.scalars(select(Run)).all()
    assert {run.id for run in runs if announce_regression(session, run)} == {again.id, on_new.id}  # the same rule
    texts = session.scalars(select(Notice.text).order_by(Notice.id)).all()
    assert "changed by -0.625 on 16 shared tasks" in texts[0]
    assert texts[1].endswith("Since then its environment version changed from v1 to v2.")
    assert all(each.difference.high < 0 for each in week.regressions)
    assert "v1 → v2" in viewer.get("/").text


def test_trust_has_flags_audits_and_the_band_of_verdicts(
    session: Session, version: EnvironmentVersion, viewer: TestClient
) -> None:
    audited(session, factories.make_run(session, version))
    (trust,) = week_of(session).trust
    assert (trust.certificate, trust.rollouts, trust.flagged, trust.audited) == (None, 40, 10, 15)
    assert trust.hack_rate == pytest.approx((5 + 5 * 0.8 + 20 * 0.1) / 40)
    assert trust.hack_low is not None
    assert trust.hack_high is not None
    assert trust.hack_low < trust.hack_rate < trust.hack_high
    assert "hacks, judged" in viewer.get("/").text


def test_the_backlog_counts_open_and_new_items_and_their_age(
    session: Session, version: EnvironmentVersion, viewer: TestClient
) -> None:
    run = factories.make_run(session, version)
    rollouts = factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 3)
    for rollout, days in zip(rollouts, (1, 3, 20), strict=True):
        rollout.created_at = NOW - timedelta(days=days)
        session.flush()
        factories.make_flag(session, run, rollout)
    review = week_of(session, until=NOW).review
    assert (review.open, review.new, review.verdicts) == (3, 2, 0)
    assert review.median_age_seconds == pytest.approx(3 * 86400, abs=5)
    assert sum(day.new for day in review.days) == 2
    text = viewer.get("/").text
    assert "median age of open items" in text
    assert "3 d" in text


def test_spending_is_by_project_with_the_week_before(session: Session, version: EnvironmentVersion) -> None:
    other = Project(name="Vision")
    session.add(other)
    session.flush()
    span = {"started_at": NOW - timedelta(days=8), "ended_at": NOW - timedelta(days=6)}  # half in each week
    kept = {"usage": {"tokens": 1000, "cost": 4.0, "gpus": 2}}
    factories.make_run(session, version, kind=RunKind.TRAINING, summary=kept, **span)
    running = {"status": RunStatus.RUNNING, "started_at": NOW - timedelta(hours=2), "ended_at": None}
    live = factories.make_run(session, version, project_id=other.id, configuration={"threads": 3}, **running)
    factories.make_rollouts(session, live, [[1.0, 1.0, 0.0]] * 5, cost=0.1)
    factories.make_run(session, version, kind=RunKind.REPLAY, summary={"tokens_in": 7, "tokens_out": 7}, **span)
    factories.make_run(session, version, summary={"tokens_in": "many", "usage": {"gpus": None}}, **running)
    found = {each.project: each for each in usage_by_project(session, (NOW - 2 * WEEK, NOW - WEEK), NOW)}
    default, vision = found["Default"], found["Vision"]
    assert (default.now.tokens, default.before.tokens, default.before.runs) == (500, 500, 2)
    assert (default.now.cost, default.before.cost) == (2.0, 2.0)
    assert default.before.gpu_hours == pytest.approx(48)
    assert (vision.now.tokens, vision.now.cost) == (240, pytest.approx(0.5))
    assert vision.before.cost is None
    assert vision.now.cpu_hours == pytest.approx(6)
    assert vision.before.runs == 0
    chosen = usage_by_project(session, (NOW - 2 * WEEK, NOW - WEEK), NOW, other.id)
    assert [each.project for each in chosen] == ["Vision"]


def test_a_run_that_ends_keeps_its_usage(session: Session, version: EnvironmentVersion) -> None:
    training = {"hardware": {"device": "auto", "processes": 2}}
    run = factories.make_run(
        session, version, kind=RunKind.TRAINING, status=RunStatus.RUNNING, configuration=training, ended_at=None
    )
    factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 3, cost=0.25)
    session.add(Worker(name="gpu@box", queues=["gpu"], capabilities={"cuda": True}))
    lease = {"status": JobStatus.LEASED, "lease_owner": "gpu@box/12/019a"}
    session.add(Job(name="training.run", queue=Queue.GPU, run_id=run.id, **lease))
    session.flush()
    finish_run(session, run, RunStatus.COMPLETED)
    assert run.summary["usage"] == {"tokens": 144, "cost": 0.75, "gpus": 2}


@pytest.mark.slow
def test_it_is_of_the_chosen_project_and_omits_hidden_ones(
    session: Session, version: EnvironmentVersion, viewer: TestClient, admin: TestClient
) -> None:
    secret = Project(name="Secret", is_restricted=True)
    session.add(secret)
    session.flush()
    environment = factories.make_environment(session, "hidden_maze")
    policy = endpoint(session, "hidden policy")
    environment.project_id = policy.project_id = secret.id
    session.flush()
    hidden = factories.make_environment_version(session, environment)
    run = evaluated(session, hidden, policy, [1.0] * 4, project_id=secret.id)
    factories.make_flag(session, run)
    evaluated(session, version, endpoint(session, "good"), [1.0] * 4)
    for client, names, waiting in ((viewer, {"maze"}, 0), (admin, {"maze", "hidden_maze"}, 1)):
        week = client.get("/api/v1/week").json()
        assert {each["environment"] for each in week["environments"] + week["trust"]} == names
        assert week["review"]["open"] == waiting
        assert len(week["spending"]) == len(names)
        assert ("hidden_maze" in client.get("/").text) is ("hidden_maze" in names)
    week = admin.get("/api/v1/week", headers={"Proctor-Project": "Secret"}).json()
    assert [each["environment"] for each in week["environments"]] == ["hidden_maze"]
    assert [each["project"] for each in week["spending"]] == ["Secret"]
    week = admin.get("/api/v1/week", headers={"Proctor-Project": "Default"}).json()
    assert [each["environment"] for each in week["environments"]] == ["maze"]
    assert week["review"]["open"] == 0


def test_a_quiet_week_says_what_to_do_next(session: Session, viewer: TestClient, trainer: TestClient) -> None:
    long_ago = NOW - timedelta(days=60)
    factories.make_run(session, started_at=long_ago, ended_at=long_ago, created_at=long_ago)
    assert "Nothing happened in the last 7 days" in viewer.get("/").text
    assert 'href="/evaluations/new"' in trainer.get("/").text


def test_the_number_of_statements_does_not_depend_on_the_number_of_rows(
    session: Session, version: EnvironmentVersion
) -> None:
    def fill(count: int) -> None:
        for number in range(count):
            own = factories.make_environment_version(session)
            evaluated(session, own, factories.make_policy(session), [0.0, 0.5])
            policy = endpoint(session, f"policy {count} {number}")
            evaluated(session, own, policy, [1.0, 1.0])
            run = evaluated(session, own, policy, [0.5, 0.5])
            factories.make_flag(session, run)

    counted = []
    for count in (1, 4):
        fill(count)
        session.expunge_all()
        with statements_of(session) as sent:
            week_of(session)
        counted.append(len(sent))
    assert counted[0] == counted[1] <= 18


def test_the_command_prints_the_same_figures(
    session: Session, version: EnvironmentVersion, viewer: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated(session, version, endpoint(session, "good"), [1.0, 0.5])
    audited(session, factories.make_run(session, version))
    show_week(viewer.get("/api/v1/week").json())
    text = capsys.readouterr().out
    for shown in ("maze v1", "good", "0.750", "No regressions.", "Review: ", "this week", "week before"):
        assert shown in text
    show_week(viewer.get("/api/v1/week", headers={"Proctor-Project": "Default"}).json())
