"""Views of observations and long conversations, in a real browser."""

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from backend.core.session import transaction
from tests import factories
from tests.browser.barriers import barriers
from tests.browser.witness import Witness

pytestmark = pytest.mark.browser

HOSTILE = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9" onload="x()"><script>x()</script>'
    '<rect width="9" height="9"/></svg>'
)
VIEWS = [
    {"kind": "grid", "title": "Board", "field": "board", "tones": {"X": "blue", "O": "orange"}},
    {"kind": "table", "title": "Form", "field": "form"},
    {"kind": "svg", "title": "Picture", "field": "picture"},
    {"kind": "terminal", "title": "Log", "template": "\x1b[31mred\x1b[0m on {{ board | length }}"},
    {"kind": "markdown", "template": "**{{ missing }}**"},
]


def test_views_replace_the_text_until_it_is_wanted(page: Page, context_witness: Witness) -> None:
    observation = {"board": "1 X\nO 4", "form": {"name": "Ada"}, "picture": HOSTILE}
    with transaction() as session:
        version = factories.make_environment_version(session, view=VIEWS)
        step = factories.make_step("<move>1</move>", {"win": 1.0}, observation=observation)
        messages = [{"role": "user", "content": "Your move."}, {"role": "assistant", "content": "<move>1</move>"}]
        run = factories.make_run(session, version)
        given = {"steps": [step], "messages": messages, "opening": observation}
        path = f"/rollouts/{factories.make_rollouts(session, run, [[1, 1, 0]], **given)[0].id}"
    page.goto(path)
    expect(page.get_by_role("table", name="Board")).to_have_count(2)
    expect(page.get_by_role("img", name="Picture").first).to_be_visible()
    expect(page.get_by_text("This view cannot be shown").first).to_be_visible()
    expect(page.locator(".say", has_text="Your move.")).not_to_be_visible()
    assert barriers(page) == []
    page.get_by_role("button", name="Show only text").click()
    expect(page.locator(".say", has_text="Your move.")).to_be_visible()
    expect(page.get_by_role("table", name="Board").first).not_to_be_visible()
    page.reload()
    expect(page.locator(".say", has_text="Your move.")).to_be_visible()
    page.get_by_role("button", name="Show only text").click()
    expect(page.get_by_role("table", name="Board").first).to_be_visible()
    assert context_witness.problems == []


def test_a_long_conversation_loads_where_one_reads(page: Page) -> None:
    messages = [{"role": "user", "content": "Room 0"}]
    for turn in range(100):
        messages += [
            {"role": "assistant", "content": f"Go {turn}"},
            {"role": "user", "content": f"Room {turn + 1}{' with a lamp' if turn == 90 else ''}"},
        ]
    with transaction() as session:
        steps = [factories.make_step(f"Go {turn}", {"win": 0.0}) for turn in range(100)]
        run = factories.make_run(session)
        path = f"/rollouts/{factories.make_rollouts(session, run, [[1, 1, 0]], steps=steps, messages=messages)[0].id}"
    page.goto(path)
    expect(page.locator("#turn-5")).to_be_visible()
    assert page.locator("#turn-80").count() == 0
    page.get_by_role("searchbox", name="Find in all 201 messages").fill("with a LAMP")
    page.get_by_role("button", name="Find").click()
    page.locator("#found a").click()
    expect(page.locator("#message-182")).to_be_in_viewport()
    page.goto(f"{path}#turn-50")
    expect(page.locator("#turn-50")).to_be_in_viewport()
    page.goto(path)
    part = page.locator(".later").first
    part.scroll_into_view_if_needed()
    expect(page.locator("#turn-20")).to_be_attached()


@pytest.fixture
def context_witness(page: Page, address: str) -> Witness:
    context: BrowserContext = page.context
    return Witness(context, address)
