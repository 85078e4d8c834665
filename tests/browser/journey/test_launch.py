"""A trainer fills in the launch form, runs a preflight on a worker, and starts the run there; wide and on a phone."""

import re
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Page, ViewportSize, expect

from tests.browser.journey.steps import WORK_MS, choose_tictactoe, say_why
from tests.browser.witness import assert_not_reloaded, mark

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

SMALL = {"sft.episodes": 60, "sft.steps": 20, "grpo.steps": 2, "grpo.tasks_per_step": 5, "heldout.tasks": 10}


WIDE, PHONE = ViewportSize(width=1440, height=900), ViewportSize(width=390, height=844)


def test_a_run_is_scanned_and_started_from_there(page: Page, tmp_path: Path) -> None:
    page.set_viewport_size(WIDE)
    _fill_in(page)
    _read_the_file(page, tmp_path)
    _look_at_it(page)
    start = page.get_by_role("button", name="Start training")
    expect(start).to_be_visible()
    say_why(page, "a small try from a pre-flight")
    start.click()
    expect(page.locator("#run-head h1")).to_contain_text("tictactoe", timeout=WORK_MS)
    stop = page.get_by_role("button", name="Stop")
    # Before htmx has read the form, the page stops the run without a dialog.
    expect(page.locator("form[data-htmx-powered]", has=stop)).to_be_visible()
    stop.click()
    page.locator("dialog[open]").get_by_role("button", name="Stop").click()


def test_a_phone_fills_in_the_same_form(page: Page) -> None:
    page.set_viewport_size(PHONE)
    _fill_in(page)


def _fill_in(page: Page) -> None:
    """The figures follow while one types; what counts only elsewhere is hidden."""
    page.goto("/training/new")
    page.get_by_role("link", name="Quick look").click()
    page.wait_for_url("**/training/new?preset=quick*")
    mark(page)
    choose_tictactoe(page)
    for name, value in SMALL.items():
        page.locator(f'[name="{name}"]').fill(str(value))
    expect(page.locator("#launch-figures")).to_contain_text("5 tasks × 4 episodes = 20 rollouts per step")
    page.locator('[name="grpo.group_size"]').fill("1")
    expect(page.locator("#launch-figures")).to_contain_text("grpo.group_size")
    page.locator('[name="grpo.group_size"]').fill("4")
    expect(page.locator("#launch-figures")).to_contain_text("2 steps = 40 rollouts")
    expect(page.locator('[name="model.base"]')).to_be_hidden()
    page.get_by_text("Hugging Face model or folder").click()
    expect(page.locator('[name="model.base"]')).to_be_visible()
    page.get_by_text("From scratch", exact=True).click()
    assert_not_reloaded(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def _read_the_file(page: Page, folder: Path) -> None:
    expect(page.locator("#launch-figures .code")).to_contain_text("--set grpo.steps=2")
    with page.expect_download() as begun:
        page.get_by_role("link", name="YAML").click()
    file = folder / "run.yaml"
    begun.value.save_as(file)
    written = yaml.safe_load(file.read_text())
    assert written["environment"] == "tictactoe@1"
    assert written["configuration"]["grpo"]["steps"] == 2


def _look_at_it(page: Page) -> None:
    page.get_by_role("button", name=re.compile("^Pre-flight")).click()
    page.wait_for_url("**/training/preflights/*")
    mark(page)
    expect(page.locator("#preflight-findings")).to_contain_text("20 rollouts per step")
    expect(page.locator("#preflight-findings")).to_contain_text("on this worker, plus startup", timeout=WORK_MS)
    expect(page.locator("#preflight-state .notice")).to_be_visible(timeout=WORK_MS)
    for found in ("chat template", "conversation", "base success", "gradient"):
        expect(page.locator("#preflight-findings b").get_by_text(found, exact=True)).to_be_visible()
    assert_not_reloaded(page)
    for size in (PHONE, WIDE):
        page.set_viewport_size(size)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
