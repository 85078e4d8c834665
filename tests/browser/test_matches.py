"""Games between policies and people, in a real browser: the table, a round robin, a seat against a policy."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from backend.core.session import transaction
from backend.environments.library import load_package
from tests import factories
from tests.browser.witness import Witness

pytestmark = pytest.mark.browser
NAME = "tictactoe_duel"


def test_from_the_table_to_a_round_robin_and_a_game_of_ones_own(page: Page, address: str) -> None:
    with transaction() as session:
        version = factories.make_package_version(
            session, load_package(NAME), factories.make_environment(session, "browser_duel")
        )
        script = {"duel gold": "gold", "duel wrong": "wrong", "duel random": "random"}
        policies = {
            name: factories.make_policy(session, name=name, configuration={"script": each})
            for name, each in script.items()
        }
        rival = policies["duel wrong"]
        match = {"opponent": "duel wrong", "seats": [{"seat": "x", "wins": 34, "draws": 4, "losses": 2}]}
        plan = {"tasks": 20, "group_size": 2, "opponent": {"policy_id": str(rival.id), "name": rival.name}}
        factories.make_run(session, version, policies["duel gold"], configuration=plan, summary={"match": match})
    witness = Witness(page.context, address)
    page.goto("/leaderboards/browser_duel")
    matrix = page.get_by_role("table", name="Win matrix")
    expect(matrix.get_by_role("link", name="90%")).to_be_visible()
    expect(page.get_by_role("table", name="Ratings")).to_contain_text("duel gold")
    assert [each["id"] for each in Axe().run(page).response["violations"]] == []

    page.get_by_text("Start a round robin").click()
    for name in script:
        page.get_by_role("checkbox", name=name).check()
    page.get_by_label("Tasks", exact=True).fill("3")
    page.get_by_role("button", name="Start the games").click()
    expect(matrix.get_by_role("link", name="6 to play")).to_have_count(4)
    expect(matrix).to_contain_text("duel random")

    page.goto("/environments/browser_duel/play")
    page.get_by_label("Your seat").select_option("o")
    page.get_by_label("Opponent").select_option(label="duel wrong")
    assert [each["id"] for each in Axe().run(page).response["violations"]] == []
    page.get_by_role("button", name="Begin").click()
    page.wait_for_url("**/play/*-*")
    expect(page.get_by_text("against duel wrong")).to_be_visible()
    assert witness.problems == []
