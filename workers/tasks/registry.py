"""Which code runs which job. A body is imported when its first job comes, so that a worker starts fast."""

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
    """The argument of a job's body. The body reads everything else by id."""

    job_id: uuid.UUID
    run_id: uuid.UUID | None
    arguments: dict[str, Any]
    attempt: int
    """1 for the first one. Later attempts continue from the stored rows."""

    def need_run(self) -> uuid.UUID:
        if self.run_id is None:
            raise ValueError("this job needs a run")
        return self.run_id


Body = Callable[[JobContext], None]
GiveUp = Callable[[Session, JobContext, str], None]


@dataclass(frozen=True, slots=True)
class JobBody:
    path: str
    """`module:function`"""
    owns_run: bool = True
    """Whether the run fails if the job is given up."""
    give_up: str = "give_up"
    """Name of the function in the same module that records that the job will not be tried again, if there is one."""


BODIES = {
    "deletions.purge": JobBody("workers.tasks.deletions:run", owns_run=False),
    "environments.check": JobBody("workers.tasks.environment_checks:run"),
    "environments.attack": JobBody("workers.tasks.red_team:run", owns_run=False),
    "environments.train_attacker": JobBody("workers.tasks.red_team:train", owns_run=False),
    "environments.verify_repair": JobBody("workers.tasks.red_team:verify", owns_run=False),
    "environments.import": JobBody("workers.tasks.environment_imports:run", owns_run=False),
    "environments.play": JobBody("workers.tasks.hand_play:run"),
    "environments.try": JobBody("workers.tasks.drafts:try_draft", owns_run=False, give_up="give_up_trial"),
    "evaluations.run": JobBody("workers.tasks.evaluations:run"),
    "policies.test": JobBody("workers.tasks.policies:run", owns_run=False),
    "rescoring.draft": JobBody("workers.tasks.drafts:score", owns_run=False, give_up="give_up_scores"),
    "rescoring.history": JobBody("workers.tasks.regrading:regrade_published", owns_run=False),
    "rescoring.run": JobBody("workers.tasks.regrading:run"),
    "exchange.import": JobBody("workers.tasks.rollout_imports:run"),
    "training.run": JobBody("workers.tasks.training:run"),
    "training.preflight": JobBody("workers.tasks.training:run_preflight", owns_run=False, give_up="give_up_preflight"),
    "exports.run": JobBody("workers.tasks.exports:run", owns_run=False),
    "exports.transfer": JobBody("workers.tasks.transfers:run", owns_run=False),
    "exports.upload": JobBody("workers.tasks.exports:upload", owns_run=False, give_up="give_up_upload"),
    "judging.detect": JobBody("workers.tasks.detectors:run", owns_run=False),
    "judging.follow": JobBody("workers.tasks.detectors:follow", owns_run=False),
    "detectors.train": JobBody("workers.tasks.detectors:train", owns_run=False),
    "graders.run": JobBody("workers.tasks.graders:run", owns_run=False),
    "graders.try": JobBody("workers.tasks.graders:try_out", owns_run=False),
    "studies.run": JobBody("workers.tasks.studies:run", owns_run=False),
    "sweeps.run": JobBody("workers.tasks.sweeps:run", owns_run=False),
    "notices.send": JobBody("workers.tasks.notifications:run", owns_run=False),
}


class UnknownJob(LookupError):
    """No worker of this version knows the job."""


def find_body(name: str) -> Body:
    if name not in BODIES:
        raise UnknownJob(f"there is no job named {name!r}")
    module, _, function = BODIES[name].path.partition(":")
    body: Body = getattr(import_module(module), function)
    return body


def find_give_up(name: str) -> GiveUp | None:
    """The function that records that a job will not be tried again, if the job has one."""
    if name not in BODIES:
        return None
    entry = BODIES[name]
    try:
        module = import_module(entry.path.partition(":")[0])
    except ImportError:
        logger.exception("the body of %s cannot be imported", name)
        return None
    callback: GiveUp | None = getattr(module, entry.give_up, None)
    return callback
