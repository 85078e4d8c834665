"""The filter box: completion of fields, operators and values by the keyboard; and the box without script."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import delete

from backend.core.session import transaction
from backend.detectors.tables import Flag
from backend.runs.tables import Run
from tests import factories

pytestmark = pytest.mark.browser


@pytest.fixture
def run(address: str) -> Iterator[Run]:
    """Ten rollouts, three of them flagged."""
    with transaction() as session:
        run = factories.make_run(session)
        made = factories.make_rollouts(session, run, [[1, 1, 0]] * 4 + [[0, 1, 0]] * 6)
        for rollout in made[:3]:
            factories.make_flag(session, run, rollout)
    yield run
    with transaction() as session:
        session.execute(delete(Flag))


def test_a_filter_is_written_by_the_keyboard_alone(page: Page, run: Run) -> None:
    page.goto(f"/runs/{run.id}/rollouts")
    page.keyboard.press("/")
    box = page.get_by_role("combobox", name="Filter")
    expect(box).to_be_focused()
    page.keyboard.type("stat")
    options = page.get_by_role("listbox").get_by_role("option")
    expect(options.first).to_contain_text("status")
    page.keyboard.press("Tab")
    expect(box).to_have_value("status ")
    expect(options.first).to_contain_text("=")
    page.keyboard.press("Tab")
    page.keyboard.type("comp")
    page.keyboard.press("ArrowDown")
    expect(options.first).to_have_attribute("aria-selected", "true")
    expect(box).to_have_attribute("aria-activedescendant", "filter-option-0")
    page.keyboard.press("Enter")
    expect(box).to_have_value("status = completed ")
    page.keyboard.type("and has fl")
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    expect(page.get_by_role("listbox")).not_to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_text("3 of 10 match")).to_be_visible()


def test_the_values_of_a_field_are_offered_by_the_mouse_too(page: Page, run: Run) -> None:
    page.goto(f"/runs/{run.id}/rollouts")
    box = page.get_by_role("combobox", name="Filter")
    box.fill("flag = ")
    page.get_by_role("option", name="repeated_text").click()
    expect(box).to_have_value("flag = repeated_text ")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_text("3 of 10 match")).to_be_visible()


def test_arrow_keys_lead_through_the_filtered_rollouts(page: Page, run: Run) -> None:
    page.goto(f"/runs/{run.id}/rollouts?where=win+%3D+1&sort=seq")
    page.locator("tbody a").first.click()
    expect(page.get_by_text("Previous and next pass the filter")).to_be_visible()
    first = page.url
    page.keyboard.press("ArrowRight")
    page.wait_for_url(lambda url: url != first)
    assert "where=win" in page.url
    page.keyboard.press("ArrowLeft")
    page.wait_for_url(first)


def test_a_choice_of_columns_and_a_view_are_kept(page: Page, run: Run) -> None:
    page.goto(f"/runs/{run.id}/rollouts?where=has+flag")
    page.locator("summary", has_text="Columns").click()
    page.get_by_role("checkbox", name="flags").check()
    page.get_by_role("button", name="Show columns").click()
    expect(page.get_by_role("columnheader", name="flags")).to_be_visible()
    page.locator("summary", has_text="Views").click()
    page.get_by_label("Save this view as").fill("odd ones")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved the view odd ones.")).to_be_visible()
    page.goto(f"/runs/{run.id}/rollouts")
    page.locator("summary", has_text="Views").click()
    page.get_by_role("link", name="odd ones").click()
    expect(page.get_by_text("3 of 10 match")).to_be_visible()


def test_without_script_the_box_filters_all_the_same(page: Page, run: Run, address: str) -> None:
    context = page.context.browser.new_context(java_script_enabled=False, base_url=address)  # type: ignore[union-attr]
    context.add_cookies(page.context.cookies())  # type: ignore[arg-type]
    plain = context.new_page()
    plain.goto(f"/runs/{run.id}/rollouts")
    plain.get_by_role("searchbox", name="Filter").fill("has flag and wn = 1")
    plain.get_by_role("button", name="Filter").click()
    expect(plain.locator("mark")).to_have_text("wn")
    plain.get_by_role("searchbox", name="Filter").fill("has flag")
    plain.get_by_role("button", name="Filter").click()
    expect(plain.get_by_text("3 of 10 match")).to_be_visible()
    context.close()
