"""Which code carries out which job. A body is imported when its first job comes, so that a worker starts fast."""

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from sqlalchemy.orm import Session

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobContext:
    """What a job's body is given. The rest it reads by id."""

    job_id: uuid.UUID
    run_id: uuid.UUID | None
    arguments: dict[str, Any]
    attempt: int
    """1 for the first time. A body goes on where the rows stand."""

    def need_run(self) -> uuid.UUID:
        if self.run_id is None:
            raise ValueError("this job needs a run")
        return self.run_id


Body = Callable[[JobContext], None]
Afterword = Callable[[Session, JobContext, str], None]


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a job's body lies."""

    path: str
    """`module:function`"""
    owns_run: bool = True
    """Does the run end as failed when the job is given up?"""
    give_up: str = "give_up"
    """Name of the function in the same module that records that the job will not be tried again, if there is one."""


BODIES = {
    "environments.check": Entry("workers.tasks.environment_checks:run"),
    "environments.import": Entry("workers.tasks.environment_imports:run", owns_run=False),
    "environments.play": Entry("workers.tasks.hand_play:run"),
    "environments.try": Entry("workers.tasks.draft_trials:run", owns_run=False),
    "evaluations.run": Entry("workers.tasks.evaluations:run"),
    "policies.test": Entry("workers.tasks.policies:look", owns_run=False),
    "rescoring.draft": Entry("workers.tasks.draft_scores:run", owns_run=False),
    "rescoring.history": Entry("workers.tasks.regrading:regrade_published", owns_run=False),
    "rescoring.run": Entry("workers.tasks.regrading:run"),
    "exchange.import": Entry("workers.tasks.rollout_imports:run"),
    "training.run": Entry("workers.tasks.training:run"),
    "training.preflight": Entry("workers.tasks.training:run_preflight", owns_run=False, give_up="give_up_preflight"),
    "exports.run": Entry("workers.tasks.exports:run", owns_run=False),
    "exports.upload": Entry("workers.tasks.exports:upload", owns_run=False, give_up="give_up_upload"),
    "judging.detect": Entry("workers.tasks.detectors:run", owns_run=False),
    "judging.follow": Entry("workers.tasks.review:run", owns_run=False),
    "graders.run": Entry("workers.tasks.graders:run", owns_run=False),
    "graders.try": Entry("workers.tasks.graders:try_out", owns_run=False),
    "judging.onset": Entry("workers.tasks.onset:run", owns_run=False),
    "judging.effort": Entry("workers.tasks.effort:run", owns_run=False),
    "notices.send": Entry("workers.tasks.notifications:run", owns_run=False),
}


class UnknownJob(LookupError):
    """No worker of this version knows the job."""


def entry_of(name: str) -> Entry:
    if name not in BODIES:
        raise UnknownJob(f"no job is called {name!r}")
    return BODIES[name]


def find_body(name: str) -> Body:
    module, _, function = entry_of(name).path.partition(":")
    body: Body = getattr(import_module(module), function)
    return body


def find_afterword(name: str) -> Afterword | None:
    """The function that records that a job will not be tried again, if the job has one."""
    if name not in BODIES:
        return None
    entry = BODIES[name]
    try:
        module = import_module(entry.path.partition(":")[0])
    except ImportError:
        logger.exception("the body of %s cannot be imported", name)
        return None
    afterword: Afterword | None = getattr(module, entry.give_up, None)
    return afterword
