"""Play a run with a local model: `python -m workers.models.play <run id> [job id]`.

The run is an evaluation, the checks of an environment version, or a hand-played episode that a model continues.
"""

import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
import torch
from sqlalchemy import select
from sqlalchemy.orm import Session
from transformers.utils.logging import disable_progress_bar

from backend.checkpoints.tables import Checkpoint
from backend.core.artifacts import get_folder
from backend.core.logs import configure_logging
from backend.core.session import transaction
from backend.domain.environments.play import PlayState
from backend.domain.runs.plans import EvaluationPlan, Sampling
from backend.domain.vocabulary import RunKind
from backend.policies.tables import Policy as PolicyRow
from backend.runs.tables import Run
from workers.models import vllm
from workers.models.load import ModelUnusable, check_weight_files, is_adapter, load_base, load_folder
from workers.models.policy import LocalPolicy
from workers.policies.base import Policy
from workers.policies.openai_api import OpenAiPolicy
from workers.tasks.environment_checks import check, reference_of
from workers.tasks.evaluations import evaluate
from workers.tasks.hand_play import play_on


def main() -> int:
    run_id = uuid.UUID(sys.argv[1])
    job_id = uuid.UUID(sys.argv[2]) if len(sys.argv) > 2 else None
    configure_logging("play")
    disable_progress_bar()
    structlog.contextvars.bind_contextvars(run_id=str(run_id))
    torch.set_num_threads(1)
    with transaction() as session:
        run = session.get_one(Run, run_id)
        artifact, base, sampling = _weights_of(session, run)
    with tempfile.TemporaryDirectory(prefix="proctor-model-") as folder:
        source = get_folder(artifact, Path(folder) / "weights") if artifact else base
        if source is None:
            raise ModelUnusable("the policy has no checkpoint yet: train it first")
        if run.kind is RunKind.EVALUATION:
            with _fastest_policy(source, sampling) as policy:
                evaluate(run_id, policy, job_id)
        else:
            play = check if run.kind is RunKind.CHECK else play_on
            play(run_id, _local_policy(source, sampling))
    return 0


def _weights_of(session: Session, run: Run) -> tuple[str | None, str | None, Sampling]:
    """The artifact of the run's checkpoint, the base model of its policy, and the sampling.

    Without a selected checkpoint, an evaluation uses the best checkpoint of its policy, or else the latest.
    """
    if run.kind is RunKind.EVALUATION:
        policy_id, checkpoint_id = run.policy_id, run.checkpoint_id
        sampling = EvaluationPlan.model_validate(run.configuration).sampling
        if checkpoint_id is None:
            stored = select(Checkpoint.id).where(Checkpoint.policy_id == policy_id, Checkpoint.pruned_at.is_(None))
            checkpoint_id = session.scalar(stored.order_by(Checkpoint.is_best.desc(), Checkpoint.id.desc()).limit(1))
    else:
        is_check = run.kind is RunKind.CHECK
        request = reference_of(session, run.id) if is_check else PlayState.from_json(run.progress).mover
        policy_id, sampling = uuid.UUID(request["policy_id"]), Sampling()
        checkpoint_id = uuid.UUID(request["checkpoint_id"]) if request.get("checkpoint_id") else None
    checkpoint = session.get(Checkpoint, checkpoint_id) if checkpoint_id else None
    policy = session.get(PolicyRow, policy_id) if policy_id else None
    return checkpoint.artifact if checkpoint else None, policy.configuration.get("base") if policy else None, sampling


@contextmanager
def _fastest_policy(source: Path | str, sampling: Sampling) -> Iterator[Policy]:
    """Sample with vLLM if this worker has it and a GPU, otherwise in this process. An adapter is always sampled in this
    process, on its base in the precision it was trained in."""
    if vllm.is_offered() and not (isinstance(source, Path) and is_adapter(source)):
        if isinstance(source, Path):
            check_weight_files(source)
        with vllm.serving(str(source)) as endpoint:
            yield OpenAiPolicy(endpoint, sampling)
    else:
        yield _local_policy(source, sampling)


def _local_policy(source: Path | str, sampling: Sampling) -> LocalPolicy:
    model, tokenizer = load_folder(source) if isinstance(source, Path) else load_base(source)
    return LocalPolicy(model, tokenizer, temperature=sampling.temperature, top_p=sampling.top_p)


if __name__ == "__main__":
    sys.exit(main())
