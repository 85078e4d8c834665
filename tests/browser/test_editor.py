"""The editor in a real browser: two tabs on one file, columns that lead to their lines, files in folders."""

import uuid

import pytest
from playwright.sync_api import Locator, Page, expect

from backend.core.session import transaction
from backend.environments.library import render_template
from backend.environments.queries import get_draft, get_environment
from backend.environments.service import create_environment

pytestmark = pytest.mark.browser
SOON_MS = 8000


@pytest.fixture
def name() -> str:
    """An environment that is only a draft."""
    name = f"sums_{uuid.uuid4().hex[:8]}"
    with transaction() as session:
        create_environment(session, None, name, render_template("single_turn", name))
    return name


def stored(name: str, path: str) -> str:
    with transaction() as session:
        return get_draft(session, get_environment(session, name)).files[path]


def opened(page: Page, name: str, file: str) -> Page:
    page.goto(f"/environments/{name}/edit?file={file}")
    expect(page.locator(".ace_content")).to_be_visible()
    return page


def write_at_the_end(page: Page, text: str) -> None:
    page.locator(".ace_content").click()
    page.keyboard.press("Control+End")
    page.keyboard.type(text)


def saved(page: Page) -> Locator:
    return page.locator("#draft-state").get_by_text("saved")


def test_the_second_tab_is_reported_sees_both_and_keeps_its_own(page: Page, name: str) -> None:
    first, second = page, page.context.new_page()
    for tab in (first, second):
        opened(tab, name, "README.md")
    write_at_the_end(first, "from the first tab")
    expect(second.locator("#draft-news")).to_be_visible(timeout=SOON_MS)
    expect(first.locator("#draft-news")).to_be_hidden()
    write_at_the_end(second, "from the second tab")
    message = second.locator("#draft-message")
    expect(message).to_contain_text("README.md was saved after you opened it", timeout=SOON_MS)
    expect(message.locator("[data-change=remove]")).to_contain_text("from the first tab")
    expect(message.locator("[data-change=add]")).to_contain_text("from the second tab")
    assert "from the first tab" in stored(name, "README.md")
    message.get_by_role("button", name="Save mine over it").click()
    expect(message).not_to_contain_text("was saved after you opened it", timeout=SOON_MS)
    expect(second.locator("#draft-news")).to_be_hidden(timeout=SOON_MS)
    assert "from the second tab" in stored(name, "README.md")
    assert "from the first tab" not in stored(name, "README.md")


def test_the_second_tab_may_take_theirs(page: Page, name: str) -> None:
    first, second = page, page.context.new_page()
    for tab in (first, second):
        opened(tab, name, "README.md")
    write_at_the_end(first, "theirs")
    expect(second.locator("#draft-news")).to_be_visible(timeout=SOON_MS)
    write_at_the_end(second, "mine")
    message = second.locator("#draft-message")
    expect(message).to_contain_text("was saved after you opened it", timeout=SOON_MS)
    second.on("dialog", lambda dialog: dialog.accept())
    message.get_by_role("link", name="Leave mine, load theirs").click()
    expect(second.locator(".ace_content")).to_contain_text("theirs", timeout=SOON_MS)
    assert stored(name, "README.md").endswith("theirs")


def test_two_tabs_on_two_files_do_not_meet(page: Page, name: str) -> None:
    first, second = opened(page, name, "README.md"), opened(page.context.new_page(), name, "server/requirements.txt")
    write_at_the_end(first, "words")
    expect(saved(first)).to_be_visible()
    write_at_the_end(second, "# a remark")
    second.keyboard.press("Control+S")
    expect(second.locator("#draft-message")).not_to_contain_text("Somebody")
    expect(second.locator("#draft-news")).to_be_hidden()
    page.wait_for_timeout(1800)
    assert stored(name, "README.md").endswith("words")
    assert stored(name, "server/requirements.txt").endswith("# a remark")


def test_a_column_leads_to_the_line_that_computes_it(page: Page, name: str) -> None:
    opened(page, name, "openenv.yaml")
    page.locator("#reward-columns").get_by_role("link", name="correct").click()
    expect(page.get_by_role("heading", name=f"server/{name}_environment.py")).to_be_visible()
    active = page.locator(".ace_gutter-active-line")
    expect(active).to_be_visible(timeout=SOON_MS)
    line = int(active.first.inner_text())
    assert stored(name, f"server/{name}_environment.py").splitlines()[line - 1].strip().startswith("def correct(")
    page.locator("#reward-columns").get_by_role("link", name="close").click()
    expect(active.first).not_to_have_text(str(line))
    assert f"#L{int(active.first.inner_text())}" in page.url


def test_folders_open_and_close_and_the_open_file_is_marked(page: Page, name: str) -> None:
    opened(page, name, f"server/{name}_environment.py")
    files = page.locator("#file-list")
    current = files.locator("[aria-current=page]")
    expect(current).to_have_text(f"{name}_environment.py")
    files.locator("summary", has_text="server/").click()
    expect(current).to_be_hidden()


def test_generated_files_are_listed_apart_and_can_be_read(page: Page, name: str) -> None:
    opened(page, name, "models.py")
    generated = page.locator("#generated-files")
    expect(generated.get_by_role("link", name="client.py")).to_be_hidden()
    generated.locator("summary").click()
    generated.get_by_role("link", name="client.py").click()
    expect(page.get_by_role("heading", name="client.py")).to_be_visible()
    expect(page.locator("#generated-note")).to_be_visible()
    expect(generated.locator("[aria-current=page]")).to_have_text("client.py")


def test_long_lines_wrap_and_a_typed_problem_hides_that_the_draft_can_be_published(page: Page, name: str) -> None:
    opened(page, name, "openenv.yaml")
    wrap, publishable = page.get_by_role("button", name="Wrap lines"), page.get_by_text("can be published")
    expect(wrap).to_have_attribute("aria-pressed", "false")
    wrap.click()
    expect(publishable).to_be_visible()
    write_at_the_end(page, "nonsense: [")
    expect(page.locator("ul.problems[aria-live] li").first).to_be_visible(timeout=SOON_MS)
    expect(publishable).to_be_hidden()
    opened(page, name, "README.md")  # the choice holds for all editors
    expect(page.get_by_role("button", name="Wrap lines")).to_have_attribute("aria-pressed", "true")
