"""A trainer trains a tiny model, watches it, and exports its best checkpoint."""

import re
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from tests.browser.journey.steps import WORK_MS, choose_tictactoe, expect_completed, say_why
from tests.browser.witness import assert_not_reloaded, mark

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_model_is_trained_watched_and_exported(page: Page, tmp_path: Path) -> None:
    run = _train(page)
    _watch_training(page)
    _read_a_training_rollout(page)
    _export_the_best(page, run, tmp_path)


def _train(page: Page) -> str:
    """The run's path."""
    page.goto("/training/new")
    page.get_by_role("link", name="Quick look").click()
    page.wait_for_url("**/training/new?preset=quick*")
    choose_tictactoe(page)
    say_why(page, "a small try")
    page.get_by_role("heading", name="Gate before GRPO").click()
    for name, value in {
        "sft.episodes": 200,
        "sft.steps": 40,
        "gate.minimum_format": 0,
        "grpo.steps": 12,
        "grpo.tasks_per_step": 6,
        "heldout.tasks": 20,
        "heldout.every": 4,
    }.items():
        page.locator(f'[name="{name}"]').fill(str(value))
    page.get_by_role("button", name="Start training").click()
    expect(page.locator("#run-head h1")).to_contain_text("tictactoe")
    return urlsplit(page.url).path


def _watch_training(page: Page) -> None:
    mark(page)
    chart = page.locator("[data-chart*='chart=reward']").first
    expect(chart.locator("canvas")).to_be_visible(timeout=WORK_MS)
    chart.locator(".numbers summary").click()
    expect(chart.locator(".numbers tbody tr")).not_to_have_count(0, timeout=WORK_MS)
    few = chart.locator(".numbers tbody tr").count()
    expect(chart.locator(".numbers tbody tr")).not_to_have_count(few, timeout=WORK_MS)
    newest = page.locator("#run-newest .rollout-card").first
    early = newest.inner_text()
    expect_completed(page)
    expect(newest).to_contain_text("step 12")
    assert newest.inner_text() != early
    for column in ("win", "format", "invalid_move"):
        expect(page.locator(".chart .legend").get_by_role("button", name=column).first).to_be_visible()
    expect(page.locator("#run-checkpoints")).to_contain_text("best")
    assert_not_reloaded(page)
    page.get_by_role("link", name=re.compile("^Flags")).click()
    expect(page.locator("table[aria-label=Flags], .empty").first).to_be_visible()


def _read_a_training_rollout(page: Page) -> None:
    page.get_by_role("link", name=re.compile(r"^Rollouts\s*[\d,]+$")).click()
    page.get_by_role("combobox", name="Phase").select_option("train")
    expect(page.get_by_role("combobox", name="Filter")).to_have_value("phase = train")
    page.get_by_role("link", name=re.compile("^train.[0-9]")).first.click()
    expect(page.locator(".tokens .token").first).to_be_visible()
    page.locator(".verdict-form").get_by_role("button", name="honest").click()
    expect(page.locator(".flag").filter(has_text="honest")).to_contain_text("Ada Lovelace")


def _export_the_best(page: Page, run: str, folder: Path) -> None:
    page.goto("/checkpoints?show=best")
    of_run = page.locator(".tree-run").filter(has=page.locator(f'a[href="{run}/checkpoints"]'))
    leaf = of_run.locator(".tree-leaf").filter(has_text="best")
    expect(leaf).to_have_count(1)
    leaf.locator("[data-menu] > summary").click()
    leaf.get_by_role("link", name="Export…").click()
    page.wait_for_url("**/exports/new*")
    page.get_by_role("button", name="Export", exact=True).click()
    expect(page).to_have_url(re.compile("/exports/[0-9a-f-]{36}$"))
    mark(page)
    state = page.locator("#export-state")
    expect(state.locator(".badge").first).to_have_text("completed", timeout=WORK_MS)
    assert_not_reloaded(page)
    expect(state.get_by_label("Checkpoint and reloaded export")).to_be_visible()
    expect(state).to_contain_text("model.safetensors")
    with page.expect_download() as begun:
        page.get_by_role("link", name="Download the zip").click()
    archive = folder / "export.zip"
    begun.value.save_as(archive)
    with zipfile.ZipFile(archive) as files:
        assert files.testzip() is None
        names = {Path(name).name for name in files.namelist()}
    assert {"model.safetensors", "tokenizer.json", "README.md", "passport.json"} <= names
