"""The web's own limit on the database, seen on a running server."""

import pytest
from playwright.sync_api import Page
from sqlalchemy import text

from backend.core.session import WEB_STATEMENT_TIMEOUT_MS, transaction

pytestmark = pytest.mark.browser


def test_every_connection_of_the_web_has_a_statement_timeout(page: Page) -> None:
    page.goto("/")
    with transaction() as session:
        shown = session.scalar(text("SELECT setting::int FROM pg_settings WHERE name = 'statement_timeout'"))
    assert shown == WEB_STATEMENT_TIMEOUT_MS
