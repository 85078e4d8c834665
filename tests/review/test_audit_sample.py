"""The random audit sample: determined by the run's seed alone, in any order, from unflagged rollouts."""

import uuid
from collections import defaultdict
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from backend.core.queue import JUDGING_JOB
from backend.core.tables import Job
from backend.domain.vocabulary import JobStatus, Phase, PolicyKind, Queue, RunKind, RunStatus
from backend.review import audit_sample, queries, queue
from backend.review.schemas import Order, ReviewFilter
from backend.review.tables import AuditDraw, AuditSample, ReviewItem
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from tests import factories

MANY = 600


@pytest.fixture
def run(session: Session) -> Run:
    policy = factories.make_policy(session, kind=PolicyKind.LOCAL)
    return factories.make_run(session, policy=policy)


def _drawn(session: Session, run: Run) -> set[uuid.UUID]:
    return set(session.scalars(select(AuditSample.rollout_id).where(AuditSample.run_id == run.id)))


def reward_share(rollout: Rollout) -> float:
    """Return its reward as a share of the highest one."""
    assert rollout.reward is not None
    return rollout.reward / sum(max(0.0, weight) for weight in factories.WEIGHTS.values())


def _set_seed(session: Session, run: Run, seed: int, share: float = 0.2) -> None:
    session.add(AuditDraw(run_id=run.id, seed=seed, share=share))
    session.flush()


@pytest.mark.slow
def test_batch_by_batch_or_all_at_once_are_the_same(session: Session, run: Run) -> None:
    _set_seed(session, run, 7)
    rollouts = []
    for start in range(0, 60, 20):
        for index in range(start, start + 20):
            group = factories.make_group(session, run, index=index)
            rollouts.append(factories.make_rollout(session, run, group, [1.0, 1.0, 0.0]))
        audit_sample.draw_from(session, run.id)
    chance = audit_sample.chance_of(0.2, reward_share(rollouts[0]))
    expected = {each.id for each in rollouts if audit_sample.lots_of(7, each.id)[0] < chance}
    assert _drawn(session, run) == expected
    assert 4 <= len(expected) <= 36
    assert set(session.scalars(select(ReviewItem.id))) == expected
    assert audit_sample.draw_from(session, run.id) == 0


def test_two_per_cent_are_drawn_and_another_seed_draws_others(session: Session) -> None:
    ids = [uuid.UUID(int=number) for number in range(20_000)]
    drawn = [{each for each in ids if audit_sample.lots_of(seed, each)[0] < audit_sample.SHARE} for seed in (1, 2)]
    assert all(330 < len(each) < 470 for each in drawn)
    assert len(drawn[0] & drawn[1]) < 30
    places = [audit_sample.lots_of(1, each)[1] for each in drawn[0]]
    assert 0.4 < sum(places) / len(places) < 0.6


def test_what_failed_is_not_drawn_and_what_is_flagged_is_marked(session: Session, run: Run) -> None:
    _set_seed(session, run, 1, share=2.0)
    plain, flagged, failed = factories.make_rollouts(session, run, [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], None])
    factories.make_flag(session, run, flagged)
    audit_sample.draw_from(session, run.id)
    assert _drawn(session, run) == {plain.id, flagged.id}
    marks = select(AuditSample.is_flagged).where(AuditSample.rollout_id == flagged.id)
    assert session.scalar(marks) is True
    assert failed.id not in set(session.scalars(select(ReviewItem.id)))


def _look(session: Session, run: Run, status: JobStatus = JobStatus.DONE, ago: timedelta = timedelta()) -> None:
    ended_at = datetime.now(UTC) - ago if status is JobStatus.DONE else None
    session.add(Job(name=JUDGING_JOB, queue=Queue.CPU, run_id=run.id, status=status, ended_at=ended_at))
    session.flush()


def _rollouts_of(session: Session, run: Run, count: int = 5, phase: Phase = Phase.EVALUATION) -> set[uuid.UUID]:
    _set_seed(session, run, 1, share=2.0)
    return {each.id for each in factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]] * count, phase=phase)}


