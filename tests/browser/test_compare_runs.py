"""Runs are chosen, compared and looked into, one against another; a leaderboard leads there."""

import re

import pytest
from playwright.sync_api import Page, expect

from backend.core.session import transaction
from backend.domain.runs.plans import EvaluationPlan
from tests import factories

pytestmark = pytest.mark.browser
NAMES = ("chance", "novice", "expert")


@pytest.fixture
def environment(address: str) -> str:
    """Three policies that were evaluated on the same tasks of this environment."""
    with transaction() as session:
        version = factories.make_environment_version(session)
        plan = EvaluationPlan(tasks=24).model_dump(mode="json")
        for place, name in enumerate(NAMES):
            number = factories.make_policy(session).name.split()[-1]
            policy = factories.make_policy(session, f"{name} {number}")
            mean = place / 2
            figure = {"mean": mean, "low": mean - 0.1, "high": mean + 0.1, "count": 24}
            summary = {"reward": figure, "rollouts": 24, "completed": 24}
            run = factories.make_run(
                session, version, policy, name=f"{name} plays", configuration=plan, summary=summary
            )
            said = [{"role": "assistant", "content": f"I am the {name}"}]
            rows = [[float(index < 12 * place), 1.0, 0.0] for index in range(24)]
            factories.make_rollouts(session, run, rows, messages=said)
        return version.environment.name


def test_runs_are_chosen_one_after_another(page: Page, environment: str) -> None:
    page.goto("/runs?environment=" + environment)
    page.get_by_role("link", name="chance plays").click()
    page.locator("#run-head").get_by_role("link", name="Compare").click()
    _choose(page, "Second run", "novice plays")
    expect(page.locator("#comparison")).to_contain_text("better")
    expect(page.get_by_label("Difference", exact=True)).to_contain_text("12 tasks")
    _choose(page, "Another run", "expert plays")
    standings = page.get_by_role("table", name="Runs")
    expect(standings.get_by_role("row")).to_have_count(4)
    expect(page.get_by_role("table", name="Wins and losses")).to_contain_text("24 – 0")
    standings.get_by_role("row").filter(has_text="expert").get_by_role("link", name="details").click()
    expect(page.get_by_role("heading", name=re.compile("expert .* compared with chance"))).to_be_visible()
    page.get_by_role("table", name="Most improved").get_by_role("link").nth(3).click()
    expect(page.locator("#side-by-side mark").first).to_have_text(re.compile("chance"))
    expect(page.locator("#side-by-side mark").nth(1)).to_have_text(re.compile("expert"))


def test_a_leaderboard_leads_to_the_comparison_of_its_top_two(page: Page, environment: str) -> None:
    page.goto("/leaderboards")
    page.get_by_role("link", name=environment, exact=True).click()
    ranking = page.get_by_role("table", name="Ranking")
    expect(ranking.get_by_role("row").nth(1)).to_contain_text("expert")
    page.get_by_role("link", name="Compare the top two").click()
    expect(page.get_by_role("heading", name="Compare", exact=True)).to_be_visible()
    expect(page.get_by_label("Differences by reward column")).to_contain_text("novice")


def _choose(page: Page, label: str, name: str) -> None:
    select = page.get_by_label(label)
    option = select.locator("option").filter(has_text=name).first
    select.select_option(value=option.get_attribute("value"))
    page.get_by_role("button", name="Compare").click()
