"""Run one preflight in a separate process: `python -m workers.training.preflight.run <preflight id>`."""

import logging
import shutil
import sys
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime

import structlog
import torch
from sqlalchemy.exc import DBAPIError
from transformers.utils.logging import disable_progress_bar

from backend.core.events import announce, preflight_topic
from backend.core.logs import configure_logging
from backend.core.session import transaction
from backend.domain.errors import SandboxError
from backend.domain.text import plain_text
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.training.preflight.findings import PreflightFinding
from backend.domain.vocabulary import PreflightStatus
from backend.settings import get_settings
from backend.training.tables import Preflight
from workers.storage.recorder import PROGRESS_SECONDS, RunRecorder
from workers.training.assignment import Assignment, training_envs_of
from workers.training.checkpoints import CheckpointStore
from workers.training.context import TrainingContext
from workers.training.env_pool import env_pool_of
from workers.training.hardware import take_device
from workers.training.preflight.inspection import inspect_training

RETRIED = (DBAPIError, SandboxError, ConnectionError)
"""Failures of the infrastructure: the job is tried again."""

logger = structlog.get_logger(__name__)


class PreflightRecorder(RunRecorder):
    """Records the progress and findings of a preflight. Rollouts and metrics are not stored."""

    def __init__(self, preflight_id: uuid.UUID) -> None:
        self.preflight_id = preflight_id
        self._progress_at = 0.0

    def progress(
        self,
        *,
        phase: str,
        done: int,
        total: int,
        message: str = "",
        concurrency: int = 0,
        more: Mapping[str, object] | None = None,
    ) -> None:
        now = time.monotonic()
        if now - self._progress_at >= PROGRESS_SECONDS or done >= total:
            self._progress_at = now
            message = plain_text(message)[:500]
            self.update(progress={"phase": phase, "done": done, "total": total, "message": message})

    def add(self, finding: PreflightFinding) -> None:
        """Add a finding, or replace the one of the same name."""
        with transaction() as session:
            row = session.get_one(Preflight, self.preflight_id, with_for_update=True)
            known = {each["name"]: each for each in row.findings}
            known[finding.name] = finding.model_dump(mode="json")
            row.findings = list(known.values())
            announce(session, preflight_topic(self.preflight_id))

    def update(self, **fields: object) -> None:
        with transaction() as session:
            row = session.get_one(Preflight, self.preflight_id)
            for name, value in fields.items():
                setattr(row, name, value)
            announce(session, preflight_topic(self.preflight_id))

    def log(self, message: str, level: str = "info") -> None:
        """The findings contain everything that a run would log."""

    def should_stop(self) -> bool:
        return False


def run_preflight(preflight_id: uuid.UUID) -> PreflightStatus:
    """Inspect the run, and record how the preflight ended."""
    with transaction() as session:
        row = session.get_one(Preflight, preflight_id)
        configuration = TrainingConfiguration.of_run(row.configuration)
        assignment = Assignment(  # neither the run nor the policy exists, and nothing is written to them
            run_id=preflight_id,
            policy_id=preflight_id,
            configuration=configuration,
            envs=training_envs_of(session, row.version_id, configuration.mix),
            folder=get_settings().data / "training" / str(preflight_id),
            was_gate_closed=False,
        )
    recorder = PreflightRecorder(preflight_id)
    torch.set_num_threads(configuration.threads)
    status = PreflightStatus.COMPLETED
    reason: str | None = None
    try:
        recorder.progress(phase="preparing the environment", done=0, total=1)
        take_device(configuration.hardware)
        store = CheckpointStore(assignment.run_id, assignment.policy_id, assignment.folder)
        with env_pool_of(assignment) as env_pool:
            inspect_training(TrainingContext(assignment, env_pool, recorder, store), recorder.add)
    except RETRIED:
        raise
    except Exception as error:
        logger.exception("the preflight failed")
        status, reason = PreflightStatus.FAILED, plain_text(f"{type(error).__name__}: {error}")[:2000]
    finally:
        shutil.rmtree(assignment.folder, ignore_errors=True)
    recorder.update(status=status, reason=reason, ended_at=datetime.now(UTC))
    return status


def main() -> int:
    preflight_id = uuid.UUID(sys.argv[1])
    configure_logging("preflight")
    logging.getLogger("accelerate").setLevel(logging.WARNING)
    disable_progress_bar()
    structlog.contextvars.bind_contextvars(preflight_id=str(preflight_id))
    logger.info("preflight ended", status=run_preflight(preflight_id))
    return 0


if __name__ == "__main__":
    sys.exit(main())
