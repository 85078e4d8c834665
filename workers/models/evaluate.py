"""An evaluation of a local model in a process of its own: `python -m workers.models.evaluate <run id> [job id]`."""

import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
import torch
from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload
from transformers.utils.logging import disable_progress_bar

from backend.checkpoints.tables import Checkpoint
from backend.core.artifacts import get_folder
from backend.core.logs import configure_logging
from backend.core.session import transaction
from backend.domain.runs.plans import EvaluationPlan, Sampling
from backend.runs.tables import Run
from workers.models import vllm
from workers.models.adapter import is_adapter
from workers.models.load import ModelUnusable, check_weight_files, load_base, load_folder
from workers.models.policy import LocalPolicy
from workers.policies.base import Policy
from workers.policies.openai_api import OpenAiPolicy
from workers.tasks.evaluations import evaluate


def main() -> int:
    run_id = uuid.UUID(sys.argv[1])
    job_id = uuid.UUID(sys.argv[2]) if len(sys.argv) > 2 else None
    configure_logging("evaluation")
    disable_progress_bar()
    structlog.contextvars.bind_contextvars(run_id=str(run_id))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="proctor-model-") as folder:
        source, sampling = _source(run_id, Path(folder))
        with _policy(source, sampling) as policy:
            evaluate(run_id, policy, job_id)
    return 0


@contextmanager
def _policy(source: Path | str, sampling: Sampling) -> Iterator[Policy]:
    """vLLM plays where this worker has it and a GPU; elsewhere the model is sampled in this process. So is an adapter:
    it plays beside its base as it was trained."""
    if vllm.is_offered() and not (isinstance(source, Path) and is_adapter(source)):
        if isinstance(source, Path):
            check_weight_files(source)
        with vllm.serving(str(source)) as endpoint:
            yield OpenAiPolicy(endpoint, sampling)
    else:
        model, tokenizer = load_folder(source) if isinstance(source, Path) else load_base(source)
        yield LocalPolicy(model, tokenizer, temperature=sampling.temperature, top_p=sampling.top_p)


def _source(run_id: uuid.UUID, folder: Path) -> tuple[Path | str, Sampling]:
    """The folder of the run's checkpoint, or the base model that its policy names."""
    with transaction() as session:
        run = session.get_one(Run, run_id, options=[joinedload(Run.policy)])
        sampling = EvaluationPlan.model_validate(run.configuration).sampling
        checkpoint = _checkpoint(session, run)
        base = run.policy.configuration.get("base") if run.policy else None
    if checkpoint is not None:
        return get_folder(checkpoint.artifact, folder / "weights"), sampling
    if base:
        return str(base), sampling
    raise ModelUnusable("the policy has no checkpoint yet: train it first")


def _checkpoint(session: Session, run: Run) -> Checkpoint | None:
    """The chosen one; else the policy's best, else its newest."""
    if run.checkpoint_id is not None:
        return session.get(Checkpoint, run.checkpoint_id)
    statement = select(Checkpoint).where(Checkpoint.policy_id == run.policy_id, Checkpoint.pruned_at.is_(None))
    return session.scalars(statement.order_by(Checkpoint.is_best.desc(), Checkpoint.id.desc()).limit(1)).first()


if __name__ == "__main__":
    sys.exit(main())
