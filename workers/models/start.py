"""The weights that a training run starts from, as its choice of what is trained wants them."""

import tempfile
from pathlib import Path
from typing import Any

from backend.checkpoints.tables import Checkpoint
from backend.core.artifacts import get_folder
from backend.domain.training.adapter import AdapterChoice, AdapterKind, refusal_to_continue
from workers.models.adapter import Origin, is_adapter, new_adapter, read_record
from workers.models.bases import Source, find_base, weights_digest
from workers.models.load import load_base, load_folder
from workers.models.read import ModelUnusable


def start_from_base(name: str, choice: AdapterChoice, *, seed: int) -> tuple[Any, Any]:
    """A pretrained model: whole in fp32, or with a new adapter beside it in its own precision."""
    folder = Path(name).expanduser()
    if is_adapter(folder):
        if refusal := refusal_to_continue(read_record(folder).model_dump(), choice):
            raise ModelUnusable(refusal)
        return load_folder(folder)
    if choice.kind is AdapterKind.FULL:
        return load_base(name)
    source, revision = find_base(name)
    return new_adapter(source, Origin(name, revision), choice, seed=seed)


def start_from_checkpoint(checkpoint: Checkpoint, choice: AdapterChoice, *, seed: int) -> tuple[Any, Any]:
    """Weights of an earlier run. An adapter is trained on as it is; whole weights become the base of a new one, which
    then refers to them where they lie."""
    if refusal := refusal_to_continue(checkpoint.adapter, choice):
        raise ModelUnusable(refusal)
    with tempfile.TemporaryDirectory(prefix="proctor-start-") as folder:
        weights = get_folder(checkpoint.artifact, Path(folder) / "weights")
        if choice.kind is AdapterKind.FULL or checkpoint.adapter is not None:
            return load_folder(weights)
        origin = Origin(f"checkpoint:{checkpoint.id}", weights_digest(weights), checkpoint.artifact)
        return new_adapter(Source(str(weights)), origin, choice, seed=seed)
