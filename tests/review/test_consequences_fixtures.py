"""A hack becomes a fixture that later versions must score low; an honest episode may; both can be taken back."""

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.domain.environments.fixtures import least_kept
from backend.domain.vocabulary import Role, Verdict
from backend.errors import InvalidInput
from backend.review import fixtures
from backend.review.fixtures import effects_of
from backend.review.schemas import VerdictRequest
from backend.review.tables import VerdictFixture
from backend.review.verdicts import give_verdict
from backend.rollouts.tables import Rollout
from tests import factories
from tests.factories import Member


@pytest.fixture
def reviewer(session: Session) -> Member:
    return factories.make_member(session, Role.REVIEWER)


def a_rollout(session: Session, **checks: float) -> Rollout:
    version = factories.make_environment_version(session, checks=checks)
    run = factories.make_run(session, version)
    return factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]])[0]


@pytest.fixture
def author(session: Session) -> Member:
    return factories.make_member(session, Role.AUTHOR)


def twins(session: Session) -> tuple[Rollout, Rollout]:
    """Two rollouts of one task that did the same."""
    version = factories.make_environment_version(session, checks={"floor_maximum": 0.3})
    run = factories.make_run(session, version)
    first, second = factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 2, group_size=2)
    return first, second


def in_force(session: Session) -> list[float | None]:
    """Bounds."""
    return [row.bound for row in rows(session) if row.withdrawn_at is None]


def judge(session: Session, reviewer: Member, rollout: Rollout, verdict: Verdict) -> None:
    give_verdict(session, reviewer, rollout, VerdictRequest(verdict=verdict))


def rows(session: Session) -> list[VerdictFixture]:
    return list(session.scalars(select(VerdictFixture).order_by(VerdictFixture.id)))


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


@pytest.mark.parametrize("before", [Verdict.HACK, Verdict.HONEST])
def test_unsure_changes_nothing(session: Session, reviewer: Member, before: Verdict):
    rollout = a_rollout(session, floor_maximum=0.3)
    judge(session, reviewer, rollout, Verdict.UNSURE)
    assert rows(session) == []
    judge(session, reviewer, rollout, before)
    kept = fixtures.keep(session, reviewer, rollout.id)
    judge(session, reviewer, rollout, Verdict.UNSURE)
    assert [row.id for row in rows(session) if row.withdrawn_at is None] == [kept.id]
    assert fixtures.judged_rollout(session, rollout.id).verdict is before


def test_a_broken_reward_states_for_no_bound_that_it_is_right(session: Session, reviewer: Member):
    rollout = a_rollout(session, floor_maximum=0.3)
    judge(session, reviewer, rollout, Verdict.HACK)
    judge(session, reviewer, rollout, Verdict.BROKEN_REWARD)
    (made,) = rows(session)
    assert made.withdrawn_because == "judged broken reward"


@pytest.mark.parametrize("again", [Verdict.HONEST, Verdict.BROKEN_REWARD])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_it_stays_while_a_twin_is_judged_a_hack(
    session: Session, reviewer: Member, again: Verdict, order: tuple[int, int]
):
    both = twins(session)
    for each in both:
        judge(session, reviewer, each, Verdict.HACK)
    judge(session, reviewer, both[order[0]], again)
    assert in_force(session) == [0.3]
    judge(session, reviewer, both[order[1]], Verdict.UNSURE)
    assert in_force(session) == [0.3]
    judge(session, reviewer, both[order[1]], again)
    assert in_force(session) == []


def test_a_twin_that_did_something_else_keeps_nothing(session: Session, reviewer: Member):
    both = twins(session)
    both[1].steps = [factories.make_step("<move>5</move>", {})]
    session.flush()
    for each in both:
        judge(session, reviewer, each, Verdict.HACK)
    judge(session, reviewer, both[0], Verdict.HONEST)
    assert [row.replies[0]["reply"] for row in rows(session) if row.withdrawn_at is None] == ["<move>5</move>"]


def test_what_is_a_hack_elsewhere_is_not_kept_as_honest(session: Session, reviewer: Member):
    first, second = twins(session)
    judge(session, reviewer, first, Verdict.HACK)
    judge(session, reviewer, second, Verdict.HONEST)
    with pytest.raises(fixtures.IsAHackElsewhere):
        fixtures.keep(session, reviewer, second.id)
    judge(session, reviewer, first, Verdict.HONEST)
    fixtures.keep(session, reviewer, second.id)
    judge(session, reviewer, first, Verdict.HACK)
    assert in_force(session) == [0.3]


def test_without_a_floor_an_author_has_to_say_what_it_may_earn(session: Session, reviewer: Member, author: Member):
    rollout = a_rollout(session)
    judge(session, reviewer, rollout, Verdict.HACK)
    assert rows(session) == []
    told = effects_of(session, rollout.id)
    assert told
    assert told.can_be_kept
    assert "declares no floor" in told.gap
    with pytest.raises(InvalidInput):
        fixtures.keep(session, reviewer, rollout.id)
    with pytest.raises(fixtures.BoundIsForAuthors):
        fixtures.keep(session, reviewer, rollout.id, 0.25)
    assert fixtures.keep(session, author, rollout.id, 0.25).highest == 0.25
    told = effects_of(session, rollout.id)
    assert told
    assert told.fixture
    assert not told.calls_for_more


def test_a_full_list_is_reported_and_takes_more_manually(
    session: Session, reviewer: Member, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fixtures, "MAX_BY_VERDICT", 0)
    rollout = a_rollout(session, floor_maximum=0.3)
    judge(session, reviewer, rollout, Verdict.HACK)
    told = effects_of(session, rollout.id)
    assert told
    assert "already added" in told.gap
    assert (told.can_be_kept, told.default_bound) == (True, 0.3)
    assert fixtures.keep(session, reviewer, rollout.id).highest == 0.3


def test_another_bound_is_another_row(session: Session, author: Member):
    reviewer = author
    rollout = a_rollout(session, floor_maximum=0.3)
    judge(session, reviewer, rollout, Verdict.HACK)
    changed = fixtures.keep(session, reviewer, rollout.id, 0.1)
    assert fixtures.keep(session, reviewer, rollout.id) is changed
    assert [(row.highest, row.withdrawn_because) for row in rows(session)] == [
        (0.3, "the bound became 0.1"),
        (0.1, ""),
    ]
    with pytest.raises(fixtures.IsWithdrawn):
        fixtures.change_bound(session, reviewer, rows(session)[0], 0.2)
    assert fixtures.change_bound(session, reviewer, changed, 0.1) is changed


def test_an_honest_episode_is_kept_only_when_someone_asks(session: Session, reviewer: Member):
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
    told = effects_of(session, rollout.id)
    assert told
    assert "did not finish" in told.gap
    assert not told.can_be_kept


@pytest.mark.parametrize("reward", [0.1, 1.2, 1.2000000476837158, 0.0, -0.3])
def test_the_bound_of_an_honest_episode_survives_single_precision(reward: float):
    assert reward - 2e-4 < least_kept(reward) < reward
