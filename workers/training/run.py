"""One training run in a process of its own: `python -m workers.training.run <run id>`.

Started again for the same run, it goes on where its checkpoints and saved states stand.
"""

import logging
import shutil
import sys
import uuid
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
import torch
from sqlalchemy.exc import DBAPIError
from transformers.utils.logging import disable_progress_bar

from backend.db.models import Run
from backend.db.session import transaction
from backend.domain.errors import SandboxError
from backend.domain.vocabulary import RunStatus
from backend.evaluations.service import finish_run
from backend.logs import configure_logging
from workers.jobs.recording import RunRecorder
from workers.rollouts.engine import TooManyFailures
from workers.training.arena import Arena, leased_server
from workers.training.assignment import Assignment, read_assignment
from workers.training.checkpoints import CheckpointStore
from workers.training.reinforcement import reinforce
from workers.training.warm_up import GateClosed, begin, check_gate, imitate
from workers.training.workbench import Stopped, Workbench

WORTH_ANOTHER_ATTEMPT = (DBAPIError, SandboxError, ConnectionError)
"""The infrastructure failed, not the run: the process ends badly and the job is tried again."""

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended."""

    status: RunStatus
    reason: str | None = None


def train(run_id: uuid.UUID) -> Outcome:
    """Conduct the run and record how it ended."""
    assignment = read_assignment(run_id)
    recorder = RunRecorder(run_id)
    torch.set_num_threads(assignment.configuration.threads)
    summary: dict[str, Any] = {}
    try:
        outcome = _conduct(assignment, recorder, summary)
    except WORTH_ANOTHER_ATTEMPT:
        raise
    except Exception as error:
        logger.exception("training failed")
        outcome = Outcome(RunStatus.FAILED, f"{type(error).__name__}: {error}")
    recorder.log(f"{outcome.status}. {outcome.reason or ''}".strip(), _level(outcome.status))
    with transaction() as session:
        finish_run(session, session.get_one(Run, run_id), outcome.status, summary, outcome.reason)
    if outcome.status is RunStatus.COMPLETED:
        shutil.rmtree(assignment.folder, ignore_errors=True)
    return outcome


def _conduct(assignment: Assignment, recorder: RunRecorder, summary: dict[str, Any]) -> Outcome:
    configuration = assignment.configuration
    recorder.progress(phase="preparing the environment", done=0, total=1)
    open_server = partial(
        leased_server, assignment.content_hash, assignment.files, assignment.manifest, configuration.servers
    )
    store = CheckpointStore(assignment.run_id, assignment.policy_id, assignment.folder)
    try:
        with Arena(open_server, assignment.manifest, concurrency=configuration.concurrency) as arena:
            _stages(Workbench(assignment, arena, recorder, store, summary))
    except Stopped:
        return Outcome(RunStatus.STOPPED, "Stopped on request; resume it to go on from its last saved state.")
    except GateClosed as closed:
        return Outcome(RunStatus.PAUSED, str(closed))
    except TooManyFailures as error:
        return Outcome(RunStatus.PAUSED, f"Paused because too much failed. {error}")
    return Outcome(RunStatus.COMPLETED)


def _stages(bench: Workbench) -> None:
    recipe = bench.configuration.recipe
    start = begin(bench)
    if recipe.has_sft:
        start = imitate(bench, start)
    if recipe.has_sft and recipe.has_grpo:
        check_gate(bench, start)
    if recipe.has_grpo:
        reinforce(bench, start)
    if best := bench.store.best():
        bench.summary["best"] = {
            "checkpoint_id": str(best.id),
            "stage": best.stage,
            "step": best.step,
            "heldout_reward": best.heldout_reward,
        }


def _level(status: RunStatus) -> str:
    return "error" if status is RunStatus.FAILED else "info"


def main() -> int:
    run_id = uuid.UUID(sys.argv[1])
    configure_logging("training")
    logging.getLogger("accelerate").setLevel(logging.WARNING)
    disable_progress_bar()
    structlog.contextvars.bind_contextvars(run_id=str(run_id))
    outcome = train(run_id)
    logger.info("training ended", status=outcome.status, reason=outcome.reason)
    return 0


if __name__ == "__main__":
    sys.exit(main())
