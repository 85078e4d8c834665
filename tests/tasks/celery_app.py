"""The product's worker, which also knows the tests' jobs."""

from tests.tasks.conftest import TEST_BODIES
from workers.tasks.celery_app import app
from workers.tasks.registry import BODIES

BODIES.update(TEST_BODIES)

__all__ = ["app"]
