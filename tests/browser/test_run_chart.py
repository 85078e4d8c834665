"""Curves of many runs in one chart: options, zoom, hover, legend, files; and accessible in both themes."""

import csv
import re
import struct
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Download, Locator, Page, expect

from backend.core.session import transaction
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import RunKind, RunStatus
from backend.runs.service import _announce
from tests import factories
from tests.browser.witness import Witness

pytestmark = pytest.mark.browser


@pytest.fixture
def runs(address: str) -> list[str]:
    """Three seeds of one configuration, and a run with another learning rate that is still training."""
    ids = []
    with transaction() as session:
        version = factories.make_environment_version(session)
        for number, (seed, rate) in enumerate([(0, 5e-4), (1, 5e-4), (2, 5e-4), (0, 1e-4)]):
            configuration = TrainingConfiguration(seed=seed, grpo={"learning_rate": rate}).resolved()
            fields = {"name": f"rate {rate:g}", "configuration": configuration}
            if number == 3:
                fields |= {"status": RunStatus.RUNNING, "ended_at": None, "progress": {"done": 300, "total": 400}}
            run = factories.make_run(session, version, kind=RunKind.TRAINING, **fields)
            factories.make_points(session, run, "reward", {step: number + step / 1000 for step in range(1, 301)})
            ids.append(str(run.id))
    return ids


def test_a_chart_is_looked_into_shared_and_saved(page: Page, address: str, runs: list[str], tmp_path: Path) -> None:
    witness = Witness(page.context, address)
    page.goto("/runs/chart?" + "&".join(f"run={run}" for run in runs))
    legend = page.locator(".legend button")
    expect(legend).to_have_count(4)
    expect(legend.nth(1)).to_contain_text("rate 0.0005, seed 1")
    expect(legend.nth(1).locator("b")).to_have_text("1.300")

    # the values of all runs below the pointer, and the step that a click leads to
    plot = page.locator(".u-over")
    _point(plot, 0.5)
    expect(legend.nth(0).locator("b")).to_have_text(re.compile(r"0\.15\d"))
    expect(legend.nth(3).locator("b")).to_have_text(re.compile(r"3\.15\d"))

    # zoom: the address holds the range, from which the same chart opens
    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 60, steps=4)
    page.mouse.up()
    expect(page.get_by_role("button", name="Reset zoom")).to_be_visible()
    low = float(parse_qs(urlsplit(page.url).query)["low"][0])
    assert 70 < low < 82
    legend.nth(0).click()
    expect(legend.nth(0)).to_have_attribute("aria-pressed", "false")

    page.get_by_label("Runs that differ only in their seed").select_option("true")
    expect(legend).to_have_count(2)
    expect(legend.nth(0)).to_contain_text("rate 0.0005 (3 seeds)")
    page.get_by_role("slider", name="Smoothing").fill("0.9")
    page.get_by_label("Horizontal axis").select_option("rollouts")
    expect(page.locator("[data-x-label]")).to_have_text("by rollouts")
    page.reload()
    expect(legend).to_have_count(2)
    expect(page.get_by_role("slider", name="Smoothing")).to_have_value("0.9")
    expect(page.get_by_role("table", name="Settings that differ")).to_contain_text("Learning rate")

    # a running run goes on
    with transaction() as session:
        run = session.get_one(factories.Run, runs[3])
        factories.make_points(session, run, "reward", {301: 9.0})
        run.progress = {"done": 301, "total": 400}
        _announce(session, run)
    expect(legend.nth(1).locator("b")).to_have_text("4.214", timeout=15_000)

    # files
    chart, table = page.locator("figure .export"), page.locator("#differences .export")
    svg = _save(page, chart, "SVG", tmp_path).read_text()
    assert svg.startswith("<svg")
    assert "rate 0.0005 (3 seeds)" in svg
    assert svg.count("<polyline") == 3, "and the values of the single run"
    assert "<polygon" in svg
    assert "oklch" not in svg
    png = _save(page, chart, "PNG", tmp_path).read_bytes()
    width, height = struct.unpack(">II", png[16:24])
    assert (png[:8], width > 1000, height > 500) == (b"\x89PNG\r\n\x1a\n", True, True)
    rows = list(csv.reader(_save(page, chart, "CSV", tmp_path).read_text().splitlines()))
    assert (rows[0][4], len(rows)) == ("rollouts", 1 + 4 * 300 + 1)
    settings = list(csv.reader(_save(page, table, "CSV", tmp_path).read_text().splitlines()))
    assert [row[0] for row in settings] == ["setting", "GRPO: Learning rate", "Seed"]
    assert "Learning" in _save(page, table, "SVG", tmp_path).read_text()

    assert witness.problems == []


def test_a_click_on_a_curve_opens_the_rollouts_of_its_step(page: Page, runs: list[str]) -> None:
    page.goto(f"/runs/chart?run={runs[0]}")
    expect(page.locator(".legend button")).to_have_count(1)
    _point(page.locator(".u-over"), 0.5, 0.5)
    expect(page.locator(".tip")).to_contain_text("at step 15")
    page.mouse.down()
    page.mouse.up()
    page.wait_for_url(f"**/runs/{runs[0]}/rollouts?step=15*")


def _point(plot: Locator, across: float, down: float = 0.1) -> None:
    box = plot.bounding_box()
    assert box is not None
    plot.page.mouse.move(box["x"] + box["width"] * across, box["y"] + box["height"] * down)


def _save(page: Page, menu: Locator, kind: str, folder: Path) -> Path:
    menu.locator("summary").click()
    with page.expect_download() as waiting:
        menu.get_by_text(kind, exact=True).click()
    saved: Download = waiting.value
    target = folder / saved.suggested_filename
    saved.save_as(target)
    return target