def test_scripts_and_short_runs_are_drawn_from_like_all_that_detectors_scan(session: Session, run: Run) -> None:
    scripted = factories.make_run(session)
    expected = {each.id: _rollouts_of(session, each) for each in (run, scripted)}
    for each in (run, scripted):
        _look(session, each)
    assert audit_sample.draw_audits(session) == 10
    assert {each.id: _drawn(session, each) for each in (run, scripted)} == expected


def test_an_evaluation_is_drawn_from_after_the_detectors_scanned_all_of_it(session: Session, run: Run) -> None:
    _rollouts_of(session, run)
    assert audit_sample.draw_audits(session) == 0
    _look(session, run, JobStatus.QUEUED)
    assert audit_sample.draw_audits(session) == 0
    session.execute(update(Job).values(status=JobStatus.DONE, ended_at=datetime.now(UTC)))
    assert audit_sample.draw_audits(session) == 5


def test_one_that_continues_after_a_scan_waits_for_the_next(session: Session) -> None:
    resumed = factories.make_run(session, status=RunStatus.RUNNING, ended_at=None)
    _rollouts_of(session, resumed)
    _look(session, resumed)
    assert audit_sample.draw_audits(session) == 0


def test_an_old_run_is_drawn_from_when_someone_has_it_scanned(session: Session) -> None:
    long_ago = datetime.now(UTC) - timedelta(days=9)
    old = factories.make_run(session, ended_at=long_ago)
    trained = factories.make_run(session, kind=RunKind.TRAINING, ended_at=long_ago)
    for each, phase in ((old, Phase.EVALUATION), (trained, Phase.TRAIN)):
        _rollouts_of(session, each, phase=phase)
        _look(session, each, ago=timedelta(days=8))
    assert audit_sample.draw_audits(session) == 0
    for each in (old, trained):
        _look(session, each)
    assert audit_sample.draw_audits(session) == 10


def test_a_training_is_drawn_from_while_it_continues(session: Session) -> None:
    training = factories.make_run(session, kind=RunKind.TRAINING, status=RunStatus.RUNNING, ended_at=None)
    _rollouts_of(session, training, phase=Phase.TRAIN)
    assert audit_sample.draw_audits(session) == 5


def _in_order(session: Session, run: Run) -> list[ReviewItem]:
    """All of the run, flagged or drawn, as the queue has it."""
    audit_sample.draw_from(session, run.id)
    queue.refresh(session)
    statement = select(ReviewItem).where(ReviewItem.run_id == run.id)
    return list(session.scalars(statement.order_by(ReviewItem.rank.desc(), ReviewItem.id.desc())))


def test_its_places_are_spread_over_those_of_the_flagged(session: Session, run: Run) -> None:
    _set_seed(session, run, 3, share=2.0)
    rollouts = factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 60)
    for number, rollout in enumerate(rollouts[:30]):
        factories.make_flag(session, run, rollout, score=(number + 1) / 30)
    ordered = _in_order(session, run)
    blind = [place for place, item in enumerate(ordered) if not item.detectors]
    assert len(blind) == 30
    assert 20 < sum(blind) / 30 < 40
    assert {item.rank for item in ordered if not item.detectors} <= {item.rank for item in ordered if item.detectors}


