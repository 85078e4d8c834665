"""What people judged a hack, or a broken reward, is not learned from when it is done again."""

import uuid

import pytest
from sqlalchemy import func, update

from backend.core.session import transaction
from backend.domain.rollouts.rollout import Rollout, Step, TaskSpec
from backend.domain.vocabulary import Phase, RolloutStatus, RunKind, Split, Verdict
from backend.review.tables import VerdictRecord
from backend.rollouts.tables import Rollout as RolloutRow
from backend.runs.tables import Run
from tests.factories import make_rollouts, make_run, make_step
from workers.training.detector_actions import Verdicts

HACK = "print('all tests passed')"


@pytest.fixture
def run_id(committed_database: str) -> uuid.UUID:
    """A training run that did the same in tasks 0 and 1."""
    with transaction() as session:
        run = make_run(session, kind=RunKind.TRAINING, name="A training run")
        steps = [make_step("Let me see.", {}), make_step(HACK, {})]
        make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 2, phase=Phase.TRAIN, step=1, steps=steps)
        return run.id


def judge(run_id: uuid.UUID, verdict: Verdict) -> None:
    """The rollout of task 0."""
    with transaction() as session:
        row = session.query(RolloutRow).where(RolloutRow.run_id == run_id).order_by(RolloutRow.seq).first()
        assert row is not None
        session.add(VerdictRecord(run_id=run_id, rollout_id=row.id, verdict=verdict))


def version_of(run_id: uuid.UUID) -> uuid.UUID:
    with transaction() as session:
        return session.get_one(Run, run_id).version_id


def played(index: int, *replies: str, version_id: uuid.UUID | None = None) -> Rollout:
    task = TaskSpec(Split.TRAIN, index, index % 4, index, version_id=version_id)
    rollout = Rollout(task, Phase.TRAIN, 0, 0, RolloutStatus.COMPLETED)
    rollout.steps = [Step(reply, {}, {}, "", {}, True) for reply in replies]
    return rollout


def test_the_same_replies_in_the_same_task_are_masked(run_id: uuid.UUID) -> None:
    judge(run_id, Verdict.HACK)
    verdicts = Verdicts([version_of(run_id)])
    rollouts = [
        played(0, "Let me see.", HACK),
        played(1, "Let me see.", HACK),
        played(0, HACK),
        played(0, "Let me see.", HACK, version_id=uuid.uuid4()),
        played(0, "Let me see.", HACK),
    ]
    assert verdicts.wrongly_rewarded(rollouts) == {0, 4}


def test_a_verdict_counts_from_when_it_is_given_and_the_newest_counts(run_id: uuid.UUID) -> None:
    verdicts = Verdicts([version_of(run_id)])
    rollouts = [played(0, "Let me see.", HACK)]
    assert verdicts.wrongly_rewarded(rollouts) == set()
    judge(run_id, Verdict.HACK)
    assert verdicts.wrongly_rewarded(rollouts) == {0}
    judge(run_id, Verdict.HONEST)
    assert verdicts.wrongly_rewarded(rollouts) == set()


def test_unsure_neither_masks_nor_unmasks(run_id: uuid.UUID) -> None:
    verdicts = Verdicts([version_of(run_id)])
    rollouts = [played(0, "Let me see.", HACK)]
    judge(run_id, Verdict.UNSURE)
    assert (verdicts.wrongly_rewarded(rollouts), verdicts.honest(rollouts)) == (set(), set())
    judge(run_id, Verdict.HACK)
    judge(run_id, Verdict.UNSURE)
    assert verdicts.wrongly_rewarded(rollouts) == {0}
    judge(run_id, Verdict.HONEST)
    judge(run_id, Verdict.UNSURE)
    assert (verdicts.wrongly_rewarded(rollouts), verdicts.honest(rollouts)) == (set(), {0})


@pytest.mark.parametrize("before", [None, Verdict.HACK, Verdict.HONEST])
def test_a_broken_reward_is_not_learned_from(run_id: uuid.UUID, before: Verdict | None) -> None:
    if before:
        judge(run_id, before)
    judge(run_id, Verdict.BROKEN_REWARD)
    verdicts = Verdicts([version_of(run_id)])
    rollouts = [played(0, "Let me see.", HACK), played(1, "Let me see.", HACK)]
    assert (verdicts.wrongly_rewarded(rollouts), verdicts.honest(rollouts)) == ({0}, set())


def test_a_verdict_that_was_taken_back_masks_nothing(run_id: uuid.UUID) -> None:
    judge(run_id, Verdict.HACK)
    with transaction() as session:
        session.execute(update(VerdictRecord).values(taken_back_at=func.now()))
    assert Verdicts([version_of(run_id)]).wrongly_rewarded([played(0, "Let me see.", HACK)]) == set()


def test_verdicts_on_other_versions_are_not_requested(run_id: uuid.UUID) -> None:
    judge(run_id, Verdict.HACK)
    assert Verdicts([uuid.uuid4()]).wrongly_rewarded([played(0, "Let me see.", HACK)]) == set()
