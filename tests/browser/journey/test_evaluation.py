"""An author evaluates two policies, judges what a detector found, and compares."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.journey.steps import WORK_MS, evaluate, expect_completed
from tests.browser.witness import assert_not_reloaded, mark

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]


def test_policies_are_evaluated_watched_judged_and_compared(page: Page) -> None:
    evaluate(page, "random", tasks=3000, rollouts=2)
    _watch_progress(page)
    _open_a_rollout(page)
    evaluate(page, "repeat", tasks=60)
    expect_completed(page)
    repeat = page.url.rpartition("/")[2]
    _judge_a_flag(page, repeat)
    page.goto(f"/runs/{repeat}")
    _compare(page)


def _watch_progress(page: Page) -> None:
    mark(page)
    bar = page.locator("#run-progress progress")
    expect(bar).to_have_attribute("value", re.compile("[1-9]"), timeout=WORK_MS)
    before = bar.get_attribute("value") or ""
    expect(bar).not_to_have_attribute("value", before)
    expect(page.locator("#run-newest .rollout-card").first).to_be_visible()
    expect_completed(page)
    expect(page.locator("#run-outcome")).to_contain_text("6,000")
    assert_not_reloaded(page)


def _open_a_rollout(page: Page) -> None:
    page.get_by_role("link", name=re.compile(r"^Rollouts\s*[\d,]+$")).click()
    page.get_by_role("link", name=re.compile("^heldout.[0-9]")).nth(1).click()
    expect(page.locator(".transcript .earned .chip").filter(has_text="win").first).to_be_visible()
    page.get_by_role("link", name="Next").click()
    expect(page.locator(".transcript .entry[data-role=assistant]").first).to_be_visible()


def _judge_a_flag(page: Page, run: str) -> None:
    page.goto(f"/review?run={run}&detector=repeated_text")
    expect(page.locator("#suspects").get_by_role("link", name="repeated text").first).to_be_visible(timeout=WORK_MS)
    page.goto(f"/runs/{run}/flags")
    page.get_by_role("link", name="repeated text").first.click()
    expect(page.locator(".accusation")).to_contain_text("repeats itself")
    expect(page.locator("mark").first).to_contain_text("I will win this.")
    page.get_by_label("Comment").fill("says the same all the time")
    page.get_by_role("button", name="broken reward").click()
    expect(page.get_by_text("Verdict: broken reward")).to_be_visible()
    page.goto(f"/review?shown=reviewed&run={run}")
    page.get_by_role("link", name="repeated text").first.click()
    expect(page.locator(".history").first).to_contain_text("Ada Lovelace")
    expect(page.locator(".history").first).to_contain_text("says the same all the time")


def _compare(page: Page) -> None:
    page.locator("#run-head").get_by_role("link", name="Compare").click()
    other = page.get_by_label("Second run").locator("option").filter(has_text=re.compile("random.*3,?000")).first
    page.get_by_label("Second run").select_option(value=other.get_attribute("value"))
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_text("the interval excludes 0")).to_be_visible()
    columns = page.get_by_label("Differences by reward column")
    for column in ("win", "format", "invalid_move"):
        expect(columns.get_by_role("row").filter(has_text=column)).to_be_visible()
    page.get_by_label("Most improved").get_by_role("link").nth(1).click()
    expect(page.locator("#side-by-side .transcript")).to_have_count(2)
