"""Judging without a mouse, live news and forms, in a real browser."""

import re

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import select

from backend.core.events import REVIEW, RUNS, announce
from backend.core.session import transaction
from backend.detectors.tables import Flag
from backend.domain.vocabulary import RunStatus
from backend.review.tables import VerdictRecord
from tests import factories

pytestmark = pytest.mark.browser

PATIENCE_MS = 20_000
"""For live news on a busy machine; how fast they are is a benchmark's matter."""


def _verdicts() -> list[tuple[str, str]]:
    with transaction() as session:
        statement = select(VerdictRecord).order_by(VerdictRecord.created_at)
        return [(str(record.verdict), record.comment) for record in session.scalars(statement)]


def test_the_queue_is_worked_off_by_keys(page: Page, flags: list[Flag]) -> None:
    page.goto("/review?order=suspicion")
    expect(page.locator("#suspects tbody tr")).to_have_count(2)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="A rollout")).to_be_visible()
    expect(page.get_by_text("Odd 1.")).not_to_be_visible()
    page.keyboard.press("s")
    expect(page.locator("#transcript-beside .entry[data-role=assistant]")).to_be_visible()
    page.keyboard.press("e")
    expect(page.get_by_text("Odd 1.")).to_be_visible()
    page.keyboard.press("c")
    page.keyboard.type("2 clicks? no, keys")
    page.keyboard.press("Escape")
    page.keyboard.press("2")
    expect(page.get_by_text("Verdict: hack")).to_be_visible()
    expect(page.get_by_text("Odd 0.")).not_to_be_visible()
    page.keyboard.press("u")
    expect(page.get_by_text("Odd 1.")).to_be_visible()
    expect(page.get_by_text("2 clicks? no, keys")).to_be_visible()
    page.keyboard.press("1")
    expect(page.get_by_text("Undo (u). This is the next item.")).to_be_visible()
    page.keyboard.press("4")
    expect(page.get_by_text("Nothing is left to review")).to_be_visible()
    assert _verdicts() == [("hack", "2 clicks? no, keys"), ("honest", ""), ("unsure", "")]


def test_a_phone_shows_the_verdicts_without_scrolling(page: Page, flags: list[Flag]) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    for path in ("/review", f"/review/{flags[0].rollout_id}", f"/review/{flags[0].id}"):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    expect(page.get_by_role("button", name="broken reward")).to_be_in_viewport()


def test_a_phone_shows_what_is_left_to_do_and_takes_a_verdict_back(page: Page, flags: list[Flag]) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"/review/{flags[0].rollout_id}")
    page.get_by_role("button", name="hack").click()
    expect(page.get_by_text("Verdict: hack. No certificate replays it")).to_be_visible()
    expect(page.get_by_label("Highest reward")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    undo = page.get_by_role("button", name="Undo “hack”")
    expect(undo).to_be_in_viewport()
    undo.click()
    expect(page.get_by_text("Verdict taken back: hack.")).to_be_visible()
    expect(page).to_have_url(re.compile(str(flags[0].rollout_id)))


def test_the_question_mark_lists_the_keys(page: Page, flags: list[Flag]) -> None:
    page.goto(f"/review/{flags[0].id}")
    page.keyboard.press("?")
    dialog = page.locator("dialog#shortcuts")
    expect(dialog).to_contain_text("hack: The reward was tricked")
    page.keyboard.press("Escape")
    expect(dialog).not_to_be_visible()


def test_a_new_flag_appears_in_the_open_queue(page: Page, flags: list[Flag]) -> None:
    page.goto("/review")
    expect(page.locator("#suspects tbody tr")).to_have_count(2)
    with transaction() as session:
        factories.make_flag(session, factories.make_run(session), None, sentence="Just now odd.")
        announce(session, REVIEW)
    expect(page.get_by_text("Just now odd.")).to_be_visible(timeout=PATIENCE_MS)
    expect(page.locator("#suspects tbody tr")).to_have_count(3)


def test_a_run_that_begins_appears_on_the_front_page(page: Page) -> None:
    page.goto("/")
    expect(page.get_by_role("heading", name="Now")).to_be_visible()
    page.wait_for_timeout(300)
    with transaction() as session:
        factories.make_run(session, name="begun while watching", status=RunStatus.RUNNING, ended_at=None)
        announce(session, RUNS)
    expect(page.get_by_role("link", name="begun while watching")).to_be_visible(timeout=PATIENCE_MS)


def test_what_is_wrong_appears_at_its_field_and_nothing_typed_is_lost(page: Page) -> None:
    page.goto("/team")
    page.get_by_label("Name", exact=True).fill("Rae")
    page.get_by_label("E-mail address").fill("rae@x@y")
    page.locator("form").filter(has_text="Create link").evaluate("form => form.noValidate = true")
    page.get_by_role("button", name="Create link").click()
    expect(page.get_by_text("This is not an email address.")).to_be_visible()
    expect(page.get_by_label("Name", exact=True)).to_have_value("Rae")
    page.get_by_label("E-mail address").fill("rae@example.org")
    page.get_by_role("button", name="Create link").click()
    expect(page.get_by_text("Share this one-time link with")).to_be_visible()
    expect(page.get_by_text("This is not an email address.")).not_to_be_visible()
    expect(page.locator("code.secret")).to_have_text(re.compile(r"/links/"))


def test_without_script_the_same_forms_work(page: Page, flags: list[Flag], address: str) -> None:
    context = page.context.browser.new_context(java_script_enabled=False, base_url=address)  # type: ignore[union-attr]
    context.add_cookies(page.context.cookies())  # type: ignore[arg-type]
    plain = context.new_page()
    plain.goto(f"/review/{flags[1].id}")
    plain.get_by_role("button", name="honest").click()
    expect(plain.get_by_text("Verdict: honest")).to_be_visible()
    context.close()
