"""A newcomer imports a foreign package, reads the report, publishes, plays and exports it."""

import io
import re
import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import FilePayload, Page, expect

from tests.browser.journey.steps import WORK_MS
from tests.browser.witness import assert_not_reloaded, mark
from tests.environments.importing.packages import door_package, zipped

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_foreign_package_is_imported_published_played_and_exported(page: Page) -> None:
    _upload(page)
    _read_the_report(page)
    _make_its_parts_columns(page)
    _create_and_publish(page)
    _play(page)
    _export(page)


def _upload(page: Page) -> None:
    page.goto("/environments")
    page.get_by_role("link", name="Import").click()
    package = zipped(door_package(), "doors")
    page.get_by_role("button", name="Zip").set_input_files(
        FilePayload(name="doors.zip", mimeType="application/zip", buffer=package)
    )
    page.get_by_role("button", name="Import").click()
    expect(page.get_by_role("heading", name="Import of doors")).to_be_visible()
    mark(page)


def _read_the_report(page: Page) -> None:
    """All of it appears without a reload: the findings and the next steps."""
    report = page.locator("#import-report")
    expect(report.locator(".panel-head .badge").first).to_have_text("starts and plays", timeout=WORK_MS)
    expect(report).to_contain_text("honored: same seed, same beginning")
    expect(report).to_contain_text("in the state")
    expect(page.locator("#import-preview")).to_contain_text("which door?")
    expect(page.get_by_role("button", name="Create the environment")).to_be_visible()
    assert_not_reloaded(page)


def _make_its_parts_columns(page: Page) -> None:
    page.locator("tr").filter(has_text="parts").get_by_role("button", name="Use as columns").click()
    expect(page.get_by_label("proctor block of openenv.yaml")).to_have_value(re.compile("hit:(.|\n)*tidy:"))


def _create_and_publish(page: Page) -> None:
    page.get_by_role("button", name="Create the environment").click()
    expect(page.get_by_role("heading", name="Draft of doors")).to_be_visible()
    expect(page.locator("#draft-problems")).to_contain_text("can be published")
    page.get_by_placeholder("Release notes in one line").fill("as it came")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("Version 1 is published.")).to_be_visible()
    expect(page.locator("#certificate header .badge")).to_have_text(re.compile("passed|warned|failed"), timeout=WORK_MS)


def _play(page: Page) -> None:
    page.goto("/environments/doors/play")
    page.get_by_role("button", name="Begin").click()
    expect(page.locator("#play-board")).to_contain_text("which door?")
    page.locator(".play-choices").get_by_role("button", name="2").click()
    expect(page.locator("#play-end")).to_be_visible()
    expect(page.locator("#play-board")).to_contain_text("tidy")


def _export(page: Page) -> None:
    page.goto("/environments/doors/versions/1")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export", exact=True).click()
    with zipfile.ZipFile(io.BytesIO(Path(download.value.path()).read_bytes())) as archive:
        names = {name.rpartition("/")[2] for name in archive.namelist()}
    assert {"openenv.yaml", "inference.py", "README.md", "Dockerfile", "app.py"} <= names
