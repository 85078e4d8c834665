"""A sweep in a real browser: a form that keeps what was typed, a page that follows the runs, and its end."""

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from sqlalchemy import select

from backend.core.events import announce, topic_of
from backend.core.session import transaction
from backend.sweeps.tables import Sweep
from tests import factories
from tests.browser.witness import Witness, assert_not_reloaded, mark
from tests.sweeps.worlds import REASON, complete, evaluate, trials_of
from workers.tasks.sweeps import advance

pytestmark = pytest.mark.browser


def test_a_sweep_is_started_followed_and_stopped(page: Page, address: str) -> None:
    with transaction() as session:
        version = factories.make_environment_version(session)
    page.goto("/sweeps")
    page.get_by_role("link", name="New sweep").first.click()
    page.get_by_label("Environment version").select_option(str(version.id))
    page.get_by_label("Name of the sweep").fill("Night search")
    page.get_by_label("Reason to train without a certificate").fill(REASON)
    row = page.get_by_role("group", name="Setting 1")
    row.get_by_label("Setting", exact=True).fill("grpo.group_size")
    row.get_by_label("Values").fill("4, 1")
    second = page.get_by_role("group", name="Setting 2")
    second.get_by_label("Setting", exact=True).fill("grpo.learning_rate")
    second.get_by_label("or from").fill("1e-5")
    second.get_by_label("to", exact=True).fill("1e-3")
    second.get_by_label("Scale").select_option("log")
    page.get_by_role("button", name="Start sweep").click()
    expect(page.get_by_text("1: Enter 2 or more.")).to_be_visible()
    row = page.get_by_role("group", name="Setting 1")
    expect(row.get_by_label("Values")).to_have_value("4, 1")
    expect(page.get_by_label("Name of the sweep")).to_have_value("Night search")
    row.get_by_label("Values").fill("4, 8")
    witness = Witness(page.context, address)  # a refused form is an error to the browser's console
    page.get_by_role("button", name="Start sweep").click()
    expect(page.get_by_role("heading", name="Night search")).to_be_visible()
    expect(page.get_by_text("No run has started yet")).to_be_visible()

    mark(page)
    with transaction() as session:
        sweep = session.scalars(select(Sweep).where(Sweep.name == "Night search")).one()
        advance(session, sweep)
        for number in range(1, 9):
            complete(session, sweep, number, number / 20, number / 10)
        evaluate(session, trials_of(session, sweep)[8], {20: 0.01})
        advance(session, sweep)
        announce(session, topic_of("sweep", sweep.id))
        best = trials_of(session, sweep)[7].run_id
    expect(page.locator(".parallel polyline")).to_have_count(9)
    expect(page.get_by_text("0.800").first).to_be_visible()
    expect(page.get_by_role("heading", name="Importance")).to_be_visible()
    assert_not_reloaded(page)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        violations = Axe().run(page).response["violations"]
        assert [each["id"] for each in violations] == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    page.get_by_role("button", name="Stop").click()
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    page.locator("#trials").get_by_role("link", name="8", exact=True).click()
    page.wait_for_url(f"**/runs/{best}")
    assert witness.problems == []
