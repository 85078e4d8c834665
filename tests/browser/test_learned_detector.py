"""The learned detector in a real browser: it is trained with a button, and its page shows the result."""

import uuid
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import delete

from backend.core.session import transaction
from backend.core.tables import Job
from backend.detectors.tables import LearnedDetector
from backend.environments.tables import Environment
from backend.review.tables import VerdictRecord
from tests.detectors.test_train_learned import reviewed_run
from tests.factories import make_environment, make_environment_version
from workers.tasks.detectors import train
from workers.tasks.registry import JobContext

pytestmark = pytest.mark.browser


@pytest.fixture
def reviewed(address: str) -> Iterator[Environment]:
    """An environment with enough verdicts."""
    with transaction() as session:
        environment = make_environment(session, f"reviewed_{uuid.uuid4().hex[:8]}")
        reviewed_run(session, make_environment_version(session, environment), 160, 20)
    yield environment
    with transaction() as session:
        for table in (LearnedDetector, VerdictRecord, Job):
            session.execute(delete(table))


def test_it_is_trained_with_a_button(page: Page, reviewed: Environment) -> None:
    page.goto("/detectors/learned")
    row = page.locator("#models tbody tr").filter(has_text=reviewed.name)
    expect(row).to_contain_text("never")
    row.get_by_role("button", name="Train").click()
    expect(row.locator(".badge")).to_have_text("training")
    arguments = {"environment": str(reviewed.id), "person": None}
    train(JobContext(uuid.uuid4(), None, arguments, 1))  # the part of the worker
    with transaction() as session:
        session.execute(delete(Job))
    page.reload()
    expect(row).to_contain_text("on 20 hacks, 160 honest")
    expect(row.get_by_role("button", name="Retrain")).to_be_visible()
