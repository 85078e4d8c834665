"""Steering a run while it trains: an alarm appears and is answered, the rate is changed and changed back."""

import uuid

import pytest
from playwright.sync_api import Page, expect

from backend.core.session import transaction
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import AlarmAction, PolicyKind, RunKind, RunStatus
from backend.runs.tables import Run
from tests import factories
from workers.storage.steering import AlarmDraft, claim_changes, record_alarm

pytestmark = pytest.mark.browser


def training() -> uuid.UUID:
    with transaction() as session:
        policy = factories.make_policy(session, kind=PolicyKind.LOCAL)
        run = factories.make_run(
            session,
            policy=policy,
            kind=RunKind.TRAINING,
            status=RunStatus.RUNNING,
            ended_at=None,
            configuration=TrainingConfiguration().resolved(),
            progress={"phase": "grpo", "done": 48, "total": 100},
        )
        factories.make_checkpoint(session, policy, run, stage="grpo", step=40, heldout_reward=0.7)
        factories.make_points(session, run, "reward", {step: step / 100 for step in range(1, 49)})
        return run.id


def raise_alarm(run_id: uuid.UUID) -> None:
    """As the run does it after a step."""
    sentence = "80.0% of the turns could be parsed; it was 98.0% before."
    record_alarm(
        run_id, AlarmDraft("format_fall", 48, sentence, AlarmAction.NOTE, "format_fall", 44, {"curve": "format"})
    )


def test_an_alarm_appears_and_is_answered_by_one_click(page: Page) -> None:
    run_id = training()
    page.goto(f"/runs/{run_id}/alarms")
    expect(page.get_by_text("No alarms")).to_be_visible()
    raise_alarm(run_id)
    article = page.locator(".alarm").filter(has_text="Format falls")
    expect(article).to_contain_text("Likely cause:")
    article.get_by_role("button", name="Lower the learning rate").click()
    expect(page.locator(".alarm")).to_contain_text("Answered by Ada")
    changes = page.locator("#run-changes")
    expect(changes.get_by_role("row").filter(has_text="grpo.learning_rate")).to_contain_text("0.00025")


def test_the_rate_is_changed_while_the_run_trains_claimed_and_changed_back(page: Page) -> None:
    run_id = training()
    page.goto(f"/runs/{run_id}/alarms")
    page.get_by_label("Learning rate", exact=True).fill("0.0001")
    page.get_by_role("button", name="Save settings").click()
    row = page.locator("#run-changes").get_by_role("row").filter(has_text="0.0001")
    expect(row).to_contain_text("pending")
    claim_changes(run_id, lambda _: 49)
    expect(row).to_contain_text("49")
    row.get_by_role("button", name="Undo").click()
    expect(page.locator("#run-changes tbody tr")).to_have_count(2)
    expect(page.locator("#run-changes tbody tr").first).to_contain_text("pending")
    page.goto(f"/runs/{run_id}/configuration")
    expect(page.locator("#run-changes tbody tr")).to_have_count(2)


def test_rolling_back_starts_a_branch_whose_chart_shows_both(page: Page) -> None:
    run_id = training()
    raise_alarm(run_id)
    page.goto(f"/runs/{run_id}")
    page.get_by_role("button", name="Roll back").click()
    page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("from step 40")
    expect(page.get_by_text("branched at step 40 off")).to_be_visible()
    chart = page.locator('[data-chart*="chart=reward"]')
    expect(chart.get_by_role("button", name="train, before")).to_be_visible()
    with transaction() as session:
        assert session.get_one(Run, run_id).stop_requested_at is not None
