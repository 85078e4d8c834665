"""What several journeys do."""

import re
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import BrowserContext, Page, expect

PASSWORD = "a quiet room with clocks"
SOON_MS = 20_000
"""For automatic updates of the page."""
WORK_MS = 300_000
"""For what workers do; the machine may be busy."""


@dataclass(frozen=True, slots=True)
class Journey:
    """A running Proctor and the browser of its first administrator, who came by the one-time link."""

    url: str
    data: Path
    """Its data folder."""
    context: BrowserContext


def evaluate(page: Page, policy: str, *, tasks: int, rollouts: int = 1) -> None:
    """Start it from the page; ends on the run's page."""
    page.goto("/evaluations/new")
    page.get_by_label("Policy").select_option(policy)
    choose_tictactoe(page)
    page.get_by_label("Tasks", exact=True).fill(str(tasks))
    page.get_by_label("Rollouts per task").fill(str(rollouts))
    page.get_by_role("button", name="Start evaluation").click()
    expect(page.locator("#run-head h1")).to_contain_text(policy)


def choose_tictactoe(page: Page) -> None:
    version = (
        page.get_by_label("Environment version").locator("option").filter(has_text=re.compile(r"^\s*tictactoe v")).first
    )
    page.get_by_label("Environment version").select_option(value=version.get_attribute("value"))


def say_why(page: Page, why: str) -> None:
    """Give a reason for training without a certificate. The field is absent if another test has had the version
    checked.
    """
    reason = page.get_by_label("Reason to train without a certificate")
    if reason.is_visible():
        reason.fill(why)


def expect_completed(page: Page) -> None:
    """The run whose page this is ends well."""
    expect(page.locator("#run-head .badge").first).to_have_text("completed", timeout=WORK_MS)
