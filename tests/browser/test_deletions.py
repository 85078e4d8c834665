"""Two runs are deleted from the list, brought back by the message's button, deleted again and restored later."""

import pytest
from playwright.sync_api import Page, expect

from backend.core.session import transaction
from backend.domain.vocabulary import RunStatus
from tests import factories

pytestmark = pytest.mark.browser


def test_runs_are_deleted_and_come_back(page: Page) -> None:
    names = "a first attempt", "a second attempt"
    with transaction() as session:
        for name in names:
            factories.make_run(session, name=name, status=RunStatus.COMPLETED)
    page.goto("/runs?text=attempt")
    for name in names:
        page.get_by_label(f"Select {name}").check()
    page.get_by_role("button", name="Delete…").click()
    expect(page.get_by_role("heading", name="Delete 2 runs")).to_be_visible()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("2 items were deleted and can be restored for 30 days.")).to_be_visible()
    expect(page.get_by_role("link", name=names[0])).to_have_count(0)
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("2 items were restored.")).to_be_visible()
    page.get_by_role("link", name=names[0]).click()
    page.get_by_text("More ▾").click()
    page.get_by_role("link", name="Delete…").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    page.get_by_role("link", name="Recently deleted").click()
    page.get_by_role("row", name=names[0]).get_by_role("button", name="Restore").click()
    expect(page.get_by_text(f"{names[0]} was restored.")).to_be_visible()
