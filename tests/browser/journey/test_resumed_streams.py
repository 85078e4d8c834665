"""A live page catches up automatically after its connection was cut: nothing is missing and no reload is needed."""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.journey.steps import PASSWORD, SOON_MS, WORK_MS, Journey, evaluate, expect_completed
from tests.browser.journey.wire import Wire, wire_to
from tests.browser.witness import assert_not_reloaded, mark
from tests.ops.proctor_process import processes_using

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def wire(journey: Journey) -> Iterator[Wire]:
    port = urlsplit(journey.url).port
    assert port is not None
    with wire_to(port) as wire:
        yield wire


@pytest.fixture
def page(journey: Journey, wire: Wire) -> Iterator[Page]:
    """Behind the wire. These tests are about failing requests, which scripts have to survive."""
    browser = journey.context.browser
    assert browser is not None
    address = f"http://127.0.0.1:{wire.port}"
    context = browser.new_context(base_url=address, storage_state=journey.context.storage_state())
    context.set_default_timeout(SOON_MS)
    errors: list[str] = []
    context.on("weberror", lambda error: errors.append(str(error.error)))
    yield context.new_page()
    context.close()
    assert errors == []


def test_a_page_that_was_cut_off_shows_all_that_happened_meanwhile(page: Page, wire: Wire, journey: Journey) -> None:
    _watch_a_run_begin(page, "constant")
    wire.cut()
    _wait_until(lambda: _status(journey, page) == "completed")
    expect(page.locator("#run-head .badge").first).to_have_text("running")
    wire.mend()
    _expect_everything(page)


def test_a_page_survives_a_restart_of_the_server(page: Page, journey: Journey) -> None:
    _watch_a_run_begin(page, "empty")
    (web,) = [number for number, command in processes_using(journey.data).items() if "backend.web.server" in command]
    os.kill(web, signal.SIGKILL)
    _wait_until(lambda: _status(journey, page) == "completed")
    _expect_everything(page)


def test_a_page_whose_session_ended_leads_to_the_sign_in_and_back(page: Page, wire: Wire) -> None:
    with page.expect_response(lambda got: "/runs/events" in got.url):
        page.goto("/runs?kind=evaluation")
    page.context.clear_cookies()
    wire.cut()
    wire.mend()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.get_by_label("E-mail address").fill("admin@localhost")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/runs?kind=evaluation")


def _watch_a_run_begin(page: Page, policy: str) -> None:
    evaluate(page, policy, tasks=3000, rollouts=2)
    expect(page.locator("#run-progress progress")).to_have_attribute("value", re.compile("[1-9]"), timeout=WORK_MS)
    mark(page)


def _expect_everything(page: Page) -> None:
    expect_completed(page)
    expect(page.locator("#run-outcome")).to_contain_text("of 6,000")
    expect(page.locator("#run-progress progress")).to_have_count(0)
    assert_not_reloaded(page)


def _status(journey: Journey, page: Page) -> str:
    """As the JSON API says, past the browser; empty while it does not answer."""
    token = (journey.data / "cli-token").read_text().strip()
    run = page.url.rpartition("/")[2]
    try:
        answer = httpx.get(f"{journey.url}/api/v1/runs/{run}", headers={"Authorization": f"Bearer {token}"})
    except httpx.TransportError:
        return ""
    return str(answer.raise_for_status().json()["status"])


def _wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WORK_MS / 1000
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.2)
