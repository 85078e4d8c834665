"""A hack becomes a fixture that later versions must score low; an honest episode may; both can be taken back."""

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.db.models import Fixture, Rollout
from backend.domain.judged_fixtures import least_kept
from backend.domain.vocabulary import Role, Verdict
from backend.errors import InvalidInput
from backend.judging.consequences import fixtures
from backend.judging.forms import VerdictForm
from backend.judging.service import judge_rollout
from tests import factories
from tests.factories import Member


@pytest.fixture
def reviewer(session: Session) -> Member:
    return factories.make_member(session, Role.REVIEWER)


def a_rollout(session: Session, **checks: float) -> Rollout:
    version = factories.make_environment_version(session, checks=checks)
    run = factories.make_run(session, version)
    return factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]])[0]


def judge(session: Session, reviewer: Member, rollout: Rollout, verdict: Verdict) -> None:
    judge_rollout(session, reviewer, rollout, VerdictForm(verdict=verdict))


def rows(session: Session) -> list[Fixture]:
    return list(session.scalars(select(Fixture).order_by(Fixture.id)))


def test_a_hack_must_score_at_most_the_declared_floor(session: Session, reviewer: Member):
    rollout = a_rollout(session, floor_maximum=0.3)
    judge(session, reviewer, rollout, Verdict.HACK)
    (made,) = rows(session)
    assert (made.highest, made.lowest, made.rollout_id, made.created_by) == (0.3, None, rollout.id, reviewer.person_id)
    (replayed,) = fixtures.judged_fixtures(session, made.environment_id)
    assert (replayed.demand, list(replayed.replies), replayed.task.index) == ("at most 0.3", ["<move>4</move>"], 0)


def test_another_verdict_takes_it_back_and_the_row_stays(session: Session, reviewer: Member):
    rollout = a_rollout(session, floor_maximum=0.3)
    judge(session, reviewer, rollout, Verdict.HACK)
    judge(session, reviewer, rollout, Verdict.HONEST)
    (made,) = rows(session)
    assert made.withdrawn_because == "judged honest"
    assert fixtures.judged_fixtures(session, made.environment_id) == []
    judge(session, reviewer, rollout, Verdict.HACK)
    assert [row.withdrawn_at is None for row in rows(session)] == [False, True]


def test_without_a_floor_a_person_has_to_say_what_it_may_earn(session: Session, reviewer: Member):
    rollout = a_rollout(session)
    judge(session, reviewer, rollout, Verdict.HACK)
    assert rows(session) == []
    with pytest.raises(InvalidInput):
        fixtures.keep(session, reviewer, rollout.id)
    assert fixtures.keep(session, reviewer, rollout.id, 0.25).highest == 0.25


def test_another_bound_is_another_row(session: Session, reviewer: Member):
    rollout = a_rollout(session, floor_maximum=0.3)
    judge(session, reviewer, rollout, Verdict.HACK)
    changed = fixtures.keep(session, reviewer, rollout.id, 0.1)
    assert [(row.highest, row.withdrawn_because) for row in rows(session)] == [
        (0.3, "the bound became 0.1"),
        (0.1, ""),
    ]
    with pytest.raises(fixtures.IsWithdrawn):
        fixtures.change_bound(session, reviewer, rows(session)[0], 0.2)
    assert fixtures.change_bound(session, reviewer, changed, 0.1) is changed


def test_an_honest_episode_is_kept_only_when_somebody_asks(session: Session, reviewer: Member):
    rollout = a_rollout(session, floor_maximum=0.3)
    with pytest.raises(fixtures.NotJudged):
        fixtures.keep(session, reviewer, rollout.id)
    judge(session, reviewer, rollout, Verdict.HONEST)
    assert rows(session) == []
    made = fixtures.keep(session, reviewer, rollout.id)
    assert made.highest is None
    assert made.lowest == pytest.approx(1.2, abs=2e-4)
    assert made.lowest <= 1.2


def test_the_same_replies_to_the_same_task_are_one_fixture(session: Session, reviewer: Member):
    version = factories.make_environment_version(session, checks={"floor_maximum": 0.3})
    run = factories.make_run(session, version)
    for rollout in factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 3, group_size=2):
        judge(session, reviewer, rollout, Verdict.HACK)
    assert [row.task["index"] for row in rows(session)] == [0, 1]


def test_a_failed_rollout_leaves_nothing_to_replay(session: Session, reviewer: Member):
    version = factories.make_environment_version(session, checks={"floor_maximum": 0.3})
    rollout = factories.make_rollouts(session, factories.make_run(session, version), [None])[0]
    judge(session, reviewer, rollout, Verdict.HACK)
    assert rows(session) == []


@pytest.mark.parametrize("reward", [0.1, 1.2, 1.2000000476837158, 0.0, -0.3])
def test_the_bound_of_an_honest_episode_survives_single_precision(reward: float):
    assert reward - 2e-4 < least_kept(reward) < reward
