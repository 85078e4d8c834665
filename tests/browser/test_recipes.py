"""The pages of recipes: advice in the launch form, a run of each recipe, self-play with its league, and seats.

`test_page_shapes.py` looks for barriers on these pages.
"""

import uuid
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from backend.core.session import transaction
from backend.domain.vocabulary import Role
from backend.environments.service import import_builtins
from backend.runs.tables import Run
from backend.web.identity import SESSION_COOKIE
from tests import factories
from tests.browser.installation import cookie_for
from tests.browser.recipe_rows import LAST, make_recipe_rows
from tests.browser.witness import Witness

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def rows(address: str) -> dict[str, str]:
    with transaction() as session:
        import_builtins(session)
        return make_recipe_rows(session)


@pytest.fixture
def quiet(browser: Browser, address: str) -> Iterator[Page]:
    """A signed-in page on which every error of scripts and servers, and every request elsewhere, is a failure."""
    with transaction() as session:
        cookie = cookie_for(session, factories.make_person(session, Role.ADMIN, "Ada"))
    context = browser.new_context(base_url=address)
    context.add_cookies([{"name": SESSION_COOKIE, "value": cookie, "url": address}])
    witness = Witness(context, address)
    yield context.new_page()
    context.close()
    assert witness.problems == []


def test_advice_is_shown_with_its_measurements_and_applied_to_the_form(quiet: Page, rows: dict[str, str]) -> None:
    quiet.goto(f"/training/preflights/{rows['advised']}")
    advice = quiet.locator("#preflight-advice")
    expect(advice.get_by_text("SFT, then GRPO")).to_be_visible()
    expect(advice).to_contain_text("12% of replies can be parsed")
    expect(advice).to_contain_text("teacher succeeds in 61%")
    expect(quiet.locator("#preflight-findings").get_by_role("heading", name="Checks")).to_be_visible()
    advice.get_by_role("link", name="Apply to the settings").click()
    quiet.wait_for_url("**/training/new?*")
    expect(quiet.locator('[name="recipe"]:checked, select[name="recipe"]')).to_have_value("sft_then_grpo")
    expect(quiet.locator("#launch-figures")).to_contain_text("These settings follow the recommendation.")


@pytest.mark.parametrize(
    ("recipe", "texts"),
    [
        ("distillation", ["Reverse KL to the teacher"]),
        ("dpo", ["Pairs in the right order", "Implicit reward", "Margin between chosen and rejected"]),
        ("rejection_sampling", ["Rounds", "Kept episodes"]),
        ("ahead", ["Staleness of episodes", "Sampling ahead", "Time to sample a step ahead"]),
        ("self_play", ["Elo against past checkpoints", "fixed rating", "drawn next"]),
    ],
)
def test_a_run_of_each_recipe_shows_its_own_curves_and_tables(
    quiet: Page, rows: dict[str, str], recipe: str, texts: list[str]
) -> None:
    quiet.goto(f"/runs/{rows[recipe]}")
    for text in texts:
        expect(quiet.locator("main")).to_contain_text(text)
    expect(quiet.locator("[data-chart] canvas").first).to_be_visible()


def test_kept_episodes_of_a_round_are_one_click_away(quiet: Page, rows: dict[str, str]) -> None:
    quiet.goto(f"/runs/{rows['rejection_sampling']}")
    quiet.locator("#run-rounds").get_by_role("link", name="Kept episodes").click()
    expect(quiet.locator("#rollout-table")).to_contain_text(str(LAST))
    with transaction() as session:
        assert session.get_one(Run, uuid.UUID(rows["rejection_sampling"])).summary["rounds"]


def test_a_game_shows_what_each_seat_saw(quiet: Page, rows: dict[str, str]) -> None:
    quiet.goto(f"/runs/{rows['games']}")
    expect(quiet.get_by_role("heading", name="Games against duelist at grpo 20")).to_be_visible()
    quiet.get_by_role("table", name="Games by seat").get_by_role("link", name="6").click()
    expect(quiet.locator("#rollout-table tbody tr")).to_have_count(6)
    quiet.goto(f"/rollouts/{rows['game']}")
    expect(quiet.get_by_role("heading", name="Seat x: duelist", exact=True)).to_be_visible()
    other = quiet.locator("section", has=quiet.get_by_role("heading", name="Seat o: duelist at grpo 20"))
    other.get_by_text("Conversation", exact=True).click()
    other.get_by_text("Text that the policy read").first.click()
    expect(other.get_by_text("You are O. X plays 5.")).to_be_visible()


def test_the_launch_form_shows_the_settings_of_a_recipe(quiet: Page, rows: dict[str, str]) -> None:
    for recipe, setting in (
        ("distillation", "distillation.teacher"),
        ("dpo", "preferences.source"),
        ("rejection_sampling", "rejection.rounds"),
    ):
        quiet.goto(f"/training/new?recipe={recipe}")
        expect(quiet.locator(f'[name="{setting}"]').first).to_be_visible()
