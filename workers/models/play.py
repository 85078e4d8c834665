"""A local model plays on in a hand-played episode: `python -m workers.models.play <run id>`."""

import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

import structlog
import torch
from transformers.utils.logging import disable_progress_bar

from backend.artifacts import get_folder
from backend.db.models import Checkpoint, Policy, Run
from backend.db.session import transaction
from backend.domain.plans import Sampling
from backend.domain.play import PlayState
from backend.logs import configure_logging
from workers.jobs.play import play_on
from workers.models.load import ModelUnusable, load_base, load_folder
from workers.models.policy import LocalPolicy


def main() -> int:
    run_id = uuid.UUID(sys.argv[1])
    configure_logging("play")
    disable_progress_bar()
    structlog.contextvars.bind_contextvars(run_id=str(run_id))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="proctor-model-") as folder:
        model, tokenizer = _load(run_id, Path(folder))
        sampling = Sampling()
        play_on(run_id, LocalPolicy(model, tokenizer, temperature=sampling.temperature, top_p=sampling.top_p))
    return 0


def _load(run_id: uuid.UUID, folder: Path) -> tuple[Any, Any]:
    """The checkpoint that was chosen, or the base model that the policy names."""
    with transaction() as session:
        asked = PlayState.from_json(session.get_one(Run, run_id).progress).mover
        policy = session.get_one(Policy, uuid.UUID(asked["policy_id"]))
        chosen = asked.get("checkpoint_id")
        artifact = session.get_one(Checkpoint, uuid.UUID(chosen)).artifact if chosen else None
        base = policy.configuration.get("base")
    if artifact is not None:
        return load_folder(get_folder(artifact, folder / "weights"))
    if base:
        return load_base(base)
    raise ModelUnusable("the policy has no checkpoint yet: train it first")


if __name__ == "__main__":
    sys.exit(main())
