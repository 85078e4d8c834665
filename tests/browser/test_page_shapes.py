"""Every shape of page, in both themes, on a screen and a phone: no barrier that axe knows, and nothing is cut off."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Page
from starlette.routing import Route

from backend.core.session import transaction
from backend.web.identity import SESSION_COOKIE
from tests.browser.barriers import barriers, is_too_wide
from tests.browser.installation import separate_database
from tests.browser.rows import make_rows
from tests.web_server import web_of_installation, web_served

pytestmark = pytest.mark.browser

SHAPES = (
    "/",
    "/audit",
    "/checkpoints",
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
    "/graders/{grader_try}",
    "/graders/{judge}",
    "/graders/{judge}/edit",
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
    "/runs/{onset}/studies",
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
    "/team",
    "/team/review",
    "/training",
    "/training/examples",
    "/training/examples/{examples}",
    "/training/new",
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
THEMES = {"color-contrast", "link-in-text-block"}
"""Rules whose outcome depends on the theme."""
SIZES = {"target-size", "scrollable-region-focusable"}
"""Rules whose outcome depends on the width."""


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
    page = shapes.page
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 1440, "height": 900})
    response = page.goto(shape.format(**shapes.names))
    assert response is not None
    assert response.status == 200
    page.evaluate("document.querySelectorAll('details:not(.drop)').forEach((each) => { each.open = true; })")
    found = {"light": barriers(page), "sideways": is_too_wide(page)}
    page.emulate_media(color_scheme="dark")
    found["dark"] = barriers(page, sorted(THEMES))
    page.set_viewport_size({"width": 390, "height": 844})
    found |= {"phone": barriers(page, sorted(SIZES)), "phone, sideways": is_too_wide(page)}
    assert {place: each for place, each in found.items() if each} == {}
