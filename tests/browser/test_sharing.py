"""A run is shared and read signed out; its report opens offline; pages print without buttons."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from backend.core.session import transaction
from tests.shares.documents import make_pair

pytestmark = pytest.mark.browser


@pytest.fixture
def compared(address: str) -> str:
    """The address of a comparison."""
    with transaction() as session:
        before, after = make_pair(session)
        return f"/compare?run={before.id}&run={after.id}"


def test_a_comparison_is_shared_with_someone_who_is_signed_out(page: Page, browser: Browser, compared: str) -> None:
    page.goto(compared)
    page.get_by_role("link", name="Share", exact=True).click()
    page.get_by_role("button", name="Create link").click()
    link = page.locator("code.secret").inner_text()
    context = browser.new_context()
    visitor = context.new_page()
    requests: list[str] = []
    visitor.on("request", lambda request: requests.append(request.url))
    visitor.goto(page.url.split("/shares")[0] + "/shared/" + link.rsplit("/", 1)[1])
    expect(visitor.get_by_text("Read-only, shared by")).to_be_visible()
    expect(visitor.get_by_role("heading", name="Conversations")).to_be_visible()
    expect(visitor.get_by_role("button")).to_have_count(0)
    assert [url for url in requests if not url.endswith("favicon.ico")] == [visitor.url]
    page.reload()
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("row").filter(has_text="Comparison of 2 runs").get_by_role("button", name="Revoke").first.click()
    confirm = page.get_by_role("dialog").get_by_role("button", name="Revoke")
    if confirm.count():
        confirm.click()
    expect(page.get_by_text("no longer works")).to_be_visible()
    visitor.reload()
    expect(visitor.get_by_role("heading", name="Link not available")).to_be_visible()
    context.close()


def test_a_report_opens_from_a_file_without_a_request(
    page: Page, browser: Browser, compared: str, tmp_path: Path
) -> None:
    page.goto(compared)
    with page.expect_download() as download:
        page.get_by_role("link", name="Download report").click()
    file = tmp_path / "report.html"
    download.value.save_as(file)
    context = browser.new_context(offline=True, color_scheme="dark")
    reader = context.new_page()
    requests: list[str] = []
    problems: list[str] = []
    reader.on("request", lambda request: requests.append(request.url))
    reader.on("console", lambda message: problems.append(message.text))
    reader.goto(file.as_uri())
    expect(reader.get_by_role("heading", name="Difference")).to_be_visible()
    assert requests == [file.as_uri()]
    assert problems == []
    context.close()


def test_a_printed_page_has_only_its_content(page: Page, compared: str) -> None:
    page.goto(compared)
    page.emulate_media(media="print", color_scheme="dark")
    for selector in (".rail", ".filters", "button", ".export"):
        for each in page.locator(selector).all():
            expect(each).to_be_hidden()
    table = page.get_by_role("table", name="Differences by reward column")
    expect(table).to_be_visible()
    page.set_viewport_size({"width": 720, "height": 1000})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    color = page.evaluate("getComputedStyle(document.body).colorScheme")
    assert color == "light"
