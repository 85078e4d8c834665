"""Every shape of page, light on a screen and dark on a phone: no barrier that axe finds, and nothing is cut off."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from starlette.routing import Route

from backend.core.session import transaction
from backend.web.identity import SESSION_COOKIE
from tests.browser.barriers import barriers, cut_off, is_too_wide
from tests.browser.installation import separate_database
from tests.browser.rows import make_rows
from tests.web_server import web_of_installation, web_served

pytestmark = pytest.mark.browser

SHAPES = (
    "/",
    "/audit",
    "/checkpoints",
    "/checkpoints/list",
    "/checkpoints/prune?run_id={training}",
    "/compare",
    "/compare?run={evaluation}&run={copy}",
    "/data/sft",
    "/deleted",
    "/deletions/new?run={evaluation}",
    "/detectors",
    "/detectors/early_exit",
    "/draft-scores/{draft_score}",
    "/environments",
    "/environments/new",
    "/environments/tictactoe",
    "/environments/tictactoe/judged",
    "/environments/tictactoe/play",
    "/environments/tictactoe/play/{play}",
    "/environments/tictactoe/versions/1",
    "/environments/tictactoe/versions/1/history",
    "/environments/{drafted}/diff?from=1&to=2",
    "/environments/{drafted}/edit",
    "/environments/{drafted}/red-team",
    "/evaluations/new",
    "/exports",
    "/exports/new?checkpoint_id={checkpoint}",
    "/exports/{export}",
    "/find?text=grid",
    "/graders",
    "/graders/new",
    "/graders/{judge}",
    "/graders/{editable}/edit",
    "/graders/{editable}/tries/{grader_try}",
    "/help/filters",
    "/imports",
    "/imports/new",
    "/imports/{import}",
    "/leaderboards",
    "/leaderboards/tictactoe",
    "/links/{link}",
    "/me",
    "/notices",
    "/policies",
    "/policies/new",
    "/policies/{policy}",
    "/policies/{policy}/edit",
    "/projects",
    "/projects/{project}",
    "/rescores/{batch}",
    "/review",
    "/review/{flag}",
    "/rollouts/{copied_rollout}/before-after",
    "/rollouts/{game}",
    "/rollouts/{rollout}",
    "/rollouts/{rollout}/beside/{other_rollout}",
    "/runs",
    "/runs/chart?run={training}&run={branch}",
    "/runs/import",
    "/runs/{asked}/graders",
    "/runs/{copy}/before-after",
    "/runs/{evaluation}",
    "/runs/{evaluation}/configuration",
    "/runs/{evaluation}/export",
    "/runs/{evaluation}/flags",
    "/runs/{evaluation}/groups",
    "/runs/{evaluation}/log",
    "/runs/{evaluation}/rescore",
    "/runs/{evaluation}/rollouts",
    "/runs/{evaluation}/safeguards",
    "/runs/{games}",
    "/runs/{onset}/studies",
    "/runs/{rejection_sampling}",
    "/runs/{scored}/studies",
    "/runs/{training}",
    "/runs/{training}/alarms",
    "/runs/{training}/branch",
    "/runs/{training}/checkpoints",
    "/settings",
    "/settings/notifications",
    "/settings/notifications/team-chat",
    "/settings/workers",
    "/shared/{shared}",
    "/shares",
    "/sign-in",
    "/sweeps",
    "/sweeps/new",
    "/sweeps/{sweep}",
    "/team",
    "/team/review",
    "/training",
    "/training/examples",
    "/training/examples/{examples}",
    "/training/new",
    "/training/preflights/{advised}",
    "/training/preflights/{preflight}",
)
"""Addresses with names of made-up rows. `test_every_page_has_a_shape` compares them with the application's routes."""

NO_PAGES = re.compile(
    r"/api/.*|/docs/.*|/healthz|/livez|/mcp"
    r"|.*/events|.*/file|.*/download|.*\.(json|csv|zip|html|\{form\})"
    # parts of pages
    r"|/notices/bell|/evaluations/estimate|/rollouts/\{rollout_id\}/(messages|find)|/runs/\{run_id\}/rollouts/choose"
    r"|/training/(examples|pairs)/preview"
)
FOLDED = "details:not(.drop, .numbers, .launch-more)"
"""Parts that are opened first: no menus, and nothing with thousands of similar elements."""
_UNFOLD = """(folded) => {
  for (const each of document.querySelectorAll(folded)) each.open = true;
  for (const entry of document.querySelectorAll(".transcript > .entry")) entry.style.contentVisibility = "visible";
}"""
VARYING = ("color-contrast", "link-in-text-block", "scrollable-region-focusable", "target-size")
"""Rules whose outcome depends on the theme or the width."""


def test_every_page_has_a_shape() -> None:
    routes = [route for route in web_of_installation().routes if isinstance(route, Route) and "GET" in route.methods]
    pages = {route.path for route in routes if not NO_PAGES.fullmatch(route.path)}
    shown = set()
    for shape in SHAPES:
        address = re.sub(r"\{\w+\}", "0190", shape.partition("?")[0])
        shown.add(next(route.path for route in routes if route.path_regex.match(address)))
    assert shown == pages


