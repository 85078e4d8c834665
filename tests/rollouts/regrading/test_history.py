"""A version's history: what is graded again in one click, and how rankings, best checkpoints and means change."""

import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import pytest
from fastapi.testclient import TestClient
from scipy.stats import kendalltau
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.session import transaction
from backend.core.tables import Job
from backend.domain.vocabulary import Phase, PolicyKind, Role, RolloutStatus, RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.errors import Conflict
from backend.notifications.tables import Notice
from backend.policies.tables import Policy
from backend.rollouts.regrading.history import Conclusions, conclusions_of, history_of, regrade_history
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from tests.factories import (
    make_checkpoint,
    make_environment_version,
    make_member,
    make_policy,
    make_rollouts,
    make_run,
)
from tests.rollouts.regrading.conftest import World
from tests.web_fixtures import ClientFor
from workers.tasks.registry import JobContext
from workers.tasks.regrading import run as carry_out

PLAN = {"split": "heldout", "tasks": 6, "first_task": 0, "group_size": 1}


@pytest.fixture
def old(session: Session) -> EnvironmentVersion:
    return make_environment_version(session, weights={"win": 1.0})


@pytest.fixture
def new(session: Session, old: EnvironmentVersion) -> EnvironmentVersion:
    """An environment with a repaired reward."""
    return make_environment_version(session, old.environment, number=2, weights={"win": 1.0})


def evaluated(
    session: Session,
    version: EnvironmentVersion,
    rewards: Sequence[float],
    policy: Policy | None = None,
    **plan: object,
) -> Run:
    """A reward for each task."""
    configuration = {**PLAN, "tasks": len(rewards), **plan}
    run = make_run(session, version, policy or make_policy(session), configuration=configuration)
    make_rollouts(session, run, [[reward] for reward in rewards])
    return run


def regraded(
    session: Session,
    version: EnvironmentVersion,
    source: Run,
    rewards: Mapping[int | None, Sequence[float]],
    *,
    phase: Phase | None = None,
    **fields: object,
) -> Run:
    """The source's rollouts with other rewards, by training step."""
    values = {"kind": RunKind.RESCORE, "source_run_id": source.id, **fields}
    configuration = {"phase": phase and str(phase)}
    run = make_run(session, version, source.policy, configuration=configuration, **values)
    for step, each in rewards.items():
        copies = make_rollouts(session, run, [[reward] for reward in each], step=step)
        for copy, original in zip(copies, stored(session, source, phase, step), strict=True):
            copy.source_id = original
    session.flush()
    return run


def stored(session: Session, source: Run, phase: Phase | None, step: int | None) -> list[uuid.UUID]:
    statement = select(Rollout.id).where(Rollout.run_id == source.id).order_by(Rollout.seq)
    if phase is not None:
        statement = statement.where(Rollout.phase == phase, Rollout.training_step == step)
    return list(session.scalars(statement))


def concluded(session: Session, version: EnvironmentVersion) -> Conclusions:
    return conclusions_of(session, history_of(session, version))


def test_policies_whose_order_turns_are_reported_with_paired_intervals(
    session: Session, old: EnvironmentVersion, new: EnvironmentVersion
) -> None:
    """The hacker was first; repaired, it is last. The two honest ones keep their order."""
    names = ("hacker", "good", "fair")
    before = {"hacker": [0.9, 0.9, 0.8, 1.0, 0.9, 0.9], "good": [0.6, 0.7, 0.6, 0.8, 0.6, 0.6], "fair": [0.4] * 6}
    after = {"hacker": [0.1, 0.0, 0.1, 0.0, 0.2, 0.1], "good": [0.6, 0.7, 0.6, 0.8, 0.6, 0.6], "fair": [0.4] * 6}
    for name in names:
        source = evaluated(session, old, before[name], make_policy(session, name))
        regraded(session, new, source, {None: after[name]})
    found = concluded(session, new)
    (ranking,) = found.rankings
    assert [(each.name, each.place_before, each.place_after) for each in ranking.contenders] == [
        ("good", 2, 1),
        ("fair", 3, 2),
        ("hacker", 1, 3),
    ]
    assert ranking.rank_correlation == pytest.approx(kendalltau([2, 3, 1], [1, 2, 3]).statistic)
    assert ranking.tasks == 6
    turned = {(each.first, each.second): each for each in ranking.turned}
    assert turned.keys() == {("hacker", "fair"), ("hacker", "good")}
    pair = turned["hacker", "fair"]
    assert (pair.before.mean, pair.after.mean) == (pytest.approx(0.5), pytest.approx(0.5 / 6 - 0.4))
    assert pair.before.low > 0 > pair.after.high
    assert pair.is_clear
    assert [each.name for each in found.moved] == ["hacker"]
    assert found.moved[0].difference.mean == pytest.approx(0.5 / 6 - 0.9)
    assert found.is_changed


