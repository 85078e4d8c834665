"""The local model that a row asks for beside a person or in a check, loaded as a policy."""

import sys
import tempfile
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog
import torch
from sqlalchemy.orm import Session
from transformers.utils.logging import disable_progress_bar

from backend.checkpoints.tables import Checkpoint
from backend.core.artifacts import get_folder
from backend.core.logs import configure_logging
from backend.core.session import transaction
from backend.domain.runs.plans import Sampling
from backend.policies.tables import Policy
from workers.models.load import ModelUnusable, load_base, load_folder
from workers.models.policy import LocalPolicy


def act(name: str, asked_of: Callable[[Session, uuid.UUID], Mapping[str, Any]], play: Callable[..., object]) -> int:
    """The process: load what the run in the first argument asks for, and `play(run_id, policy)` with it."""
    run_id = uuid.UUID(sys.argv[1])
    configure_logging(name)
    disable_progress_bar()
    structlog.contextvars.bind_contextvars(run_id=str(run_id))
    torch.set_num_threads(1)
    with transaction() as session:
        asked = asked_of(session, run_id)
    with tempfile.TemporaryDirectory(prefix="proctor-model-") as folder:
        model, tokenizer = _load(asked, Path(folder))
        sampling = Sampling()
        play(run_id, LocalPolicy(model, tokenizer, temperature=sampling.temperature, top_p=sampling.top_p))
    return 0


def _load(asked: Mapping[str, Any], folder: Path) -> tuple[Any, Any]:
    """The checkpoint that was chosen, or the base model that the policy names."""
    with transaction() as session:
        policy = session.get_one(Policy, uuid.UUID(asked["policy_id"]))
        chosen = asked.get("checkpoint_id")
        artifact = session.get_one(Checkpoint, uuid.UUID(chosen)).artifact if chosen else None
        base = policy.configuration.get("base")
    if artifact is not None:
        return load_folder(get_folder(artifact, folder / "weights"))
    if base:
        return load_base(base)
    raise ModelUnusable("the policy has no checkpoint yet: train it first")
