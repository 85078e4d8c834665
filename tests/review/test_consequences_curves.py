"""As trained and as judged: read from the rows of a run, and the best checkpoint follows the verdicts."""

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.checkpoints.tree import why_best
from backend.domain.vocabulary import Phase, Role, RunKind, Verdict
from backend.review.judged_curves import chart_of, choose_best, curve_of
from backend.review.schemas import VerdictRequest
from backend.review.tables import AuditSample
from backend.review.verdicts import give_verdict
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from tests import factories

HONEST, PAID = [0.5, 0.0, 0.0], [1.0, 0.0, 0.0]


@pytest.fixture
def run(session: Session) -> Run:
    """Step 1 is honest, in step 9 half of the episodes earn 1 by a hack; chance earns 0.1."""
    version = factories.make_environment_version(session, checks={"floor_maximum": 0.1})
    run = factories.make_run(session, version, kind=RunKind.TRAINING)
    for step, rows in ((1, [HONEST] * 8), (9, [HONEST] * 4 + [PAID] * 4)):
        factories.make_rollouts(session, run, rows, phase=Phase.TRAIN, step=step)
        factories.make_rollouts(session, run, rows, phase=Phase.HELDOUT, step=step)
        factories.make_checkpoint(
            session,
            run.policy,
            run,
            step=step,
            heldout_reward=0.5 if step == 1 else 0.75,
            heldout={"training_step": step, "reward": {"mean": 0.5, "low": 0.4, "high": 0.6, "count": 8}},
        )
    return run


def trained(session: Session, run: Run, step: int) -> list[Rollout]:
    statement = select(Rollout).where(
        Rollout.run_id == run.id, Rollout.phase == Phase.TRAIN, Rollout.training_step == step
    )
    return list(session.scalars(statement.order_by(Rollout.seq)))


def judge(session: Session, rollouts: list[Rollout], verdict: Verdict) -> None:
    reviewer = factories.make_member(session, Role.REVIEWER)
    for rollout in rollouts:
        give_verdict(session, reviewer, rollout, VerdictRequest(verdict=verdict))


def best(session: Session, run: Run) -> Checkpoint:
    choose_best(session, run.id)
    return session.scalars(select(Checkpoint).where(Checkpoint.run_id == run.id, Checkpoint.is_best)).one()


def test_confirmed_hacks_get_the_floor(session: Session, run: Run):
    judge(session, trained(session, run, 9)[4:], Verdict.HACK)
    first, last = curve_of(session, run)
    assert (first.trained, first.judged) == (pytest.approx(0.5), pytest.approx(0.5))
    assert last.trained == pytest.approx(0.75)
    assert last.judged == pytest.approx((4 * 0.5 + 4 * 0.1) / 8)


def test_a_rescored_hack_gets_what_the_repaired_version_gives(session: Session, run: Run):
    hack = trained(session, run, 9)[7]
    judge(session, [hack], Verdict.HACK)
    repaired = factories.make_environment_version(session, run.version.environment, number=2)
    again = factories.make_run(session, repaired, kind=RunKind.RESCORE, source_run_id=run.id)
    factories.make_rollouts(session, again, [[0.2, 0.0, 0.0]], source_id=hack.id)
    assert curve_of(session, run)[1].judged == pytest.approx((4 * 0.5 + 3 * 1.0 + 0.2) / 8)


def test_the_blind_sample_gives_the_interval(session: Session, run: Run):
    drawn = trained(session, run, 9)[::2]
    session.add_all(AuditSample(run_id=run.id, rollout_id=each.id, lot=0.5) for each in drawn)
    session.flush()
    judge(session, drawn[:2], Verdict.HONEST)
    judge(session, drawn[2:], Verdict.HACK)
    _, last = curve_of(session, run)
    assert last.judged == pytest.approx((2 * 0.5 + 2 * 0.1 + 2 * 0.5 + 2 * 1.0 - (1.8 / 2.6) * (2 * 0.4 + 2 * 0.9)) / 8)
    assert last.low is not None
    assert last.low < last.judged < last.high
    labels = [each["label"] for each in chart_of(session, run)["series"]]
    assert labels == ["as trained", "as judged", "judged at most", "judged at least"]


def test_the_best_checkpoint_is_chosen_as_judged_and_states_why(session: Session, run: Run):
    assert best(session, run).step == 9
    judge(session, trained(session, run, 9)[4:], Verdict.HACK)
    chosen = best(session, run)
    everyone = list(session.scalars(select(Checkpoint).where(Checkpoint.run_id == run.id)))
    assert chosen.step == 1
    assert why_best(chosen, everyone).startswith("highest held-out reward as judged 0.500")
    assert "as trained it has 0.500, step 9 has 0.750" in why_best(chosen, everyone)
    held = next(each for each in everyone if each.step == 9).heldout["judged"]
    assert held["mean"] == pytest.approx(0.75 - held["share"] * (4 * 0.4 + 4 * 0.9) / 8)
    judge(session, trained(session, run, 9)[4:], Verdict.HONEST)
    assert best(session, run).step == 9


def test_what_was_evaluated_for_an_export_alone_loses_its_own_steps_share(session: Session, run: Run):
    """A checkpoint of a pause: its held-out rollouts are not stored, and its place is known all the same."""
    paused = session.scalars(select(Checkpoint).where(Checkpoint.run_id == run.id, Checkpoint.step == 9)).one()
    paused.heldout = {**paused.heldout, "training_step": None}
    judge(session, trained(session, run, 9)[4:], Verdict.HACK)
    assert best(session, run).step == 1
    assert paused.heldout["judged"]["mean"] < 0.5


def test_the_untrained_policy_is_not_counted_as_the_warm_up(session: Session, run: Run):
    """Both were evaluated before step 1."""
    for step, reward in ((None, 0.2), (0, 0.6)):
        factories.make_rollouts(session, run, [[reward, 0.0, 0.0]] * 4, phase=Phase.HELDOUT, step=step)
    reached = {"heldout_reward": 0.6, "heldout": {"training_step": 0}}
    warmed_up = factories.make_checkpoint(session, run.policy, run, stage="sft", step=100, **reached)
    judge(session, trained(session, run, 9)[4:], Verdict.HACK)
    assert best(session, run) == warmed_up
    assert warmed_up.heldout["judged"]["mean"] == pytest.approx(0.6)
