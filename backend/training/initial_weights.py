"""What is known, without a worker, of the weights that a run starts from."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.core import artifacts
from backend.domain.training.adapter import AdapterRecord
from backend.domain.training.configuration import ModelChoice
from backend.domain.training.model_shapes import BYTES_OF_FLOAT, MAX_PARAMETERS

CONFIGURATION = "config.json"
_CONTEXT_NAMES = ("max_position_embeddings", "n_positions")
_MOST_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a run begins."""

    size_bytes: int | None = None
    """Of a checkpoint's weights."""
    context: int | None = None
    """Tokens that the model reads; None: not known before it is loaded."""
    is_pretrained: bool = False
    """Its weights are more than what is made here, or nobody knows: rates for models from scratch do not suit it."""


def beginning_of(session: Session, choice: ModelChoice) -> Beginning:
    match choice.source:
        case "scratch":
            return Beginning(context=choice.context)
        case "checkpoint":
            row = session.get(Checkpoint, choice.checkpoint) if choice.checkpoint else None
            return _of_checkpoint(row) if row else Beginning()
        case _:
            return _of_base(choice.base)


def _of_checkpoint(row: Checkpoint) -> Beginning:
    if row.adapter is None:
        return Beginning(row.size_bytes, stored_context(row.artifact), _is_large(row.size_bytes))
    record = AdapterRecord.model_validate(row.adapter)
    base = Beginning(context=stored_context(record.artifact)) if record.artifact else _of_base(record.base)
    return Beginning(row.size_bytes, base.context, base.is_pretrained)


def _of_base(name: str) -> Beginning:
    """Of a folder that this process can read too; by its name nothing is known of a model of the Hub."""
    try:
        folder = Path(name).expanduser()
        if not folder.is_absolute() or not (folder / CONFIGURATION).is_file():
            return Beginning(is_pretrained=True)
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
        with (folder / CONFIGURATION).open("rb") as file:
            return Beginning(context=_context(file.read(_MOST_BYTES)), is_pretrained=_is_large(size))
    except (OSError, ValueError, RuntimeError):  # the last: `~somebody` without a home
        return Beginning(is_pretrained=True)


def stored_context(artifact: str) -> int | None:
    """As the configuration beside stored weights has it; None where there is none."""
    try:
        with artifacts.open_file(f"{artifact}/{CONFIGURATION}") as file:
            return _context(file.read(_MOST_BYTES))
    except (OSError, ValueError):
        return None


def _context(text: bytes) -> int | None:
    configuration = json.loads(text)
    if not isinstance(configuration, dict):
        return None
    blocks: list[Mapping[str, Any]] = [configuration]
    if isinstance(inner := configuration.get("text_config"), dict):
        blocks.append(inner)
    told = (block.get(name) for block in blocks for name in _CONTEXT_NAMES)
    return next((length for length in told if isinstance(length, int) and length > 0), None)


def _is_large(size_bytes: int) -> bool:
    """Larger than any model that is made here."""
    return size_bytes > MAX_PARAMETERS * BYTES_OF_FLOAT
