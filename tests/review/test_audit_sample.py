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
from backend.review import audit_sample, queue
from backend.review.tables import AuditDraw, AuditSample, ReviewItem
from backend.runs.tables import Run
from tests import factories

MANY = 600


@pytest.fixture
def run(session: Session) -> Run:
    policy = factories.make_policy(session, kind=PolicyKind.LOCAL)
    return factories.make_run(session, policy=policy)


def _drawn(session: Session, run: Run) -> set[uuid.UUID]:
    return set(session.scalars(select(AuditSample.rollout_id).where(AuditSample.run_id == run.id)))


def _set_seed(session: Session, run: Run, seed: int, share: float = 0.2) -> None:
    session.add(AuditDraw(run_id=run.id, seed=seed, share=share))
    session.flush()


def test_batch_by_batch_or_all_at_once_are_the_same(session: Session, run: Run) -> None:
    _set_seed(session, run, 7)
    rollouts = []
    for start in range(0, 60, 20):
        for index in range(start, start + 20):
            group = factories.make_group(session, run, index=index)
            rollouts.append(factories.make_rollout(session, run, group, [1.0, 1.0, 0.0]))
        audit_sample.draw_from(session, run.id)
    expected = {each.id for each in rollouts if audit_sample.lots_of(7, each.id)[0] < 0.2}
    assert _drawn(session, run) == expected
    assert 4 <= len(expected) <= 24
    assert set(session.scalars(select(ReviewItem.id))) == expected
    assert audit_sample.draw_from(session, run.id) == 0


def test_two_per_cent_are_drawn_and_another_seed_draws_others(session: Session) -> None:
    ids = [uuid.UUID(int=number) for number in range(20_000)]
    drawn = [{each for each in ids if audit_sample.lots_of(seed, each)[0] < audit_sample.SHARE} for seed in (1, 2)]
    assert all(330 < len(each) < 470 for each in drawn)
    assert len(drawn[0] & drawn[1]) < 30
    places = [audit_sample.lots_of(1, each)[1] for each in drawn[0]]
    assert 0.4 < sum(places) / len(places) < 0.6


def test_what_failed_or_is_flagged_is_not_drawn(session: Session, run: Run) -> None:
    _set_seed(session, run, 1, share=1.0)
    plain, flagged, failed = factories.make_rollouts(session, run, [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], None])
    factories.make_flag(session, run, flagged)
    audit_sample.draw_from(session, run.id)
    assert _drawn(session, run) == {plain.id}
    assert failed.id not in set(session.scalars(select(ReviewItem.id)))


def _look(session: Session, run: Run, status: JobStatus = JobStatus.DONE, ago: timedelta = timedelta()) -> None:
    ended_at = datetime.now(UTC) - ago if status is JobStatus.DONE else None
    session.add(Job(name=JUDGING_JOB, queue=Queue.CPU, run_id=run.id, status=status, ended_at=ended_at))
    session.flush()


def _rollouts_of(session: Session, run: Run, count: int = 5, phase: Phase = Phase.EVALUATION) -> set[uuid.UUID]:
    _set_seed(session, run, 1, share=1.0)
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
    _set_seed(session, run, 3, share=1.0)
    rollouts = factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 60)
    for number, rollout in enumerate(rollouts[:30]):
        factories.make_flag(session, run, rollout, score=(number + 1) / 30)
    ordered = _in_order(session, run)
    blind = [place for place, item in enumerate(ordered) if not item.detectors]
    assert len(blind) == 30
    assert 20 < sum(blind) / 30 < 40
    assert {item.rank for item in ordered if not item.detectors} <= {item.rank for item in ordered if item.detectors}


def test_its_places_say_no_more_than_its_rewards(session: Session, run: Run) -> None:
    """A rollout that earned nothing is listed after rewarded ones, whether it was sampled or flagged."""
    _set_seed(session, run, 3, share=1.0)
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
        assert abs(sum(flagged) - sum(blind)) / 20 < 12
    assert min(places[False, 0.0]) > max(place for share in shares - {0.0} for place in places[False, share])


def test_of_a_reward_that_nothing_flagged_has_the_suspicion_is_drawn_and_counts_by_its_own(
    session: Session, run: Run
) -> None:
    _set_seed(session, run, 3, share=1.0)
    rollouts = factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 10 + [[0.5, 0.0, 0.0]] * 30)
    for number, rollout in enumerate(rollouts[:10]):
        factories.make_flag(session, run, rollout, score=(number + 1) / 10)
    ordered = _in_order(session, run)
    known = [item.suspicion for item in ordered if item.detectors]
    drawn = {round(item.rank / item.reward_share, 9) for item in ordered if not item.detectors}
    assert 6 < len(drawn) <= len({round(each, 9) for each in known} | drawn) == 10


def test_it_stands_among_the_repeats_of_clusters_too(session: Session, run: Run) -> None:
    _set_seed(session, run, 3, share=1.0)
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
    _set_seed(session, run, 3, share=1.0)
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
    _set_seed(session, run, 3, share=1.0)
    (drawn,) = factories.make_rollouts(session, run, [[0.5, 0.0, 0.0]])
    (item,) = _in_order(session, run)
    assert item.rank == pytest.approx(audit_sample.lots_of(3, drawn.id)[1] * item.reward_share)


def test_one_that_is_flagged_later_is_a_flagged_one(session: Session, run: Run) -> None:
    _set_seed(session, run, 1, share=1.0)
    rollout = factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]])[0]
    audit_sample.draw_from(session, run.id)
    factories.make_flag(session, run, rollout, detector="late")
    assert session.get_one(ReviewItem, rollout.id).detectors == ["late"]
    assert _drawn(session, run) == {rollout.id}
