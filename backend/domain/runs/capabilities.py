"""What workers can do, as they report it, and which choices of a training run none of them can carry out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backend.domain.vocabulary import Queue

QUEUES = {"transformers": Queue.GPU, "vllm": Queue.GPU_VLLM, "unsloth": Queue.GPU_UNSLOTH}
"""Which workers take up a run of this engine."""


class Gpu(BaseModel):
    """One accelerator."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str = "?"
    memory_mb: int = 0


class Capabilities(BaseModel):
    """What a worker's machine offers."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)

    flavour: str = "core"
    """`transformers`, `vllm` or `unsloth`; `core` without any engine."""
    cpus: int = 0
    memory_mb: int = 0
    gpus: list[Gpu] = Field(default_factory=list)
    engines: dict[str, str] = Field(default_factory=dict)
    """What is installed there, with its version: torch, trl, peft, bitsandbytes, vllm, unsloth, llama.cpp, …"""
    cuda: bool | None = None
    """Does torch reach a GPU? Null: it was not asked, or has not answered yet."""
    cuda_devices: int | None = None
    """How many GPUs torch reaches; null as above."""
    bf16: bool | None = None
    """Does the GPU compute in bfloat16?"""
    artifacts: str | None = None
    """Id of the artifact store that it reads; empty: it reads none. Null: it has not reported."""
    launcher: str | None = None
    """How foreign code is isolated."""
    launcher_warning: str | None = None
    """What an administrator should change about that."""

    @classmethod
    def of(cls, reported: Mapping[str, Any]) -> "Capabilities":
        """What cannot be read counts as nothing: a worker of another version is no error."""
        try:
            return cls.model_validate(dict(reported))
        except ValidationError:
            return cls()

    def reads(self, store: str | None) -> bool:
        """Does it read this artifact store? Where either is not known, nothing speaks against it."""
        return store is None or self.artifacts is None or self.artifacts == store

    @property
    def has_cuda(self) -> bool:
        return bool(self.gpus) if self.cuda is None else self.cuda

    @property
    def gpu_count(self) -> int:
        """GPUs that a run can have."""
        if not self.has_cuda:
            return 0
        return len(self.gpus) if self.cuda_devices is None else self.cuda_devices

    @property
    def trains(self) -> bool:
        return "trl" in self.engines

    @property
    def model_memory_mb(self) -> int:
        """Where a model lies: the largest GPU's memory, else the machine's."""
        return max((gpu.memory_mb for gpu in self.gpus), default=0) or self.memory_mb


@dataclass(frozen=True, slots=True)
class Offer:
    """A worker that answers, and the queues that it serves."""

    name: str
    queues: tuple[str, ...]
    can: Capabilities

    def takes(self, engine: str) -> bool:
        """Does it take up training runs of this engine?"""
        return str(QUEUES.get(engine, Queue.GPU)) in self.queues and self.can.trains

    @property
    def trains(self) -> bool:
        """Does it take up training runs of any engine?"""
        return any(map(self.takes, QUEUES))


@dataclass(frozen=True, slots=True)
class Need:
    """A choice that not every worker can carry out."""

    field: str
    value: str
    words: str
    """What a worker must have, after "needs a worker with"."""
    is_met: Callable[[Offer], bool]


def _adapts(offer: Offer) -> bool:
    return offer.trains and "peft" in offer.can.engines


def _quantises(offer: Offer) -> bool:
    """Bitsandbytes does it on a CPU too, slowly."""
    return _adapts(offer) and "bitsandbytes" in offer.can.engines


def _computes_bf16(offer: Offer) -> bool:
    """A CPU does, slowly."""
    return offer.trains and (not offer.can.has_cuda or offer.can.bf16 is not False)


def _serves(engine: str) -> Callable[[Offer], bool]:
    return lambda offer: offer.takes(engine) and engine in offer.can.engines


NEEDS = (
    Need("engine", "vllm", "vLLM on the queue gpu-vllm", _serves("vllm")),
    Need("engine", "unsloth", "Unsloth on the queue gpu-unsloth", _serves("unsloth")),
    Need("adapter.kind", "lora", "peft", _adapts),
    Need("hardware.device", "cuda", "a GPU that torch reaches", lambda offer: offer.trains and offer.can.has_cuda),
    Need("hardware.precision", "bf16", "bf16 on its GPU", _computes_bf16),
    Need("adapter.kind", "qlora", "peft and bitsandbytes", _quantises),
)
ALWAYS = frozenset({("adapter.kind", "lora"), ("hardware.precision", "bf16")})
"""Offered also while no worker answers: nearly every worker that trains has it."""


def not_offered(offers: Sequence[Offer]) -> dict[tuple[str, str], str]:
    """Choices by field and value that no worker can carry out, with the reason."""
    found = {}
    for need in NEEDS:
        is_waiting = not offers and (need.field, need.value) in ALWAYS
        if not is_waiting and not any(need.is_met(offer) for offer in offers):
            found[need.field, need.value] = f"needs a worker with {need.words}; none answers"
    return found
