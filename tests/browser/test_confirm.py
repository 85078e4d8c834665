"""What cannot be undone asks first, in a dialog that says what will happen."""

import pytest
from playwright.sync_api import Page, expect

from backend.core.session import transaction
from backend.domain.vocabulary import Role, RunStatus
from tests import factories

pytestmark = pytest.mark.browser


def test_cancel_changes_nothing_and_the_named_button_does_it(page: Page) -> None:
    with transaction() as session:
        factories.make_person(session, Role.VIEWER, "Zoe Leaves")
    page.goto("/team")
    row = page.get_by_role("row").filter(has_text="Zoe Leaves")
    row.get_by_role("button", name="Disable").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Sign Zoe Leaves out, revoke their API tokens and refuse further sign-ins?")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).not_to_be_visible()
    expect(row).not_to_contain_text("disabled")
    row.get_by_role("button", name="Disable").click()
    dialog.get_by_role("button", name="Disable").click()
    expect(page.get_by_text("Zoe Leaves can no longer sign in.")).to_be_visible()


def test_stopping_several_runs_asks_with_their_number(page: Page) -> None:
    names = "first to be stopped", "second to be stopped"
    with transaction() as session:
        for name in names:
            factories.make_run(session, name=name, status=RunStatus.QUEUED, ended_at=None)
    page.goto("/runs?text=to+be+stopped")
    for name in names:
        page.get_by_label(f"Select {name}").check()
    stop, dialog = page.get_by_role("button", name="Stop", exact=True), page.get_by_role("dialog")
    stop.click()
    expect(dialog).to_contain_text("Stop 2 runs? Runs that have ended are not changed.")
    dialog.get_by_role("button", name="Cancel").click()
    page.get_by_label(f"Select {names[0]}").uncheck()
    stop.click()
    expect(dialog).to_contain_text("Stop 1 run?")
    dialog.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopping 1 of 1 runs")).to_be_visible()
