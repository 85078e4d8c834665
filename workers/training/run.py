"""One training run in a process of its own: `python -m workers.training.run <run id>`.

Started again for the same run, it goes on where its checkpoints and saved states stand. Of a run in several processes
it is each of them: the first leads, and is this one; the others follow.
"""

import gc
import logging
import shutil
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import structlog
import torch
from sqlalchemy.exc import DBAPIError
from transformers.utils.logging import disable_progress_bar

from backend.core.logs import configure_logging
from backend.domain.errors import SandboxError
from backend.domain.training.configuration import Stage
from backend.domain.vocabulary import RunStatus
from backend.settings import get_settings
from workers.rollouts.engine import TooManyFailures
from workers.storage.recorder import RunRecorder
from workers.training.assignment import Assignment, read_assignment
from workers.training.branching import take_over
from workers.training.checkpoints import CheckpointStore
from workers.training.context import Ended, Stopped, TrainingContext, UsedUp
from workers.training.ending import (
    Outcome,
    asked_to_stop,
    finish,
    is_out_of_memory,
    is_worth_another_attempt,
    out_of_memory,
)
from workers.training.env_pool import env_pool_of
from workers.training.followers import follow
from workers.training.gate import GateClosed, check_gate
from workers.training.hardware import take_device
from workers.training.imitation import run_sft
from workers.training.ranks.joining import is_follower, join, lead, tell_launcher
from workers.training.ranks.room import check_room
from workers.training.reinforcement import run_grpo
from workers.training.warm_up import begin

WORTH_ANOTHER_ATTEMPT = (DBAPIError, SandboxError, ConnectionError)
"""The infrastructure failed, not the run: the process ends badly and the job is tried again."""

logger = structlog.get_logger(__name__)


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
        told = f"{type(error).__name__}: {error}"
        if is_out_of_memory(error):
            outcome = out_of_memory(run_id, error)
        elif is_worth_another_attempt(run_id, assignment.folder, error):
            recorder.log(f"crashed, and goes on from its last saved state. {told}", "error")
            raise
        else:
            outcome = Outcome(RunStatus.FAILED, told)
    outcome = finish(run_id, outcome, summary)
    recorder.log(f"{outcome.status}. {outcome.reason or ''}".strip(), _level(outcome.status))
    if outcome.status is RunStatus.COMPLETED:
        shutil.rmtree(assignment.folder, ignore_errors=True)
    return outcome


def _conduct(assignment: Assignment, recorder: RunRecorder, summary: dict[str, Any]) -> Outcome:
    take_device(assignment.configuration.hardware)
    ranks = join()
    recorder.progress(phase="preparing the environment", done=0, total=1)
    if ranks.count > 1:
        needs = [env.manifest.proctor.resources for env in assignment.envs]
        check_room(needs * ranks.count, assignment.configuration.servers)
    store = CheckpointStore(assignment.run_id, assignment.policy_id, assignment.folder)
    try:
        with (
            env_pool_of(assignment) as env_pool,
            _paid(TrainingContext(assignment, env_pool, recorder, store, summary, ranks)) as bench,
        ):
            _stages(bench)
    except Stopped:
        return asked_to_stop(assignment.run_id)
    except Ended as ended:
        return Outcome.of(ended)
    except GateClosed as closed:
        return Outcome(RunStatus.PAUSED, str(closed))
    except TooManyFailures as error:
        return Outcome(RunStatus.PAUSED, f"Paused because too much failed. {error}")
    return Outcome(RunStatus.COMPLETED, _ended_early(summary))


@contextmanager
def _paid(bench: TrainingContext) -> Iterator[TrainingContext]:
    """However the attempt ends, its time is counted."""
    try:
        yield bench
    finally:
        bench.budget_tracker.save()


def _ended_early(summary: Mapping[str, Any]) -> str | None:
    """Why a run that did what it should ended before its last step."""
    if used_up := summary.get("budget", {}).get("used_up"):
        return f"{used_up} The last examination is of the policy at that point."
    return None


def _stages(bench: TrainingContext) -> None:
    if point := bench.assignment.branch:
        every = bench.configuration.checkpoints.every
        if taken := take_over(point, bench.folder_of(Stage.GRPO), bench.configuration.grpo, save_every=every):
            bench.recorder.log(f"goes on from step {point.step} of the run it branches off, with {taken}")
        run_grpo(bench, point.start())
    else:
        with suppress(UsedUp):
            _all_stages(bench)
    if best := bench.store.best():
        bench.summary["best"] = {
            "checkpoint_id": str(best.id),
            "stage": best.stage,
            "step": best.step,
            "heldout_reward": best.heldout_reward,
        }


def _all_stages(bench: TrainingContext) -> None:
    recipe = bench.configuration.recipe
    start = begin(bench)
    if recipe.has_sft:
        start = run_sft(bench, start)
    if recipe.has_sft and recipe.has_grpo:
        check_gate(bench, start)
    if recipe.has_grpo:
        run_grpo(bench, start)


def _level(status: RunStatus) -> str:
    return "error" if status is RunStatus.FAILED else "info"


def main() -> int:
    run_id = uuid.UUID(sys.argv[1])
    gc.freeze()  # modules are no garbage: Trainer collects it time and again, and would walk through all of them
    configure_logging("training")
    logging.getLogger("accelerate").setLevel(logging.WARNING)
    disable_progress_bar()
    structlog.contextvars.bind_contextvars(run_id=str(run_id))
    tell_launcher(lambda: follow(run_id) if is_follower() else _lead(run_id))
    return 0


def _lead(run_id: uuid.UUID) -> None:
    with lead(get_settings().data / "training" / str(run_id)):
        outcome = train(run_id)
    logger.info("training ended", status=outcome.status, reason=outcome.reason)


if __name__ == "__main__":
    sys.exit(main())
