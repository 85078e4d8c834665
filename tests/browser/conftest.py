"""One installation and one Chromium for all journeys; a fresh page and fresh flags for each.

Their fixtures end with this folder's tests: Playwright's event loop runs in the main thread for its whole lifetime,
where no other test could run an event loop, and the installation replaces this process's settings.
"""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from backend.core.session import transaction
from backend.domain.vocabulary import Role
from backend.web.identity import SESSION_COOKIE
from tests import factories
from tests.browser.installation import CHROMIUM, cookie_for, installation


@pytest.fixture(scope="package")
def address() -> Iterator[str]:
    with installation() as address:
        yield address


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    if not shutil.which(CHROMIUM):
        pytest.skip("there is no Chromium here")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """Signed in as an administrator. The test fails when the page breaks its content security policy or its script."""
    with transaction() as session:
        cookie = cookie_for(session, factories.make_person(session, Role.ADMIN, "Ada"))
    context = browser.new_context(base_url=address)
    context.add_cookies([{"name": SESSION_COOKIE, "value": cookie, "url": address}])
    page = context.new_page()
    broken: list[str] = []
    page.on("pageerror", lambda error: broken.append(str(error)))
    page.on("console", lambda said: broken.append(said.text) if "Content Security Policy" in said.text else None)
    yield page
    context.close()
    assert broken == []
