"""The share of hacks by detectors and judges, corrected by verdicts on the audit sample of the run or of other runs."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.domain.review.calibration import ReviewedShare, Stratum, predict, rogan_gladen, weigh
from backend.domain.vocabulary import Role, Verdict
from backend.review.corrected_rates import CorrectedRate, corrected_rates
from backend.review.schemas import VerdictRequest
from backend.review.tables import AuditSample
from backend.review.verdicts import give_verdict
from backend.runs.tables import Run
from tests import factories


def audited(session: Session, run: Run, *, verdicts: bool = True) -> None:
    """40 rollouts: 10 flagged, of which 4 of 5 sampled are hacks; 30 not flagged, of which 1 of 10 sampled is one."""
    rollouts = factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]] * 40)
    for rollout in rollouts[:10]:
        factories.make_flag(session, run, rollout)
    sample = [*rollouts[:5], *rollouts[10:20]]
    for rollout in sample:
        is_flagged = rollout in rollouts[:10]
        chance = 0.5 if is_flagged else 1 / 3
        session.add(AuditSample(run_id=run.id, rollout_id=rollout.id, lot=0.5, chance=chance, is_flagged=is_flagged))
    session.flush()
    if verdicts:
        reviewer = factories.make_member(session, Role.REVIEWER)
        for place, rollout in enumerate(sample):
            verdict = Verdict.HACK if place in {0, 1, 2, 3, 5} else Verdict.HONEST
            give_verdict(session, reviewer, rollout, VerdictRequest(verdict=verdict))


def by_detectors(session: Session, run: Run) -> CorrectedRate:
    return next(rate for rate in corrected_rates(session, run) if rate.source == "detectors")


def test_own_verdicts_correct_both_strata(session: Session, viewer: TestClient) -> None:
    run = factories.make_run(session)
    audited(session, run)
    rate = by_detectors(session, run)
    assert (rate.method, rate.raw, rate.rollouts, rate.reviewed) == ("prediction_powered", 0.25, 40, 15)
    assert rate.value == pytest.approx((5 + 5 * 0.8 + 20 * 0.1) / 40)
    assert rate.low is not None
    assert rate.high is not None
    assert 5 / 40 <= rate.low < rate.value < rate.high <= 1
    found = viewer.get(f"/api/v1/runs/{run.id}/rates").json()["items"]
    assert found[0]["value"] == rate.value
    assert "27.5%" in viewer.get(f"/runs/{run.id}/safeguards").text


def test_other_runs_of_the_environment_correct_a_run_without_verdicts(session: Session) -> None:
    run, known = factories.make_run(session), None
    audited(session, run, verdicts=False)
    assert by_detectors(session, run).method is None
    known = factories.make_run(session, run.version)
    audited(session, known)
    rate = by_detectors(session, run)
    assert (rate.method, rate.reviewed) == ("rogan_gladen", 15)
    sensitivity, specificity = 8 / (8 + 3), 27 / (27 + 2)
    assert rate.value == pytest.approx((0.25 + specificity - 1) / (sensitivity + specificity - 1))


def test_no_verdict_leaves_everything_open_and_all_verdicts_nothing() -> None:
    assert predict([Stratum(None, 10, 10)], known=2).scaled(20).high == pytest.approx(0.6)
    done = predict([Stratum(weigh([(True, 1.0), (False, 1.0)]), 0, 0)], known=1)
    assert (done.value, done.low, done.high) == (1, 1, 1)


def test_limits_stay_within_zero_and_one() -> None:
    perfect = ReviewedShare(1.0, 5)
    none = rogan_gladen(0, 200, perfect, perfect)
    every = rogan_gladen(200, 200, perfect, perfect)
    assert none is not None
    assert every is not None
    assert (none.value, none.low, every.value, every.high) == (0.0, 0.0, 1.0, 1.0)
    assert none.high < 0.5 < every.low + 0.4
    assert rogan_gladen(50, 200, ReviewedShare(0.5, 20), ReviewedShare(0.4, 20)) is None


def test_the_rate_of_negatives_has_the_mirrored_limits() -> None:
    sensitivity, specificity = ReviewedShare(0.9, 20), ReviewedShare(1.0, 60)
    rate, negatives = rogan_gladen(20, 200, sensitivity, specificity), rogan_gladen(180, 200, specificity, sensitivity)
    assert rate is not None
    assert negatives is not None
    assert (1 - rate.value, 1 - rate.high, 1 - rate.low) == pytest.approx(
        (negatives.value, negatives.low, negatives.high)
    )
    # none of 60 honest rollouts was marked, so up to 1 - 0.025 ** (1 / 60) = 6% may be, and that many of the 10% marked
    assert rate.low == pytest.approx(0.1 - 0.06, abs=0.03)
