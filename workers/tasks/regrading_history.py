"""The job `rescoring.history`: a version was published, and its publisher wants all that was played by its rewards."""

import uuid

from backend.core.session import transaction
from backend.environments.tables import EnvironmentVersion
from backend.rollouts.regrading.history import NothingToGrade, grade_again
from workers.storage.runs import JobRequester
from workers.tasks.registry import JobContext


def run(context: JobContext) -> None:
    """Queues a re-score of each part that has none: done again, it finds nothing missing."""
    with transaction() as session:
        version = session.get_one(EnvironmentVersion, uuid.UUID(context.arguments["version_id"]))
        try:
            grade_again(session, JobRequester(uuid.UUID(context.arguments["person_id"])), version)
        except NothingToGrade:
            return
