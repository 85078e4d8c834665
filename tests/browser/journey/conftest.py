"""A complete Proctor with all its processes, and real Chromium: the steps of a person, from the one-time link to the
model.

Some failures are invisible while clicking, and none may happen: errors of scripts or servers, requests that leave the
machine.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.journey.steps import PASSWORD, SOON_MS, Journey
from tests.browser.witness import Witness
from tests.ops.proctor_process import proctor_up


@pytest.fixture(scope="package")
def journey(browser: Browser) -> Iterator[Journey]:
    with TemporaryDirectory(prefix="pj-", ignore_cleanup_errors=True) as folder, proctor_up(Path(folder)) as proctor:
        url = proctor.wait_until_serving()
        context = browser.new_context(base_url=url, viewport={"width": 1440, "height": 900})
        context.set_default_timeout(SOON_MS)
        page = context.new_page()
        page.goto(str(proctor.wait_for("sign_in")["url"]))
        page.get_by_label("Display name").fill("Ada Lovelace")
        page.get_by_label("New password").fill(PASSWORD)
        page.get_by_role("button", name="Set password and sign in").click()
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        page.close()
        yield Journey(url, Path(folder), context)
        context.close()


@pytest.fixture
def page(journey: Journey) -> Iterator[Page]:
    """A new tab of the administrator, watched."""
    witness = Witness(journey.context, journey.url)
    page = journey.context.new_page()
    yield page
    page.close()
    assert witness.problems == []


@pytest.fixture(autouse=True)
def patience() -> Iterator[None]:
    expect.set_options(timeout=SOON_MS)
    yield
    expect.set_options(timeout=5_000)
