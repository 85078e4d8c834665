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


BODIES = {
    "environments.check": Entry("workers.jobs.checks:run"),
    "environments.import": Entry("workers.jobs.importing:run", owns_run=False),
    "environments.play": Entry("workers.jobs.play:run"),
    "environments.try": Entry("workers.jobs.trying:run", owns_run=False),
    "evaluations.run": Entry("workers.jobs.evaluation:run"),
    "policies.test": Entry("workers.jobs.policies:look", owns_run=False),
    "rescoring.draft": Entry("workers.jobs.draft_scores:run", owns_run=False),
    "rescoring.history": Entry("workers.jobs.regrading:run", owns_run=False),
    "rescoring.run": Entry("workers.jobs.rescoring:run"),
    "exchange.import": Entry("workers.jobs.exchange:run"),
    "training.run": Entry("workers.jobs.training:run"),
    "training.preflight": Entry("workers.jobs.preflight:run", owns_run=False),
    "exports.run": Entry("workers.jobs.exports:run", owns_run=False),
    "exports.upload": Entry("workers.jobs.hub:run", owns_run=False),
    "judging.detect": Entry("workers.jobs.judging:run", owns_run=False),
    "judging.follow": Entry("workers.jobs.following_verdicts:run", owns_run=False),
    "judging.judge": Entry("workers.jobs.judges:judge", owns_run=False),
    "judging.onset": Entry("workers.jobs.onset:run", owns_run=False),
    "judging.effort": Entry("workers.jobs.effort:run", owns_run=False),
    "judging.ask": Entry("workers.jobs.judges:ask", owns_run=False),
    "judging.question": Entry("workers.jobs.questions:answer", owns_run=False),
    "judging.try_question": Entry("workers.jobs.questions:try_out", owns_run=False),
    "notices.send": Entry("workers.jobs.notices:run", owns_run=False),
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
    """What to record once a job will not be tried again: `give_up` in the body's module, where there is one."""
    if name not in BODIES:
        return None
    try:
        module = import_module(BODIES[name].path.partition(":")[0])
    except ImportError:
        logger.exception("the body of %s cannot be imported", name)
        return None
    afterword: Afterword | None = getattr(module, "give_up", None)
    return afterword
