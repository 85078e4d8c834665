"""A page is live however slowly its scripts arrive, and when its first connection failed."""

import time

import pytest
from playwright.sync_api import Page, Route, expect

from backend.core.events import announce, topic_of
from backend.core.session import transaction
from backend.domain.vocabulary import RunStatus
from backend.runs.tables import Run
from tests import factories

pytestmark = pytest.mark.browser


def test_a_first_connection_that_fails_is_tried_again(page: Page) -> None:
    tries: list[str] = []

    def fail_first(route: Route) -> None:
        tries.append(route.request.url)
        if len(tries) == 1:
            route.abort()
        elif len(tries) == 2:
            route.fulfill(status=503, body="starting")
        else:
            route.continue_()

    with transaction() as session:
        run_id = factories.make_run(session, status=RunStatus.RUNNING, name="before").id
    page.route(f"**/runs/{run_id}/events*", fail_first)
    page.goto(f"/runs/{run_id}")
    with transaction() as session:
        session.get_one(Run, run_id).name = "after"
        announce(session, topic_of("run", run_id))

    expect(page.get_by_role("heading", name="after")).to_be_visible(timeout=8000)
    assert len(tries) == 3


@pytest.mark.parametrize("script", ["hx-sse.min.js", "app.js", "htmx.min.js"])
def test_a_late_script_still_makes_the_page_live(page: Page, script: str) -> None:
    def late(route: Route) -> None:
        time.sleep(0.5)
        route.continue_()

    with transaction() as session:
        run_id = factories.make_run(session, status=RunStatus.RUNNING, name="before").id
    page.route(f"**/{script}*", late)
    page.goto(f"/runs/{run_id}")
    expect(page.get_by_role("heading", name="before")).to_be_visible()
    time.sleep(0.5)

    with transaction() as session:
        session.get_one(Run, run_id).name = "after"
        announce(session, topic_of("run", run_id))

    expect(page.get_by_role("heading", name="after")).to_be_visible(timeout=5000)
