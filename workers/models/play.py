"""Play a run with a local model: `python -m workers.models.play <run id> [job id]`.

The run is an evaluation, the checks of an environment version, or a hand-played episode that a model continues.
"""

import os
import sys
import tempfile
import uuid
from pathlib import Path

import structlog
import torch
from sqlalchemy import select
from transformers.utils.logging import disable_progress_bar

from backend.checkpoints.tables import Checkpoint
from backend.core.artifacts import get_folder
from backend.core.logs import configure_logging
from backend.core.session import transaction
from backend.domain.environments.play import PlayState
from backend.domain.runs.plans import EvaluationPlan, Opponent, Sampling
from backend.domain.vocabulary import RunKind
from backend.policies.tables import Policy as PolicyRow
from backend.runs.tables import Run
from workers.models import vllm
from workers.models.load import ModelUnusable, check_weight_files, is_adapter, load_base, load_folder
from workers.models.policy import LocalPolicy
from workers.policies.base import Policy
from workers.policies.openai_api import OpenAiPolicy
from workers.storage.policies import load_policy
from workers.tasks.environment_checks import check
from workers.tasks.evaluations import evaluate
from workers.tasks.hand_play import play_on

LARGE = 20_000_000  # parameters from which several threads are faster than one


def main() -> int:
    run_id = uuid.UUID(sys.argv[1])
    job_id = uuid.UUID(sys.argv[2]) if len(sys.argv) > 2 else None
    configure_logging("play")
    disable_progress_bar()
    structlog.contextvars.bind_contextvars(run_id=str(run_id))
    torch.set_num_threads(1)
    policy_id: uuid.UUID | None = None  # none: only the opponent is a policy
    checkpoint_id: uuid.UUID | None = None
    rival: Opponent | None = None
    ready: Policy | None = None  # the run's policy, if only its opponent is local
    ready_rival: Policy | None = None
    sampling, workers = Sampling(), 1
    with transaction() as session:
        run = session.get_one(Run, run_id)
        if run.kind is RunKind.EVALUATION:
            policy_id, checkpoint_id = run.policy_id, run.checkpoint_id
            plan = EvaluationPlan.model_validate(run.configuration)
            sampling, rival, workers = plan.sampling, plan.opponent, plan.workers
        else:
            state = PlayState.from_json(run.progress)
            request = run.configuration["reference"] if run.kind is RunKind.CHECK else state.mover
            policy_id = uuid.UUID(request["policy_id"]) if request else None
            checkpoint_id = uuid.UUID(request["checkpoint_id"]) if request.get("checkpoint_id") else None
            if run.kind is RunKind.PLAY and state.opponent:
                rival = Opponent.model_validate(state.opponent)
        if policy_id is not None and run.kind is not RunKind.CHECK:
            ready = load_policy(session, {"policy_id": policy_id}, sampling, workers)
        if rival is not None:
            ready_rival = load_policy(session, rival.model_dump(), sampling, workers)
    with tempfile.TemporaryDirectory(prefix="proctor-model-") as folder:
        source = None if ready or policy_id is None else _weights_of(policy_id, checkpoint_id, Path(folder) / "weights")
        # an adapter is always sampled in this process, on its base in the precision it was trained in
        is_whole = source is not None and not (isinstance(source, Path) and is_adapter(source))
        if run.kind is RunKind.EVALUATION and rival is None and vllm.is_offered() and is_whole:
            if isinstance(source, Path):
                check_weight_files(source)
            with vllm.serving(str(source)) as endpoint:
                evaluate(run_id, OpenAiPolicy(endpoint, sampling), job_id)
            return 0
        policy = ready or (_load(source, sampling) if policy_id is not None else None)
        if rival is not None and ready_rival is None:
            own = uuid.UUID(rival.checkpoint_id) if rival.checkpoint_id else None
            ready_rival = _load(_weights_of(uuid.UUID(rival.policy_id), own, Path(folder) / "opponent"), sampling)
        if run.kind is RunKind.PLAY:
            play_on(run_id, policy, ready_rival)
        elif policy is not None and run.kind is RunKind.CHECK:
            check(run_id, policy)
        elif policy is not None:
            evaluate(run_id, policy, job_id, ready_rival)
    return 0


def _weights_of(policy_id: uuid.UUID | None, checkpoint_id: uuid.UUID | None, folder: Path) -> Path | str | None:
    """Copy a checkpoint's weights into the folder, by default those of the policy's best one, or else its latest.

    Returns the folder, the name of the base model of a policy without checkpoints, or None.
    """
    with transaction() as session:
        if checkpoint_id is None:
            stored = select(Checkpoint.id).where(Checkpoint.policy_id == policy_id, Checkpoint.pruned_at.is_(None))
            newest_first = stored.order_by(Checkpoint.is_best.desc(), Checkpoint.id.desc())
            checkpoint_id = session.scalar(newest_first.limit(1))
        checkpoint = session.get(Checkpoint, checkpoint_id) if checkpoint_id else None
        row = session.get(PolicyRow, policy_id) if policy_id else None
    if checkpoint is not None:
        return get_folder(checkpoint.artifact, folder)
    return row.configuration.get("base") if row else None


def _load(source: Path | str | None, sampling: Sampling) -> LocalPolicy:
    if source is None:
        raise ModelUnusable("the policy has no checkpoint yet: train it first")
    model, tokenizer = load_folder(source) if isinstance(source, Path) else load_base(source)
    if model.num_parameters() >= LARGE:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    return LocalPolicy(model, tokenizer, temperature=sampling.temperature, top_p=sampling.top_p)


if __name__ == "__main__":
    sys.exit(main())
