"""Notices in a real browser: read on a phone, sent again with one press, in the dark too."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import delete, update

from backend.core.session import transaction
from backend.domain.notifications.notices import DeliveryStatus, DestinationKind, NoticeKind
from backend.notifications.outbox import announce
from backend.notifications.tables import Notice, NoticeDelivery, NoticeDestination
from tests.browser.witness import Witness, assert_not_reloaded, mark

pytestmark = pytest.mark.browser
TWO_RINGS = 41_000
"""Milliseconds in which the bell asks."""


@pytest.fixture
def told(address: str, page: Page) -> Iterator[None]:
    """After the person joined: they must not read earlier notices."""
    with transaction() as session:
        place = NoticeDestination(
            name="team chat", kind=DestinationKind.WEBHOOK, configuration={"url": "http://[::1]:9"}
        )
        session.add(place)
        session.flush()
        for number in range(3):
            announce(
                session,
                kind=NoticeKind.ALARM,
                title=f"tictactoe-with-a-long-name-{number} is paused after step 60: reward_jump",
                text="The mean reward rose from 0.412 to 0.873 within three steps.",
                path="/runs",
                evidence={"window": [57, 60], "rollouts": ["0" * 36] * 3},
            )
        session.flush()
        lost = {"status": DeliveryStatus.FAILED, "attempts": 6, "error": "It could not be reached: " + "refused " * 30}
        session.execute(update(NoticeDelivery).values(**lost))
    yield
    with transaction() as session:
        for table in (NoticeDelivery, NoticeDestination, Notice):
            session.execute(delete(table))


def test_a_phone_shows_all_of_it(page: Page, told: None) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme="dark")
    paths = ["/notices", "/settings/notifications", "/settings/notifications/new?kind=email"]
    for path in [*paths, "/settings/notifications/new?kind=webhook"]:
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path


def test_reading_counts_down_a_lost_one_is_sent_again_and_the_bell_rings(page: Page, told: None, address: str) -> None:
    page.clock.install()
    page.goto("/notices")
    expect(page.get_by_title("3 unread")).to_be_visible()
    page.get_by_role("button", name="Mark as read").first.click()
    expect(page.get_by_title("2 unread")).to_be_visible()
    page.get_by_role("button", name="Open").first.click()
    page.wait_for_url("**/runs")
    page.goto("/settings/notifications")
    page.get_by_role("button", name="Send again").first.click()
    expect(page.get_by_text("is sent again to team chat")).to_be_visible()
    ring_until_nobody_is_signed_in(page, address)


def ring_until_nobody_is_signed_in(page: Page, address: str) -> None:
    """Two of three are unread. New notices arrive automatically; a signed-out browser stops polling."""
    page.goto("/notices")
    witness, asked = Witness(page.context, address), list[str]()
    expect(page.get_by_title("2 unread")).to_be_visible()
    mark(page)
    with transaction() as session:
        announce(session, kind=NoticeKind.JUDGING, title="one more", text="It came by itself.", path="/runs")
    page.clock.fast_forward(TWO_RINGS)
    expect(page.get_by_title("3 unread")).to_be_visible()
    page.context.clear_cookies()
    page.clock.fast_forward(TWO_RINGS)
    expect(page.locator("#bell[hx-get]")).to_have_count(0)
    page.on("request", lambda request: asked.append(request.url))
    page.clock.fast_forward(TWO_RINGS)
    assert_not_reloaded(page)
    assert (asked, witness.problems) == ([], [])
