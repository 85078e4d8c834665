"""Further curves ask for their points when they are opened, and are drawn then."""

import re

import pytest
from playwright.sync_api import Page, expect

from backend.core.session import transaction
from backend.domain.vocabulary import RunKind
from tests import factories

pytestmark = pytest.mark.browser


def test_curves_that_are_folded_away_are_read_when_they_are_opened(page: Page) -> None:
    with transaction() as session:
        run = factories.make_run(session, kind=RunKind.TRAINING)
        for name, value in (("reward", 0.5), ("seconds/rollouts", 2.0), ("seconds/idle", 0.1)):
            factories.make_points(session, run, name, {step: value * step for step in range(1, 20)})
        for label, value in (("", 0.5), ("_p10", 0.1), ("_p50", 0.6), ("_p90", 0.9), ("_std", 0.2)):
            factories.make_points(session, run, f"columns_level{label}/2/win", dict.fromkeys(range(1, 20), value))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "points.json" in request.url else None)
    page.goto(f"/runs/{run.id}")
    expect(page.locator("figure[data-chart$='chart=reward'] canvas")).to_be_visible()
    assert not any("chart=seconds" in url or "chart=spread" in url for url in asked)
    numbers = page.locator("figure[data-chart$='chart=reward'] .numbers")
    numbers.locator("summary").click()
    expect(numbers.get_by_role("row").nth(1)).to_have_text(re.compile("19.*9.500"))
    page.locator(".more-charts > summary").click()
    expect(page.locator("figure[data-chart$='chart=seconds/rollouts'] canvas")).to_be_visible()
    expect(page.locator("figure[data-chart$='chart=spread/level/2/win'] canvas")).to_be_visible()
    assert sum("chart=seconds/rollouts" in url for url in asked) == 1
