"""What cannot be undone asks first, in a dialog that says what will happen."""

import pytest
from playwright.sync_api import Page, expect

from backend.core.session import transaction
from backend.domain.vocabulary import Role
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
