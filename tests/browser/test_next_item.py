"""The next item appears before its predecessor's verdict is stored, and nothing is lost if that fails."""

import pytest
from playwright.sync_api import Page, Route, expect
from sqlalchemy import select

from backend.core.session import transaction
from backend.detectors.tables import Flag
from backend.review.tables import VerdictRecord

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("flags", [3], indirect=True)
def test_the_next_item_appears_while_the_verdict_is_stored(page: Page, flags: list[Flag]) -> None:
    held: list[Route] = []
    with page.expect_response(
        lambda response: "/review/" in response.url and response.request.resource_type == "fetch"
    ):
        page.goto(f"/review/{flags[2].rollout_id}")
    page.wait_for_timeout(100)
    page.route("**/review/*", lambda route: held.append(route) if route.request.method == "POST" else route.continue_())
    page.keyboard.press("c")
    page.keyboard.type("a reason")
    page.keyboard.press("Escape")
    page.keyboard.press("2")
    expect(page.get_by_text("Odd 1.")).to_be_visible()
    expect(page.get_by_text("Odd 2.")).not_to_be_visible()
    page.keyboard.press("u")  # waits until there is something to undo
    held.pop().abort()
    expect(page.get_by_text("The verdict was not stored")).to_be_visible()
    expect(page.get_by_text("Odd 2.")).to_be_visible()
    expect(page.locator("#field-comment")).to_have_value("a reason")
    page.unroute("**/review/*")
    page.keyboard.press("2")
    expect(page.get_by_text("Undo (u)")).to_be_visible()
    expect(page.get_by_text("Odd 1.")).to_be_visible()
    page.keyboard.press("1")
    expect(page.get_by_text("Odd 0.")).to_be_visible()
    page.keyboard.press("u")
    expect(page.get_by_text("Verdict taken back: honest.")).to_be_visible()
    expect(page.get_by_text("Odd 1.")).to_be_visible()
    with transaction() as session:
        stored = session.execute(
            select(VerdictRecord.verdict, VerdictRecord.comment, VerdictRecord.taken_back_at)
        ).all()
    assert [(row.verdict, row.comment, row.taken_back_at is None) for row in stored] == [
        ("hack", "a reason", True),
        ("honest", "", False),
    ]
