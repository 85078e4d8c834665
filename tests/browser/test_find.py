"""The palette: from any page to anything, and what the page offers, by keyboard alone."""

import pytest
from playwright.sync_api import Page, expect

from backend.core.session import transaction
from tests import factories
from tests.browser.barriers import barriers
from tests.browser.witness import Witness

pytestmark = pytest.mark.browser


def test_anything_is_a_few_keys_away(page: Page, address: str) -> None:
    with transaction() as session:
        run = factories.make_run(session, name="quokka evaluation")
        factories.make_run(session, name="another quokka")
    witness = Witness(page.context, address)
    page.goto("/policies")
    page.keyboard.press("Control+k")
    box = page.get_by_role("combobox", name="Find anything")
    expect(box).to_be_focused()
    expect(page.get_by_role("option", name="Leaderboards")).to_be_visible()
    page.keyboard.type("quokka")
    expect(page.locator("#palette").get_by_role("option", selected=True)).to_contain_text("quokka evaluation")
    assert barriers(page) == []
    page.keyboard.press("ArrowDown")
    expect(page.locator("#palette").get_by_role("option", selected=True)).to_contain_text("another quokka")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{run.id}")

    # What the page itself offers comes first; Escape and the same keys close it.
    page.goto("/runs")
    page.get_by_role("link", name="Find").click()
    page.keyboard.type("new eval")
    expect(page.get_by_role("option", name="New evaluation")).to_have_count(1)
    expect(page.locator("#palette").get_by_role("option", selected=True)).to_contain_text("on this page")
    page.keyboard.press("Enter")
    page.wait_for_url("**/evaluations/new")
    page.keyboard.press("Control+k")
    expect(page.locator("#palette")).to_be_visible()
    page.keyboard.press("Control+k")
    expect(page.locator("#palette")).to_be_hidden()
    assert witness.problems == []
