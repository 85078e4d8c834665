"""Days with many runs: their list, the overview for a lead, and preferences of notices."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import delete

from backend.core.session import transaction
from backend.domain.vocabulary import PolicyKind, RunStatus
from backend.rollouts.tables import SavedView
from backend.runs.tables import Run
from tests import factories
from tests.overview.test_week import evaluated

pytestmark = pytest.mark.browser

NAMES = ("organize alpha", "organize beta", "organize gamma")


@pytest.fixture(scope="module")
def runs(address: str) -> Iterator[list[Run]]:
    """Three evaluations of one policy; the last one regressed."""
    now = datetime.now(UTC)
    with transaction() as session:
        version = factories.make_environment_version(session, factories.make_environment(session, "organized_maze"))
        policy = factories.make_policy(session, "organized model", PolicyKind.OPENAI_API, {"model": "m"})
        rewards = ([0.5, 1.0] * 8, [1.0, 1.0, 0.5, 1.0] * 4, [0.0, 0.5] * 8)
        runs = [
            evaluated(session, version, policy, wins, name=name, seed=seed, ended_at=now - timedelta(hours=9 - seed))
            for seed, (name, wins) in enumerate(zip(NAMES, rewards, strict=True), start=1)
        ]
    yield runs
    with transaction() as session:
        session.execute(delete(SavedView))


def listed(page: Page) -> list[str]:
    """Names of the rows, with those of the checkboxes."""
    return [
        (label.get_attribute("aria-label") or "").removeprefix("Select ")
        for label in page.locator("#run-table [aria-label^='Select ']").all()
    ]


def test_runs_are_found_sorted_saved_as_a_view_and_changed_together(page: Page, runs: list[Run]) -> None:
    page.goto("/runs")
    page.get_by_role("combobox", name="Filter").fill("name ~ organize and reward > 0.3")
    page.keyboard.press("Enter")
    expect(page.locator("#run-table tbody tr")).to_have_count(2)
    page.get_by_text("Columns", exact=True).click()
    for name in ("seed", "tags"):
        page.get_by_role("checkbox", name=name, exact=True).check()
    page.get_by_role("button", name="Show columns").click()
    page.get_by_role("columnheader", name="seed").get_by_role("link").click()
    expect(page.get_by_role("columnheader", name="seed")).to_have_attribute("aria-sort", "descending")
    assert listed(page) == [NAMES[1], NAMES[0]]
    page.get_by_text("Views", exact=True).click()
    page.get_by_label("Save this view as").fill("good ones")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("Saved the view good ones.")).to_be_visible()
    page.goto("/runs")
    page.locator("summary", has_text="Views").click()
    page.get_by_role("link", name="good ones").click()
    assert listed(page) == [NAMES[1], NAMES[0]]
    expect(page.get_by_role("columnheader", name="seed")).to_be_visible()
    for name in NAMES[:2]:
        page.get_by_label(f"Select {name}").check()
    page.get_by_label("Tags, separated by commas").fill("keep")
    page.get_by_role("button", name="Add tag").click()
    expect(page.get_by_role("cell").get_by_role("link", name="keep")).to_have_count(2)
    expect(page.get_by_label(f"Select {NAMES[0]}")).to_be_checked()
    page.get_by_label(f"Select {NAMES[0]}").uncheck()
    page.get_by_role("button", name="Delete…").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text(f"{NAMES[1]} was deleted")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text(f"{NAMES[1]} was restored.")).to_be_visible()
    page.goto("/runs?where=tag+%3D+keep")
    expect(page.get_by_label(f"Select {NAMES[1]}")).to_be_visible()


def test_views_and_columns_of_environments_are_the_same(page: Page, runs: list[Run]) -> None:
    page.goto("/environments?where=name+~+organized")
    page.get_by_text("Columns", exact=True).click()
    page.get_by_role("checkbox", name="runs", exact=True).check()
    page.get_by_role("button", name="Show columns").click()
    expect(page.get_by_role("row", name="organized_maze").get_by_role("cell", name="3", exact=True)).to_be_visible()
    page.get_by_text("Views", exact=True).click()
    page.get_by_label("Save this view as").fill("mazes")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("Saved the view mazes.")).to_be_visible()
    page.locator("summary", has_text="Views").click()
    page.get_by_text("Change", exact=True).click()
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete", exact=True).click()
    confirm = page.get_by_role("dialog").get_by_role("button", name="Delete")
    if confirm.count():
        confirm.click()
    expect(page.get_by_text("The view was deleted.")).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("Restored the view mazes.")).to_be_visible()


def test_a_lead_sees_the_week_and_follows_a_regression(page: Page, runs: list[Run]) -> None:
    with transaction() as session:
        factories.make_run(session, name="under way", status=RunStatus.RUNNING, ended_at=None)
    page.goto("/")
    best = page.locator(".week-rows li").filter(has_text="organized_maze")
    expect(best.first).to_contain_text("organized model")
    regression = page.locator("#regressions li").filter(has_text="organized_maze")
    expect(regression).to_contain_text("16 tasks")
    expect(regression).to_contain_text("same checkpoint and version")
    expect(page.get_by_role("link", name="under way")).to_be_visible()
    regression.get_by_role("link").last.click()
    page.wait_for_url("**/compare?*")
    expect(page.locator("#main")).to_contain_text(NAMES[2])


def test_preferences_of_notices_are_kept(page: Page, runs: list[Run]) -> None:
    page.goto("/notices")
    page.get_by_text("Your preferences", exact=True).click()
    page.get_by_label("Email", exact=True).select_option("daily")
    hidden = page.get_by_role("group", name="Kinds hidden in Proctor")
    hidden.get_by_role("checkbox", name="regression").check()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Your preferences are stored.")).to_be_visible()
    page.reload()
    page.get_by_text("Your preferences", exact=True).click()
    expect(page.get_by_label("Email", exact=True)).to_have_value("daily")
    expect(hidden.get_by_role("checkbox", name="regression")).to_be_checked()
    expect(hidden.get_by_role("checkbox", name="alarm")).not_to_be_checked()