def test_only_comparable_runs_are_ranked_together(
    session: Session, old: EnvironmentVersion, new: EnvironmentVersion
) -> None:
    same = [evaluated(session, old, [0.1 * n] * 6) for n in (1, 2)]
    other_tasks = evaluated(session, old, [0.9] * 6, first_task=50)
    half = evaluated(session, old, [0.5] * 6)
    third = make_environment_version(session, old.environment, number=3, weights={"win": 1.0})
    elsewhere = evaluated(session, third, [0.7] * 6)
    for source in (*same, other_tasks, elsewhere):
        regraded(session, new, source, {None: [0.3] * 6})
    copy = regraded(session, new, half, {None: [0.3] * 6})
    for rollout in stored_rows(session, copy)[3:]:
        rollout.status, rollout.reward, rollout.columns = RolloutStatus.FAILED, None, None
    session.flush()
    (ranking,) = concluded(session, new).rankings
    assert {each.run_id for each in ranking.contenders} == {run.id for run in same}
    assert [(each.run_id, each.reason) for each in ranking.apart] == [(half.id, "3 of 6 tasks have both scores")]
    assert ranking.rank_correlation is None, "all earn the same now"
    assert not ranking.is_changed


def stored_rows(session: Session, run: Run) -> list[Rollout]:
    return list(session.scalars(select(Rollout).where(Rollout.run_id == run.id).order_by(Rollout.seq)))


def test_the_newest_evaluation_of_a_contender_counts(
    session: Session, old: EnvironmentVersion, new: EnvironmentVersion
) -> None:
    policy, rival = make_policy(session), make_policy(session)
    for who, reward in ((policy, 0.1), (policy, 0.8), (rival, 0.5)):
        regraded(session, new, evaluated(session, old, [reward] * 6, who), {None: [reward] * 6})
    (ranking,) = concluded(session, new).rankings
    assert [each.before.mean for each in ranking.contenders] == [pytest.approx(0.8), pytest.approx(0.5)]


def test_the_best_checkpoint_may_change(session: Session, old: EnvironmentVersion, new: EnvironmentVersion) -> None:
    """The last one was the best by a reward that favored the hack."""
    policy = make_policy(session, kind=PolicyKind.LOCAL)
    training = make_run(session, old, policy, kind=RunKind.TRAINING, configuration={})
    before = {10: [0.5, 0.5, 0.6, 0.4], 20: [0.7, 0.6, 0.7, 0.6], 30: [0.9, 1.0, 0.9, 0.9]}
    after = {10: [0.5, 0.5, 0.6, 0.4], 20: [0.7, 0.6, 0.7, 0.6], 30: [0.1, 0.0, 0.2, 0.1]}
    for step, rewards in before.items():
        make_rollouts(session, training, [[reward] for reward in rewards], phase=Phase.HELDOUT, step=step)
        fields = {"heldout_reward": sum(rewards) / 4, "heldout": {"training_step": step}}
        make_checkpoint(session, policy, training, step=step, **fields)
    regraded(session, new, training, after, phase=Phase.HELDOUT)
    (best,) = concluded(session, new).checkpoints
    assert (best.before.step, best.after.step, best.examinations, best.is_changed) == (30, 20, 3, True)
    assert (best.before.before.mean, best.before.after.mean) == (pytest.approx(0.925), pytest.approx(0.1))
    assert best.difference is not None
    assert best.difference.mean == pytest.approx(0.55)
    assert best.difference.low > 0


def test_a_history_without_a_change_says_so(
    viewer: TestClient, session: Session, old: EnvironmentVersion, new: EnvironmentVersion
) -> None:
    for n in (1, 2):
        rewards = [0.1 * n, 0.2 * n, 0.1, 0.3, 0.2, 0.1]
        regraded(session, new, evaluated(session, old, rewards), {None: rewards})
    found = concluded(session, new)
    assert not found.is_changed
    assert found.rankings[0].rank_correlation == 1.0
    name = old.environment.name
    text = viewer.get(f"/environments/{name}/versions/2/history").text
    assert "No conclusion changes so far" in text
    news = viewer.get(f"/environments/{name}/versions/2/history/events").text
    assert "event: graded_history" in news
    assert "event: end" in news
    told = viewer.get(f"/api/v1/environments/{name}/versions/2/history").json()
    assert (told["graded"], told["missing"], told["conclusions"]["is_changed"]) == (2, 0, False)
    alone = make_environment_version(session).environment.name
    assert "Nothing to regrade" in viewer.get(f"/environments/{alone}/versions/1/history").text