@pytest.mark.slow
def test_its_places_say_no_more_than_its_rewards(session: Session, run: Run) -> None:
    """A rollout that earned nothing is listed after rewarded ones, whether it was sampled or flagged."""
    _set_seed(session, run, 3, share=2.0)
    rows = [[0.0, 0.0, 0.0], [0.5, 0.0, 0.0], [1.0, 1.0, 0.0]] * 40
    rollouts = factories.make_rollouts(session, run, rows)
    for number, rollout in enumerate(rollouts[:60]):
        factories.make_flag(session, run, rollout, score=(number + 1) / 60)
    places: defaultdict[tuple[bool, float], list[int]] = defaultdict(list)
    ranks: defaultdict[tuple[bool, float], set[float]] = defaultdict(set)
    for place, item in enumerate(_in_order(session, run)):
        places[bool(item.detectors), item.reward_share].append(place)
        ranks[bool(item.detectors), item.reward_share].add(item.rank)
    shares = {share for _, share in places}
    assert len(shares) == 3
    for share in shares:
        flagged, blind = places[True, share], places[False, share]
        assert len(flagged) == len(blind) == 20
        assert ranks[False, share] <= ranks[True, share]
        assert abs(sum(flagged) - sum(blind)) / 20 < 20  # five standard deviations
    assert min(places[False, 0.0]) > max(place for share in shares - {0.0} for place in places[False, share])


def test_of_a_reward_that_nothing_flagged_has_the_suspicion_is_drawn_and_counts_by_its_own(
    session: Session, run: Run
) -> None:
    _set_seed(session, run, 3, share=2.0)
    rollouts = factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 10 + [[0.5, 0.0, 0.0]] * 30)
    for number, rollout in enumerate(rollouts[:10]):
        factories.make_flag(session, run, rollout, score=(number + 1) / 10)
    ordered = _in_order(session, run)
    known = [item.suspicion for item in ordered if item.detectors]
    drawn = {round(item.rank / item.reward_share, 9) for item in ordered if not item.detectors}
    assert 6 < len(drawn) <= len({round(each, 9) for each in known} | drawn) == 10


@pytest.mark.slow
def test_it_stands_among_the_repeats_of_clusters_too(session: Session, run: Run) -> None:
    _set_seed(session, run, 3, share=2.0)
    rollouts = factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 100)
    for number, rollout in enumerate(rollouts[:40]):
        factories.make_flag(session, run, rollout, score=(number + 1) / 40, cluster=str(number % 4))
    ordered = _in_order(session, run)
    repeats = [item for item in ordered if item.rank < 0]
    firsts = [item for item in ordered if item.rank >= 0]
    assert [sum(bool(item.detectors) for item in part) for part in (firsts, repeats)] == [4, 36]
    blind = sum(not item.detectors for item in repeats)
    assert blind >= 45
    late = repeats[len(repeats) // 2 :]
    assert 15 <= sum(not item.detectors for item in late) <= 40


def test_what_waits_in_a_run_lends_before_what_waits_elsewhere(session: Session, run: Run) -> None:
    _set_seed(session, run, 3, share=2.0)
    other = factories.make_run(session, run.version)
    for each, score in ((run, 0.2), (other, 0.8)):
        for rollout in factories.make_rollouts(session, each, [[1.0, 1.0, 0.0]] * 6):
            factories.make_flag(session, each, rollout, score=score)
    factories.make_flag(session, run, None, score=1.0)
    group = factories.make_group(session, run, index=50)
    drawn = factories.make_rollout(session, run, group, [1.0, 1.0, 0.0])
    strengths = {item.id: item.rank / item.reward_share for item in _in_order(session, run)}
    assert strengths[drawn.id] == pytest.approx(0.1, abs=1e-6)


def test_where_nothing_flagged_waits_its_lot_is_its_suspicion(session: Session, run: Run) -> None:
    _set_seed(session, run, 3, share=2.0)
    (drawn,) = factories.make_rollouts(session, run, [[0.5, 0.0, 0.0]])
    (item,) = _in_order(session, run)
    assert item.rank == pytest.approx(audit_sample.lots_of(3, drawn.id)[1] * item.reward_share)


def test_one_that_is_flagged_later_is_a_flagged_one(session: Session, run: Run) -> None:
    _set_seed(session, run, 1, share=2.0)
    rollout = factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]])[0]
    audit_sample.draw_from(session, run.id)
    factories.make_flag(session, run, rollout, detector="late")
    assert session.get_one(ReviewItem, rollout.id).detectors == ["late"]
    assert _drawn(session, run) == {rollout.id}


