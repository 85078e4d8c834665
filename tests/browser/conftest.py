"""One installation and one Chromium for all journeys; a fresh page and fresh flags for each.

Their fixtures end with this folder's tests: Playwright's event loop runs in the main thread for its whole lifetime,
where no other test could run an event loop, and the installation replaces this process's settings.
"""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from sqlalchemy import delete

from backend.core.session import transaction
from backend.detectors.tables import Flag
from backend.domain.vocabulary import Role
from backend.review.tables import ReviewItem, VerdictRecord
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


@pytest.fixture
def flags(address: str, request: pytest.FixtureRequest) -> Iterator[list[Flag]]:
    """Suspicious rollouts of one group, the last the most so, and nothing else in the queue. Default: two."""
    count = getattr(request, "param", 2)
    _empty_queue()
    with transaction() as session:
        run = factories.make_run(session)
        rollouts = factories.make_rollouts(session, run, [[1.0, 1.0, 0.0]] * count, group_size=count)
        flags = [
            factories.make_flag(session, run, rollout, sentence=f"Odd {number}.", score=0.5 + 0.2 * number)
            for number, rollout in enumerate(rollouts)
        ]
    yield flags
    _empty_queue()


def _empty_queue() -> None:
    with transaction() as session:
        for table in (VerdictRecord, Flag, ReviewItem):
            session.execute(delete(table))
