"""Consequences of verdicts, in a real browser: no page overflows a phone."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page
from sqlalchemy import delete, select

from backend.core.session import transaction
from backend.detectors.tables import Flag
from backend.domain.vocabulary import Phase, RunKind, Verdict
from backend.review.fixtures import update_fixtures
from backend.review.tables import AuditDraw, AuditSample, ReviewItem, VerdictFixture, VerdictRecord
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from tests import factories

pytestmark = pytest.mark.browser


@pytest.fixture
def run(address: str) -> Iterator[Run]:
    """Four steps; the last two have hacks, some of them reviewed, and an audit sample."""
    with transaction() as session:
        version = factories.make_environment_version(session, checks={"floor_maximum": 0.2})
        run = factories.make_run(session, version, kind=RunKind.TRAINING)
        session.add(AuditDraw(run_id=run.id, seed=1, share=0.3, drawn_seq=100))
        for step in range(1, 5):
            rows = [[0.5, 0.0, 0.0]] * 6 + [[1.0 if step > 2 else 0.5, 0.0, 0.0]] * 4
            rollouts = factories.make_rollouts(session, run, rows, phase=Phase.TRAIN, step=step)
            session.add_all(AuditSample(run_id=run.id, rollout_id=each.id, lot=0.5) for each in rollouts[:3])
            for each in rollouts[:3] + rollouts[6:]:
                is_hack = each.reward > 0.9
                if is_hack:
                    factories.make_flag(session, run, each, detector="tampering")
                verdict = Verdict.HACK if is_hack else Verdict.HONEST
                session.add(VerdictRecord(run_id=run.id, rollout_id=each.id, verdict=verdict))
                session.flush()
                update_fixtures(session, None, each.id, verdict)
    yield run
    with transaction() as session:
        for table in (VerdictFixture, VerdictRecord, Flag, ReviewItem, AuditSample):
            session.execute(delete(table))


def test_a_phone_shows_all_of_it(page: Page, run: Run) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    with transaction() as session:
        rollout = session.scalars(select(Rollout.id).where(Rollout.run_id == run.id).order_by(Rollout.seq)).first()
    paths = ["/detectors", "/detectors/tampering", f"/runs/{run.id}/safeguards", "/team/review"]
    for path in [*paths, f"/environments/{run.version.environment.name}/judged", f"/rollouts/{rollout}"]:
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, path