def test_chances_follow_what_a_verdict_can_take_from_the_reward() -> None:
    low, high = audit_sample.chance_of(0.02, 0.0), audit_sample.chance_of(0.02, 1.0)
    assert (low, high) == (pytest.approx(0.01), pytest.approx(0.03))
    assert audit_sample.chance_of(0.02, 1.0, 0.5) == pytest.approx(0.3)
    assert audit_sample.chance_of(0.02, 1.0, 0.999) == pytest.approx(0.15)
    assert audit_sample.chance_of(1.0, 1.0, 0.5) == 1.0


def test_a_day_has_limits_and_chances_stay_known(session: Session, run: Run) -> None:
    other = factories.make_run(session)
    for each in (run, other):
        _rollouts_of(session, each, 30)
        audit_sample.draw_from(session, each.id)
    verdicts = {item.id for item in session.scalars(select(ReviewItem).where(ReviewItem.run_id == run.id).limit(30))}
    assert audit_sample.keep_within_limits(session, per_run=20, per_day=30) == 30
    session.expire_all()
    kept = session.scalars(select(AuditSample)).all()
    draws = {draw.run_id: draw for draw in session.scalars(select(AuditDraw))}
    assert len(kept) == 30
    assert set(session.scalars(select(ReviewItem.id))) == {each.rollout_id for each in kept}
    assert verdicts > {each.rollout_id for each in kept if each.run_id == run.id}
    for each in kept:
        threshold = draws[each.run_id].threshold
        assert each.priority < threshold < 1
        assert each.chance == pytest.approx(threshold)  # of 1 at first
        assert audit_sample.lots_of(1, each.rollout_id)[0] == pytest.approx(each.priority)
    assert audit_sample.keep_within_limits(session, per_run=20, per_day=30) == 0
    # later ones of the day are drawn with the lower chance
    group = factories.make_group(session, run, index=77)
    for member in range(40):
        factories.make_rollout(session, run, group, [1.0, 1.0, 0.0], member=member)
    assert audit_sample.draw_from(session, run.id) < 40


def test_estimates_by_chance_are_unbiased(session: Session) -> None:
    """Horvitz and Thompson's estimate of a total over many seeds, with chances that differ threefold."""
    ids = [uuid.UUID(int=number) for number in range(400)]
    shares = [number % 5 / 4 for number in range(400)]
    chances = [audit_sample.chance_of(0.2, share) for share in shares]
    totals = []
    for seed in range(200):
        drawn = [audit_sample.lots_of(seed, each)[0] < chance for each, chance in zip(ids, chances, strict=True)]
        totals.append(sum(s / c for s, c, is_in in zip(shares, chances, drawn, strict=True) if is_in))
    assert sum(totals) / len(totals) == pytest.approx(sum(shares), rel=0.03)


def test_the_queue_can_list_the_sample_alone_in_its_random_order(session: Session, run: Run) -> None:
    ids = _rollouts_of(session, run, 6)
    audit_sample.draw_from(session, run.id)
    unsampled = factories.make_rollout(session, run, factories.make_group(session, run, index=90), [1.0, 1.0, 0.0])
    for rollout in [unsampled, session.get_one(Rollout, min(ids))]:
        factories.make_flag(session, run, rollout)
    reviewer = factories.make_member(session).person_id
    chosen = ReviewFilter(order=Order.INTERVAL)
    priorities = dict(session.execute(select(AuditSample.rollout_id, AuditSample.priority)).all())
    expected = sorted(ids, key=lambda each: priorities[each])
    first, cursor = queries.queue(session, chosen, reviewer, limit=4)
    second, end = queries.queue(session, chosen, reviewer, after=cursor, limit=4)
    assert [item.id for item in [*first, *second]] == expected
    assert end is None
    assert queries.next_id(session, chosen, reviewer) == expected[0]
    assert queries.next_id(session, chosen, reviewer, first[0]) == expected[1]
