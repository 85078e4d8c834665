"""An author tries a draft next to its code, plays by keyboard, lets a scripted policy play, and keeps the episode."""

import uuid

import pytest
from playwright.sync_api import APIResponse, Page, Route, expect

from tests.browser.journey.steps import WORK_MS

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def name(page: Page) -> str:
    """A draft made from a template, in the editor."""
    name = f"hunt_{uuid.uuid4().hex[:8]}"
    page.goto("/environments/new")
    page.get_by_label("Name").fill(name)
    page.get_by_text("Multi-turn game").click()
    page.get_by_role("button", name="Create the draft").click()
    expect(page.get_by_role("heading", name=f"Draft of {name}")).to_be_visible()
    return name


def test_a_draft_is_tried_mended_and_tried_again(page: Page, name: str) -> None:
    page.goto(f"/environments/{name}/edit?file=server/{name}_environment.py")
    panel = page.locator("#try-panel")
    panel.get_by_label("Seed").fill("7")
    panel.get_by_role("button", name="Reset").click()
    expect(panel.locator(".play-text")).to_contain_text("You are on field", timeout=WORK_MS)
    panel.get_by_role("button", name="right").click()
    expect(panel.locator(".transcript .earned")).to_be_visible(timeout=WORK_MS)
    expect(panel.get_by_label("Columns so far")).to_contain_text("closer")
    sound = page.evaluate("() => document.querySelector('[data-editor]').editor.getValue()")
    _break_the_step(page)
    panel.get_by_role("button", name="Replay on what is saved now").click()
    expect(panel.locator("pre.code")).to_contain_text("ZeroDivisionError", timeout=WORK_MS)
    expect(panel.locator("pre.code")).to_contain_text(f"server/{name}_environment.py:")
    page.evaluate("text => document.querySelector('[data-editor]').editor.setValue(text, -1)", sound)
    panel.get_by_role("button", name="Replay on what is saved now").click()  # which saves first
    expect(panel.locator(".transcript .earned")).to_be_visible(timeout=WORK_MS)
    panel.get_by_role("button", name="Let gold play").click(timeout=WORK_MS)
    expect(panel).to_contain_text("the episode has ended", timeout=WORK_MS)


def test_an_answer_that_is_late_does_not_hide_what_came_meanwhile(page: Page, name: str) -> None:
    held: list[tuple[Route, APIResponse]] = []
    page.goto(f"/environments/{name}/edit?file=server/{name}_environment.py")
    panel = page.locator("#try-panel")
    page.route("**/try", lambda route: held.append((route, route.fetch())))
    panel.get_by_role("button", name="Reset").click()
    expect(panel.locator(".play-text")).to_contain_text("You are on field", timeout=WORK_MS)  # by the stream
    page.evaluate(
        "document.addEventListener('htmx:finally:request', (event) => {"
        " if (event.detail.ctx.request.method === 'POST') document.body.dataset.answered = '' })"
    )
    [(route, answer)] = held

    route.fulfill(response=answer)

    expect(page.locator("body[data-answered]")).to_have_count(1)
    expect(panel.locator(".play-text")).to_contain_text("You are on field")


def _break_the_step(page: Page) -> None:
    page.evaluate("() => document.querySelector('[data-editor]').editor.find('def step(')")  # only lines in sight exist
    page.evaluate("() => document.querySelector('[data-editor]').editor.focus()")
    page.keyboard.press("End")
    page.keyboard.type("\n1 / 0")
    _save(page)


def _save(page: Page) -> None:
    with page.expect_response(lambda got: got.request.method == "POST" and got.url.endswith("/edit")) as saved:
        page.keyboard.press("Control+S")
    assert saved.value.status == 200


def test_an_episode_is_played_by_keyboard_and_kept(page: Page) -> None:
    page.goto("/environments/tictactoe/play")
    page.get_by_label("Task number").fill("0")
    page.get_by_label("Task number").press("Escape")
    page.keyboard.press("b")
    board = page.locator("#play-board")
    expect(board).to_contain_text("turn 1 of at most", timeout=WORK_MS)
    page.keyboard.press("i")
    page.keyboard.type("<move>5</move>")
    page.keyboard.press("Control+Enter")
    expect(board).to_contain_text("turn 2 of at most", timeout=WORK_MS)
    page.keyboard.press("Escape")
    page.keyboard.press("u")
    expect(board).to_contain_text("turn 1 of at most", timeout=WORK_MS)
    page.get_by_label("Policy").select_option(label="gold")
    page.get_by_label("Policy").press("Escape")
    page.keyboard.press("m")
    expect(board).to_contain_text("turn 1 by gold", timeout=WORK_MS)
    page.get_by_label("Policy").select_option(label="gold")
    page.get_by_label("Policy").press("Escape")
    page.keyboard.press("e")
    expect(page.locator("#play-end")).to_be_visible(timeout=WORK_MS)
    page.keyboard.press("d")
    expect(page.get_by_text("marked for the SFT warm-up")).to_be_visible()
    page.go_back()
    fixture = f"gold_{uuid.uuid4().hex[:6]}"
    page.get_by_label("As a fixture of the draft").fill(fixture)
    page.get_by_label("It is").select_option("gold")
    page.get_by_role("button", name="Save the fixture").click()
    expect(page.get_by_role("heading", name=f"fixtures/{fixture}.json")).to_be_visible()
    expect(page.locator(".ace_content")).to_contain_text('"kind": "gold"')


def test_two_people_play_the_same_task_each_their_own(page: Page) -> None:
    boards = []
    for tab in (page, page.context.new_page()):
        tab.goto("/environments/tictactoe/play")
        tab.get_by_label("Task number").fill("2")
        tab.get_by_role("button", name="Begin").click()
        expect(tab.locator("#play-board")).to_contain_text("turn 1 of at most", timeout=WORK_MS)
        boards.append(tab)
    boards[0].locator(".play-choices").get_by_role("button", name="5").click()
    expect(boards[0].locator("#play-board")).to_contain_text("turn 2 of at most", timeout=WORK_MS)
    expect(boards[1].locator("#play-board")).to_contain_text("turn 1 of at most")
    boards[1].close()
