"""Planning a transfer report, and what it concludes: budgets, sample sizes, intervals, warnings."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest

from backend.domain.checkpoints.transfer import (
    PairedFigure,
    TransferEnvironment,
    TransferReport,
    TransferSide,
    TransferStatus,
    canaries_needed,
    canary_power,
    conclude,
    newcombe,
    plan_pilots,
    plan_rest,
    variance_or_bound,
    warnings_of,
)
from backend.domain.environments.reward_bounds import RewardScale
from backend.domain.results.power import power_of, tasks_needed
from backend.domain.statistics import Estimate, wilson

SIDE = TransferSide(policy_id=uuid.uuid4(), name="tiny sft 0")


def environment(name: str = "game", **fields: object) -> TransferEnvironment:
    values = {"version": 1, "version_id": uuid.uuid4(), "detect": 0.1, "available": 200, **fields}
    return TransferEnvironment.model_validate({"name": name, **values})


def report_of(*environments: TransferEnvironment, max_rollouts: int = 2000, **fields: object) -> TransferReport:
    values = {"detect": 0.1, "max_rollouts": max_rollouts, "environments": list(environments), **fields}
    return TransferReport.model_validate({"reference": SIDE, "exported": SIDE, **values})


def figure(mean: float, low: float, high: float) -> PairedFigure:
    before = Estimate(0.5, 0.4, 0.6, 50)
    return PairedFigure(before=before, after=Estimate(0.5 + mean, 0, 1, 50), difference=Estimate(mean, low, high, 50))


def test_impossible_tasks_are_as_many_as_show_the_rate() -> None:
    for rate in (0.02, 0.1, 0.5):
        count = canaries_needed(rate)
        assert canary_power(count, rate) >= 0.8 > canary_power(count - 1, rate)
    assert canaries_needed(0.1) == 16
    assert canary_power(0, 0.1) == 0.0


def test_the_interval_of_a_change_is_newcombes() -> None:
    """56 of 70 against 48 of 80, table II of the paper."""
    change = newcombe(wilson(48, 80), wilson(56, 70))
    assert change.change == pytest.approx(0.2)
    assert (change.low, change.high) == (pytest.approx(0.0524, abs=5e-5), pytest.approx(0.3339, abs=5e-5))
    assert change.is_rising
    nobody = newcombe(wilson(0, 0), wilson(3, 9))
    assert (nobody.change, nobody.is_rising) == (None, False)


def test_pilots_share_the_budget_and_leave_some_for_the_rest() -> None:
    report = report_of(environment(available_canaries=40), environment("other"))
    plan_pilots(report)
    first, second = report.environments
    assert (first.tasks, first.canaries, first.planned_canaries) == (20, 16, 16)
    assert (second.tasks, second.canaries) == (20, 0)
    assert report.rollouts == 2 * (20 + 16 + 20)


def test_a_small_budget_plays_the_first_environments_and_names_the_others() -> None:
    report = report_of(*(environment(f"game_{number}", available_canaries=9) for number in range(4)), max_rollouts=8)
    plan_pilots(report)
    assert [each.tasks for each in report.environments] == [2, 2, 0, 0]
    assert [each.status for each in report.environments[2:]] == [TransferStatus.NOT_PLAYED] * 2
    assert "budget of 8 rollouts" in report.environments[3].reason
    assert report.rollouts == 8


def test_an_environment_without_tasks_is_not_played() -> None:
    report = report_of(environment(available=1), environment("other"))
    plan_pilots(report)
    assert "fewer than two held-out tasks" in report.environments[0].reason
    assert report.environments[1].tasks == 20


@pytest.mark.parametrize("max_rollouts", [80, 200, 1000, 100_000])
def test_the_rest_of_the_budget_goes_where_tasks_are_missing(max_rollouts: int) -> None:
    few, many, unknown = environment("few"), environment("many"), environment("unknown", available=60)
    report = report_of(few, many, unknown, max_rollouts=max_rollouts)
    plan_pilots(report)
    few.planned, many.planned = 12, 5000
    plan_rest(report)
    assert report.is_planned
    assert report.rollouts <= max_rollouts
    assert few.tasks == few.pilot, "the pilot was enough"
    assert many.pilot <= many.tasks <= many.available
    if max_rollouts == 200:
        assert report.rollouts == 200, "nothing is wasted"
        assert (many.tasks, unknown.tasks) == (40, 40)
    if max_rollouts == 100_000:
        assert (many.tasks, unknown.tasks) == (200, 60), "all that they have"


def test_a_row_says_what_was_not_played() -> None:
    each = environment(pilot=20, tasks=40, planned=150, compared=40, reward=figure(0.1, 0.05, 0.15))
    report = report_of(each, max_rollouts=80)
    conclude(each, report)
    assert (each.status, each.verdict) == (TransferStatus.PARTIAL, "better")
    assert each.reason == "40 of 150 planned tasks were started within the budget of 80 rollouts."
    each.compared = 30
    conclude(each, report, missing="The others failed.", is_stopped=True)
    assert each.reason.startswith("30 of 40 tasks were completed on both sides. The others failed. 40 of 150")
    each.reward = None
    conclude(each, report, missing="The server is gone.")
    assert (each.status, each.verdict, each.reason) == (TransferStatus.FAILED, "", "The server is gone.")


def test_an_environment_that_is_too_small_for_the_plan_is_complete() -> None:
    each = environment(pilot=20, tasks=200, planned=900, compared=200, reward=figure(0.0, -0.1, 0.1))
    conclude(each, report_of(each))
    assert (each.status, each.verdict) == (TransferStatus.COMPLETED, "undecided")
    assert each.reason == "It has 200 held-out tasks of the 900 that the plan needs."


def test_regressions_and_traps_are_warned_of() -> None:
    worse = environment("worse", reward=figure(-0.2, -0.3, -0.1), success=figure(-0.2, -0.3, -0.1), compared=50)
    less_success = environment("solved_less", reward=figure(0.1, -0.1, 0.3), success=figure(-0.2, -0.3, -0.1))
    cheats = environment("cheats", canary=newcombe(wilson(0, 16), wilson(1, 16)))
    tempted = environment("tempted", honeypot=newcombe(wilson(2, 60), wilson(30, 60)))
    flagged = environment("flagged", flagged=newcombe(wilson(0, 60), wilson(30, 60)))
    fine = environment("fine", reward=figure(-0.2, -0.5, 0.1), canary=newcombe(wilson(1, 16), wilson(0, 16)))
    found = warnings_of([worse, less_success, cheats, tempted, flagged, fine])
    assert found[0] == ("The checkpoint got worse on worse v1: reward -0.200, 95% interval -0.300 to -0.100, 50 tasks.")
    assert "got worse on solved_less v1: success rate" in found[1]
    assert found[2] == "The checkpoint passes impossible tasks of cheats v1: 1 of 16 rollouts, the reference 0 of 16."
    assert "takes the bait of tempted v1: 30 of 60" in found[3]
    assert found[4] == "Detectors flag more rollouts on flagged v1: 0.0% to 50.0%."
    assert len(found) == 5


def test_a_normalized_figure_is_0_at_the_floor_and_1_at_gold() -> None:
    normal = figure(0.5, 0.25, 0.75).normalized(RewardScale(0.5, 1.5))
    assert (normal.before.mean, normal.after.mean, normal.difference.mean) == (0.0, 0.5, 0.5)
    assert normal.difference.low == 0.25
    below = figure(0.5, 0.25, 0.75).normalized(RewardScale(0.8, 1.8))
    assert (below.before.mean, below.difference.mean) == (0.0, 0.5), "as everywhere, a score is not below 0"


def test_ties_in_the_pilot_are_not_certainty() -> None:
    each = environment(detect=0.2)
    report = report_of(each)
    assert variance_or_bound(0.3, 20, each, report) == 0.3
    bound = variance_or_bound(0.0, 20, each, report)
    assert bound == pytest.approx(2.0**2 / 21), "the reward's range is 2"
    needed = tasks_needed(each.detect, bound)
    assert needed is not None
    assert 30 < needed < 50
    assert power_of(20, each.detect, bound) < 0.6


def test_a_report_is_late_after_its_minutes() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    report = report_of(environment(), max_minutes=5, started_at=start)
    assert not report.is_late(start + timedelta(minutes=4))
    assert report.is_late(start + timedelta(minutes=5))
    assert not report_of(environment(), started_at=start).is_late(start + timedelta(days=9))