@dataclass(frozen=True, slots=True)
class Shapes:
    page: Page
    names: dict[str, str]


@pytest.fixture(scope="module")
def shapes(address: str, browser: Browser) -> Iterator[Shapes]:
    """The made-up rows on a database without other tests' rows, and a signed-in page."""
    with separate_database():
        with transaction() as session:
            names = make_rows(session)
        with web_served(web_of_installation()) as here:
            context = browser.new_context(base_url=here, viewport={"width": 1440, "height": 900}, color_scheme="light")
            context.add_cookies([{"name": SESSION_COOKIE, "value": names["cookie"], "url": here}])
            context.route("**/events*", lambda route: route.abort())
            yield Shapes(context.new_page(), names)
            context.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_no_page_has_a_barrier(shapes: Shapes, shape: str) -> None:
    assert problems_of(shapes.page, shape.format(**shapes.names)) == {}


def problems_of(page: Page, path: str) -> dict[str, object]:
    """Return everything that is wrong with a page, by where it shows."""
    show(page, 1440, "light")
    response = page.goto(path)
    assert response is not None
    assert response.status == 200, response.status
    page.evaluate(_UNFOLD, FOLDED)
    settle(page)
    page.evaluate("dispatchEvent(new Event('resize'))")  # all entries of a transcript are drawn from here on
    settle(page)
    found: dict[str, object] = {"light": barriers(page), "too wide": is_too_wide(page)}
    set_text_size(page, 32)  # half as many letters fit, as at 200% zoom
    found["too wide with twice the text"] = is_too_wide(page)
    set_text_size(page, 16)
    show(page, 390, "dark")
    found |= {"dark, on a phone": barriers(page, VARYING), "too wide for a phone": is_too_wide(page)}
    found["cut off on a phone"] = cut_off(page)
    return {place: each for place, each in found.items() if each}


def set_text_size(page: Page, pixels: int) -> None:
    """Set the text size of the browser, as people do in its settings."""
    session = page.context.new_cdp_session(page)
    session.send("Page.setFontSizes", {"fontSizes": {"standard": pixels}})
    session.detach()


def show(page: Page, width: int, theme: Literal["light", "dark"]) -> None:
    page.emulate_media(color_scheme=theme)
    page.set_viewport_size({"width": width, "height": 844})
    settle(page)


def settle(page: Page) -> None:
    """Wait until what follows a change of the page, such as its Tab order, is done."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def test_a_run_is_launched_by_keyboard(shapes: Shapes) -> None:
    page, keys = shapes.page, shapes.page.keyboard
    show(page, 1440, "light")
    page.goto("/")
    skip_navigation(page)
    keys.press("g")
    keys.press("t")
    page.wait_for_url("**/training/new*")
    skip_navigation(page)
    tab_to(page, page.get_by_label("Environment version"))
    keys.type("tictactoe v1")
    tab_to(page, page.get_by_label("Name of the policy"))
    keys.type("by keyboard")
    tab_to(page, page.get_by_label("Reason to train without a certificate"))
    keys.type("to try the keys")
    keys.press("Escape")  # leave the field, so that keys are shortcuts again
    keys.press("s")
    page.wait_for_url("**/runs/*")
    expect(page.locator("h1")).to_contain_text("by keyboard")


def test_runs_are_compared_and_exported_by_keyboard(shapes: Shapes) -> None:
    page, keys = shapes.page, shapes.page.keyboard
    show(page, 1440, "dark")
    page.goto("/runs?text=400+held-out")
    skip_navigation(page)
    boxes = page.get_by_role("checkbox", name="Select")
    for box in (boxes.nth(0), boxes.nth(1)):
        tab_to(page, box)
        keys.press("Space")
    tab_to(page, page.get_by_role("button", name="Compare"), key="Shift+Tab")
    keys.press("Enter")
    page.wait_for_url("**/compare?*")
    skip_navigation(page)
    export = page.locator(".table-frame .export").first
    tab_to(page, export.locator("summary"))
    keys.press("Enter")
    tab_to(page, export.get_by_role("button", name="CSV"))
    with page.expect_download() as download:
        keys.press("Enter")
    assert download.value.suggested_filename.endswith(".csv")


def skip_navigation(page: Page) -> None:
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="To the content")).to_be_focused()
    page.keyboard.press("Enter")


FOCUS = """target => {
  const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement);
  const isVisible = outlineStyle !== "none" && parseFloat(outlineWidth) >= 2;
  return [document.activeElement === target, isVisible, document.activeElement.outerHTML.slice(0, 200)];
}"""


def tab_to(page: Page, target: Locator, key: str = "Tab") -> None:
    """Move the focus, which is visible wherever it stops."""
    element = target.element_handle()
    for _ in range(80):
        page.keyboard.press(key)
        is_there, is_visible, html = page.evaluate(FOCUS, element)
        assert is_visible, html
        if is_there:
            return
    pytest.fail(f"the keyboard does not reach {target}")
