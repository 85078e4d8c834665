"""The account page in a real browser: a revoked session leaves its live page within two seconds."""

import re
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from backend.core.session import transaction
from backend.domain.vocabulary import Role
from backend.team.auth import link_for
from backend.team.passwords import LONGEST
from tests import factories

pytestmark = pytest.mark.browser
PASSWORD = "correct horse battery"
PHONE = "Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X) AppleWebKit/605.1.15 Version/19.0 Mobile Safari/604.1"


@pytest.fixture
def link(address: str) -> str:
    """The one-time link of a new member."""
    with transaction() as session:
        return address + "/links/" + link_for(session, factories.make_person(session, Role.TRAINER)).rsplit("/", 1)[1]


@pytest.fixture
def laptop(browser: Browser, address: str) -> Iterator[BrowserContext]:
    context = browser.new_context(base_url=address)
    yield context
    context.close()


@pytest.fixture
def phone(browser: Browser, address: str) -> Iterator[BrowserContext]:
    context = browser.new_context(base_url=address, user_agent=PHONE, viewport={"width": 390, "height": 844})
    yield context
    context.close()


def _welcome(page: Page, link: str) -> str:
    """Use the link; the member's address."""
    page.goto(link)
    email = page.locator(".lead b").first.inner_text()
    page.get_by_label("Display name").fill("Mia Lang")
    page.get_by_label("New password").fill(PASSWORD)
    page.get_by_role("button", name="Set password and sign in").click()
    page.wait_for_url(re.compile(r"/$"))
    return email


def test_revoking_a_session_ends_the_live_page_of_the_other_browser(
    laptop: BrowserContext, phone: BrowserContext, link: str
) -> None:
    here, there = laptop.new_page(), phone.new_page()
    email = _welcome(here, link)
    there.goto("/sign-in")
    there.get_by_label("E-mail address").fill(email)
    there.get_by_label("Password").fill(PASSWORD)
    with there.expect_response(re.compile(r"/events$")) as stream:
        there.get_by_role("button", name="Sign in").click()
    assert stream.value.status == 200

    here.goto("/me")
    sessions = here.get_by_role("table", name="Sessions").locator("tbody tr")
    expect(sessions).to_have_count(2)
    row = sessions.filter(has_text="Safari on iPhone")
    expect(sessions.filter(has_text="this session")).to_have_count(1)
    row.get_by_role("button", name="Revoke").click()
    with there.expect_event("requestfinished", lambda request: request.url.endswith("/events"), timeout=2_000):
        began = time.monotonic()
        here.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    assert time.monotonic() - began < 2
    there.wait_for_url(re.compile(r"/sign-in\?next="), timeout=10_000)
    expect(here.get_by_role("status")).to_contain_text("The session in Safari on iPhone ended.")
    expect(sessions).to_have_count(1)


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_account_page_fits(page: Page, width: int, scheme: str) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    for path in ("/me", "/team"):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_password_of_a_wrong_length_loses_nothing_without_script(browser: Browser, address: str, link: str) -> None:
    context = browser.new_context(base_url=address, java_script_enabled=False)
    page = context.new_page()
    page.goto(link)
    page.get_by_label("New password").fill("short")
    page.get_by_role("button", name="Set password and sign in").click()
    expect(page.locator("#field-password:invalid")).to_have_value("short")  # the browser says what is missing
    for sign in "ab":
        page.get_by_label("Display name").fill("Mia <Lang>")
        page.get_by_label("New password").fill(sign * (LONGEST + 1))
        page.get_by_role("button", name="Set password and sign in").click()
        expect(page.get_by_label("Display name")).to_have_value("Mia <Lang>")
        expect(page.get_by_label("New password")).to_have_value("")
        expect(page.locator("[data-error-for=password]")).to_contain_text(f"At most {LONGEST}")
    page.get_by_label("New password").fill(PASSWORD)
    page.get_by_role("button", name="Set password and sign in").click()
    page.wait_for_url(re.compile(r"/$"))
    context.close()


def test_a_wrong_password_is_marked_at_its_field_and_keeps_the_rest(page: Page) -> None:
    page.goto("/me")
    page.get_by_label("Current password").fill("not my password")
    page.get_by_label("New password").fill("a new good sentence")
    page.get_by_role("button", name="Change password").click()
    expect(page.locator("[data-error-for=current]")).to_have_text("This is not your current password.")
    expect(page.get_by_label("New password")).to_have_value("a new good sentence")
