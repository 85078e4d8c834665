"""The product's worker, which also knows the tests' jobs."""

from tests.jobs.conftest import TEST_BODIES
from workers.jobs.celery_app import app
from workers.jobs.registry import BODIES

BODIES.update(TEST_BODIES)

__all__ = ["app"]
