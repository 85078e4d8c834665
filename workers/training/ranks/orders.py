"""What the leader lets all ranks begin together. Paths are on this machine: its ranks share them."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SftOrder:
    """A warm-up."""

    weights: str
    """Folder of the checkpoint that it starts from. Other weights of the same shape are taken over from the leader."""
    lessons: str
    """Folder with the lessons that were gathered."""
    folder: str
    """Of the trainer's own states."""
    steps: int
    seed: int
    save_every: int
    checkpoints_gradients: bool

    def as_json(self) -> dict[str, Any]:
        return {"stage": "sft", **asdict(self)}


@dataclass(frozen=True, slots=True)
class GrpoOrder:
    """A reinforcement."""

    weights: str
    folder: str
    parts: int
    """In which the gradient is computed, as the run has it by now."""
    checkpoints_gradients: bool

    def as_json(self) -> dict[str, Any]:
        return {"stage": "grpo", **asdict(self)}


def order_of(told: dict[str, Any]) -> SftOrder | GrpoOrder:
    fields = dict(told)
    return SftOrder(**fields) if fields.pop("stage") == "sft" else GrpoOrder(**fields)
