"""An author writes an environment, publishes it twice, checks it and plays it."""

import uuid

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.journey.steps import WORK_MS

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]


def test_an_environment_is_written_published_checked_and_played(page: Page) -> None:
    name = f"hunt_{uuid.uuid4().hex[:8]}"
    _create_from_template(page, name)
    _see_a_mistake_marked_while_typing(page)
    _change_the_game_and_publish_twice(page, name)
    _see_what_changed(page, name)
    _run_the_checks(page, name)
    _play(page, name)


def _create_from_template(page: Page, name: str) -> None:
    page.goto("/environments")
    page.get_by_role("link", name="New environment").click()
    page.get_by_label("Name").fill(name)
    page.get_by_text("Multi-turn game").click()
    page.get_by_role("button", name="Create the draft").click()
    expect(page.get_by_role("heading", name=f"Draft of {name}")).to_be_visible()
    expect(page.locator("#draft-problems")).to_contain_text("can be published")


def _line(page: Page, text: str) -> Locator:
    return page.locator(".ace_line").filter(has_text=text)


def _put_after(page: Page, text: str, new: str) -> None:
    """Type a line after the one with this text, as a person does."""
    _line(page, text).click(force=True)
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.keyboard.type(new)


def _see_a_mistake_marked_while_typing(page: Page) -> None:
    _put_after(page, "agent:", "  flavour: strawberry")
    expect(page.locator(".ace_gutter-cell.ace_error")).to_have_count(1)
    expect(page.locator(".editor-field .problems")).to_contain_text("proctor.agent.flavour: unknown key")
    page.keyboard.press("Control+D")
    expect(_line(page, "flavour")).to_have_count(0)
    expect(page.locator(".ace_gutter-cell.ace_error")).to_have_count(0)


def _save(page: Page) -> None:
    with page.expect_response(lambda got: got.request.method == "POST" and got.url.endswith("/edit")) as saved:
        page.keyboard.press("Control+S")
    assert saved.value.status == 200


def _publish(page: Page, notes: str, number: int) -> str:
    """The content hash."""
    page.get_by_placeholder("Release notes in one line").fill(notes)
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text(f"Version {number} is published.")).to_be_visible()
    return page.locator(".facts div").filter(has_text="content hash").locator("dd").inner_text()


def _change_the_game_and_publish_twice(page: Page, name: str) -> None:
    _line(page, "description:").click(force=True)
    page.keyboard.press("Home")
    page.keyboard.press("Shift+End")
    page.keyboard.type("description: A treasure hunt, warmer and colder.")
    _save(page)
    first = _publish(page, "as the template", 1)
    page.goto(f"/environments/{name}/edit?file=server/{name}_environment.py")
    _line(page, "FIELDS_BY_LEVEL = ").click(force=True)
    page.keyboard.press("Home")
    page.keyboard.press("Shift+End")
    page.keyboard.type("FIELDS_BY_LEVEL = (7, 13)")
    _save(page)
    expect(page.locator("#draft-problems")).to_contain_text("can be published")
    assert _publish(page, "shorter lines", 2) != first
    page.goto(f"/environments/{name}/versions/1")
    expect(page.locator(".facts div").filter(has_text="content hash")).to_contain_text(first)


def _see_what_changed(page: Page, name: str) -> None:
    page.goto(f"/environments/{name}/versions/2")
    page.get_by_role("link", name="What changed").click()
    changes = page.get_by_label(f"Changes of server/{name}_environment.py")
    expect(changes.locator("[data-change=remove]")).to_contain_text("FIELDS_BY_LEVEL = (9, 19)")
    expect(changes.locator("[data-change=add]")).to_contain_text("FIELDS_BY_LEVEL = (7, 13)")


def _run_the_checks(page: Page, name: str) -> None:
    page.goto(f"/environments/{name}/versions/2")
    # The published version is checked already; the button is there again when those checks have ended.
    page.get_by_role("button", name="Run the checks").click(timeout=WORK_MS)
    certificate = page.locator("#certificate")
    expect(certificate.locator("header .badge")).to_have_text("passed", timeout=WORK_MS)
    expect(certificate.locator("tbody tr").nth(6)).to_be_visible()
    for evidence in certificate.locator("tbody tr .faint").filter(has_not_text="Figures").all():
        assert evidence.inner_text().strip()
    figures = certificate.locator("details", has=page.get_by_text("Figures", exact=True)).first
    figures.locator("summary").click()
    expect(figures.locator("dl")).to_be_visible()


def _play(page: Page, name: str) -> None:
    """Go right once, hear whether that was warmer, and dig where the treasure must be."""
    page.goto(f"/environments/{name}")
    page.get_by_role("link", name="Play p").click()
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Level").select_option("0")
    page.get_by_role("button", name="Begin").click()
    board = page.locator("#play-board")
    expect(board).to_contain_text("You are on field 4 of 7.")
    direction, turn = "right", 1
    while "Colder." not in _act(page, direction, turn) or turn == 1:
        if turn == 1 and "Colder." in (board.locator(".play-text").text_content() or ""):
            direction = "left"
        turn += 1
        assert turn < 8
        if direction not in board.locator(".play-choices").inner_text():
            break
    if "Colder." in (board.locator(".play-text").text_content() or ""):
        turn += 1
        _act(page, "left" if direction == "right" else "right", turn)
    page.locator(".play-choices").get_by_role("button", name="dig").click()
    expect(page.locator("#play-end")).to_contain_text("You found it.")
    expect(board.get_by_role("row").filter(has_text="found")).to_contain_text("+1.000")
    page.get_by_role("link", name="The rollout").click()
    expect(page.locator(".transcript .earned .chip").filter(has_text="closer").first).to_be_visible()
    expect(page.get_by_role("link", name="human")).to_be_visible()


def _act(page: Page, deed: str, turn: int) -> str:
    """Press a legal choice; what the environment said then."""
    page.locator(".play-choices").get_by_role("button", name=deed).click()
    expect(page.locator("#play-board")).to_contain_text(f"turn {turn + 1} of at most")
    return page.locator("#play-board .play-text").text_content() or ""
