"""The documentation in Chromium, as the product serves it: search, both themes, no error, no request elsewhere."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from backend.settings import PROJECT_ROOT
from backend.web import docs_site

pytestmark = pytest.mark.browser
PAGES = (
    "index",
    "concepts",
    "get-started",
    "training",
    "manifest",
    "review",
    "api-operations",
    "detector-list",
    "search.html?q=canaries",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What `make docs` built if that is up to date."""
    folder = docs_site.DOCS_FOLDER
    if subprocess.run(["make", "--question", "frontend/docs/index.html"], cwd=PROJECT_ROOT).returncode:
        folder = tmp_path_factory.mktemp("docs") / "site"
        command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", "docs", str(folder)]
        subprocess.run(command, cwd=PROJECT_ROOT, check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(docs_site, "DOCS_FOLDER", folder)
        yield folder


@pytest.fixture
def quiet(page: Page, address: str) -> Iterator[Page]:
    """A page on which every message of the console, failed response and request to another host is a failure."""
    noise: list[str] = []
    page.on("console", lambda message: noise.append(message.text))
    page.on("response", lambda answer: noise.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None)
    page.on("request", lambda sent: noise.append(sent.url) if not sent.url.startswith((address, "data:")) else None)
    yield page
    assert noise == []


def test_search_finds_a_page_and_opens_it(site: Path, quiet: Page) -> None:
    quiet.goto("/docs/")
    quiet.keyboard.press("/")
    quiet.keyboard.type("honeypot")
    quiet.keyboard.press("Enter")
    first = quiet.locator("#search-results li a").first
    expect(first).to_be_visible()
    quiet.get_by_role("link", name="Detectors of reward hacking").last.click()
    expect(quiet.get_by_role("heading", level=1)).to_contain_text("Detectors of reward hacking")


@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (1440, "dark"), (390, "light"), (390, "dark")])
def test_pages_are_accessible_and_fit_the_window(site: Path, quiet: Page, width: int, scheme: str) -> None:
    quiet.set_viewport_size({"width": width, "height": 900})
    quiet.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    # What axe-core finds depends on the theme in colors alone, and on the width hardly: all rules run once.
    rules = {"light": {}, "dark": {"runOnly": {"type": "rule", "values": ["color-contrast"]}}}[scheme]
    for name in PAGES:
        quiet.goto(f"/docs/{name}")
        if "search" in name:
            expect(quiet.locator("#search-results li").first).to_be_visible()
        assert quiet.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name
        if width == 1440:
            results = Axe().run(quiet, options=rules)
            assert results.violations_count == 0, f"{name}: {results.generate_report()}"


def test_the_theme_of_the_product_holds_here_too(site: Path, quiet: Page) -> None:
    quiet.emulate_media(color_scheme="light")
    quiet.goto("/docs/concepts")
    quiet.locator("[data-theme-switch]").click()
    quiet.locator("[data-theme-switch]").click()
    expect(quiet.locator("html")).to_have_attribute("data-theme", "dark")
    dark = quiet.locator("picture source").first.evaluate("source => new URL(source.srcset, document.baseURI).href")
    assert "system-dark" in dark
    # Not by `wait_for_function`: it evaluates text in the page, which the content security policy refuses.
    expect(quiet.locator("picture img").first).to_have_js_property("currentSrc", dark)
    quiet.goto("/")
    expect(quiet.locator("html")).to_have_attribute("data-theme", "dark")
