"""When a hack began, and a history by another version, in a real browser: a marked curve, and what a phone shows."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import delete

from backend.core.session import transaction
from backend.detectors.tables import Flag
from backend.domain.vocabulary import RunKind
from backend.review.tables import ReviewItem, VerdictRecord
from backend.runs.tables import Run
from backend.studies.tables import Study, StudyCheckpoint
from tests import factories
from tests.studies.worlds import judged, make_sampled_onset_study, make_training

pytestmark = pytest.mark.browser


@pytest.fixture
def run(address: str) -> Iterator[Run]:
    """An onset between steps 40 and 50, a curve, and a second version by which two evaluations change places."""
    with transaction() as session:
        run = make_training(session)
        judged(session, run, (55, 70))
        factories.make_points(session, run, "reward", {step: step / 100 for step in range(1, 81)})
        make_sampled_onset_study(session, run)
        repaired = factories.make_environment_version(session, run.version.environment, number=2)
        for before, after in ((1.0, 0.0), (0.5, 0.5)):
            source = factories.make_run(session, run.version)
            played = factories.make_rollouts(session, source, [[before, 1.0, 0.0]] * 4)
            values = {"kind": RunKind.RESCORE, "source_run_id": source.id, "configuration": {}}
            copy = factories.make_run(session, repaired, source.policy, **values)
            again = factories.make_rollouts(session, copy, [[after, 1.0, 0.0]] * 4)
            for one, other in zip(again, played, strict=True):
                one.source_id = other.id
    yield run
    with transaction() as session:
        for table in (StudyCheckpoint, Study, VerdictRecord, Flag, ReviewItem):
            session.execute(delete(table))


def test_a_phone_shows_all_of_it(page: Page, run: Run) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    environment = run.version.environment.name
    for path in (f"/runs/{run.id}/studies", f"/environments/{environment}/versions/2/history", f"/runs/{run.id}"):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
    page.goto(f"/environments/{environment}/versions/2/history")
    expect(page.get_by_text("yes: both intervals exclude 0")).to_be_visible()


def test_the_interval_is_drawn_on_the_curve(page: Page, run: Run) -> None:
    page.goto(f"/runs/{run.id}/studies")
    figure = page.locator("figure[data-marks]").first
    expect(figure.locator("canvas")).to_be_visible()
    expect(figure.get_by_text("onset, between step 40 and 50")).to_be_visible()
    colours = """figure => {
      const canvas = figure.querySelector("canvas");
      const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      let red = 0;
      for (let at = 0; at < pixels.length; at += 4) if (pixels[at] > pixels[at + 2] + 60 && pixels[at + 3] > 200) red++;
      return red;
    }"""
    assert figure.evaluate(colours) > 50, "the line and its name"
