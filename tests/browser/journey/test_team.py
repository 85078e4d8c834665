"""An administrator invites a member."""

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.journey.steps import PASSWORD, Journey
from tests.browser.witness import Witness

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]


def test_an_invited_member_signs_in_and_may_do_what_the_role_allows(
    page: Page, journey: Journey, browser: Browser
) -> None:
    page.goto("/team")
    page.get_by_label("Name", exact=True).fill("Rae Okafor")
    page.get_by_label("E-mail address").fill("rae@example.org")
    page.locator("#field-role").select_option("reviewer")
    page.get_by_role("button", name="Create link").click()
    link = page.locator("code.secret").inner_text()
    member = browser.new_context(base_url=journey.url)
    witness = Witness(member, journey.url)
    theirs = member.new_page()
    theirs.goto(link)
    theirs.get_by_label("New password").fill(PASSWORD)
    theirs.get_by_role("button", name="Set password and sign in").click()
    expect(theirs.get_by_role("heading", name="Review", exact=True)).to_be_visible()
    theirs.goto("/")
    expect(theirs.get_by_role("heading", name="Overview")).to_be_visible()
    expect(theirs.locator("a[href^='/training/new'], a[href^='/evaluations/new']")).to_have_count(0)
    theirs.get_by_title("Sign out").click()
    theirs.get_by_label("E-mail address").fill("rae@example.org")
    theirs.get_by_label("Password").fill(PASSWORD)
    theirs.get_by_role("button", name="Sign in").click()
    expect(theirs.get_by_role("heading", name="Review", exact=True)).to_be_visible()
    member.close()
    assert witness.problems == []
    page.reload()
    expect(page.get_by_role("row").filter(has_text="rae@example.org")).to_contain_text("active")