def test_one_click_queues_what_has_no_score_yet(
    client_for: ClientFor, session: Session, old: EnvironmentVersion, new: EnvironmentVersion
) -> None:
    """Evaluations, and of training runs their held-out evaluations and training rollouts; not open, mixed or imported
    runs.
    """
    evaluation = evaluated(session, old, [0.5] * 6)
    training = make_run(session, old, kind=RunKind.TRAINING, configuration={})
    for phase in (Phase.HELDOUT, Phase.TRAIN, Phase.WARM_UP):
        make_rollouts(session, training, [[0.5]] * 3, phase=phase, step=1)
    graded = evaluated(session, old, [0.4] * 6)
    regraded(session, new, graded, {None: [0.2] * 6})
    for unfit in ({"status": RunStatus.RUNNING}, {"configuration": {"source": {"format": "inspect"}}}):
        make_rollouts(session, make_run(session, old, **unfit), [[0.5]] * 3)
    make_rollouts(session, make_run(session, old, kind=RunKind.TRAINING, configuration={"mix": ["b"]}), [[0.5]])
    evaluated(session, new, [0.5] * 6)
    address = f"/environments/{old.environment.name}/versions/2/history"
    author = client_for(Role.AUTHOR)
    assert "Regrade history" in author.get(f"/environments/{old.environment.name}/versions/2").text
    assert "3 not regraded yet" in author.get(address).text
    assert client_for(Role.REVIEWER).post(address).status_code == 403
    answer = author.post(address)
    assert (answer.status_code, answer.headers["location"]) == (303, address)
    queued = session.scalars(select(Run).where(Run.kind == RunKind.RESCORE, Run.status == RunStatus.QUEUED)).all()
    asked = sorted((run.source_run_id == training.id, str(run.configuration["phase"])) for run in queued)
    assert asked == [(False, "None"), (True, "heldout"), (True, "train")]
    assert {run.source_run_id for run in queued} == {evaluation.id, training.id}
    assert {run.version_id for run in queued} == {new.id}
    assert session.scalars(select(Job).where(Job.run_id.in_([run.id for run in queued]))).all()
    text = client_for(Role.VIEWER).get(address).text
    assert "data-live" in text
    assert author.post(f"/api/v1{address}").status_code == 409, "all is asked for"


def test_what_was_refused_is_reported_and_not_requested_again(
    session: Session, old: EnvironmentVersion, new: EnvironmentVersion
) -> None:
    source = evaluated(session, old, [0.5] * 6)
    why = {"status": RunStatus.FAILED, "reason": "Not re-scored, because it would not be faithful."}
    regraded(session, new, source, {}, ended_at=datetime.now(UTC), **why)
    assert [part.state for part in history_of(session, new)] == ["unended"]
    with pytest.raises(Conflict):
        regrade_history(session, make_member(session, Role.AUTHOR), new)


@pytest.mark.slow
def test_a_really_played_history_is_graded_by_a_repaired_reward(world: World) -> None:
    """Policies that always add 1 (three turns, each earning `tidy`) and 3 (one turn): the repair rewards large ones."""
    first = world.version()
    slow, quick = (world.played(first, reply) for reply in ("1", "3"))
    repaired = world.version('observation.metadata["rewards"]["tidy"] = 4.0 if action.amount >= 3 else 0.0')
    with transaction() as session:
        started = regrade_history(session, world.actor, session.get_one(EnvironmentVersion, repaired))
    for run in started:
        carry_out(JobContext(uuid.uuid4(), run.id, {}, 1))
    with transaction() as session:
        (ranking,) = concluded(session, session.get_one(EnvironmentVersion, repaired)).rankings
        notice = session.scalars(select(Notice)).one()
        assert notice.text.startswith("Pairs of policies that turned: 1;")
    assert [(each.run_id, each.before.mean, each.after.mean) for each in ranking.contenders] == [
        (quick, 3.25, 5.0),
        (slow, 3.75, 3.0),
    ]
    assert (ranking.rank_correlation, ranking.turned_count) == (-1.0, 1)
