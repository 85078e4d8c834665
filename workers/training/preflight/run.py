"""One pre-flight in a process of its own: `python -m workers.training.preflight.run <pre-flight id>`."""

import logging
import shutil
import sys
import uuid

import structlog
import torch
from sqlalchemy.exc import DBAPIError
from transformers.utils.logging import disable_progress_bar

from backend.core.logs import configure_logging
from backend.core.session import transaction
from backend.domain.errors import SandboxError
from backend.domain.training.configuration import TrainingConfiguration
from backend.domain.vocabulary import PreflightStatus
from backend.settings import get_settings
from backend.training.tables import Preflight
from workers.training.assignment import Assignment, training_envs_of
from workers.training.checkpoints import CheckpointStore
from workers.training.context import TrainingContext
from workers.training.env_pool import env_pool_of
from workers.training.hardware import take_device
from workers.training.preflight.inspection import look
from workers.training.preflight.notebook import Notebook

WORTH_ANOTHER_ATTEMPT = (DBAPIError, SandboxError, ConnectionError)

logger = structlog.get_logger(__name__)


def examine(preflight_id: uuid.UUID) -> PreflightStatus:
    """Look, and record how it ended."""
    assignment = _assignment(preflight_id)
    notebook = Notebook(preflight_id)
    torch.set_num_threads(assignment.configuration.threads)
    try:
        _look(assignment, notebook)
    except WORTH_ANOTHER_ATTEMPT:
        raise
    except Exception as error:
        logger.exception("the pre-flight failed")
        notebook.end(PreflightStatus.FAILED, f"{type(error).__name__}: {error}")
        return PreflightStatus.FAILED
    finally:
        shutil.rmtree(assignment.folder, ignore_errors=True)
    notebook.end(PreflightStatus.COMPLETED)
    return PreflightStatus.COMPLETED


def _look(assignment: Assignment, notebook: Notebook) -> None:
    notebook.progress(phase="preparing the environment", done=0, total=1)
    take_device(assignment.configuration.hardware)
    store = CheckpointStore(assignment.run_id, assignment.policy_id, assignment.folder)
    with env_pool_of(assignment) as env_pool:
        look(TrainingContext(assignment, env_pool, notebook, store), notebook)


def _assignment(preflight_id: uuid.UUID) -> Assignment:
    """As if it were a run; neither run nor policy is there, and none is written to."""
    with transaction() as session:
        row = session.get_one(Preflight, preflight_id)
        configuration = TrainingConfiguration.of_run(row.configuration)
        return Assignment(
            run_id=preflight_id,
            policy_id=preflight_id,
            configuration=configuration,
            envs=training_envs_of(session, row.version_id, configuration.mix),
            folder=get_settings().data / "training" / str(preflight_id),
            was_gate_closed=False,
        )


def main() -> int:
    preflight_id = uuid.UUID(sys.argv[1])
    configure_logging("preflight")
    logging.getLogger("accelerate").setLevel(logging.WARNING)
    disable_progress_bar()
    structlog.contextvars.bind_contextvars(preflight_id=str(preflight_id))
    status = examine(preflight_id)
    logger.info("pre-flight ended", status=status)
    return 0


if __name__ == "__main__":
    sys.exit(main())
