"""Capabilities that workers report, and the choices of a training run that none of them supports."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backend.domain.described import Described
from backend.domain.vocabulary import Queue

QUEUES = {"transformers": Queue.GPU, "vllm": Queue.GPU_VLLM, "unsloth": Queue.GPU_UNSLOTH}
"""The queue of a training run by its engine."""


class Gpu(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str = "?"
    memory_mb: int = 0


class Capabilities(Described):
    """A worker's machine."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    flavour: str = "core"
    """`transformers`, `vllm` or `unsloth`; `core` without any engine."""
    cpus: int = 0
    memory_mb: int = 0
    gpus: list[Gpu] = Field(default_factory=list)
    engines: dict[str, str] = Field(default_factory=dict)
    """Installed engines with their versions: torch, trl, peft, bitsandbytes, vllm, unsloth, llama.cpp, …"""
    cuda: bool | None = None
    """Whether torch can use a GPU. Null until torch was probed."""
    cuda_devices: int | None = None
    """Number of GPUs that torch can use. Null until torch was probed."""
    bf16: bool | None = None
    """Whether the GPU supports bfloat16."""
    nodes: int = 1
    """Number of machines that train one run together under this worker."""
    artifacts: str | None = None
    """Id of the artifact store that it can read; empty if none. Null until it has reported."""
    launcher: str | None = None
    """How environment code is isolated."""
    launcher_warning: str | None = None
    """Advice for administrators about the isolation."""

    @classmethod
    def of(cls, reported: Mapping[str, object]) -> "Capabilities":
        """Unreadable capabilities count as none: a worker of another version is no error."""
        try:
            return cls.model_validate(dict(reported))
        except ValidationError:
            return cls()

    def reads(self, store: str | None) -> bool:
        """Whether it can read this artifact store. True if either is unknown."""
        return store is None or self.artifacts is None or self.artifacts == store

    @property
    def has_cuda(self) -> bool:
        return bool(self.gpus) if self.cuda is None else self.cuda

    @property
    def gpu_count(self) -> int:
        if not self.has_cuda:
            return 0
        return len(self.gpus) if self.cuda_devices is None else self.cuda_devices


@dataclass(frozen=True, slots=True)
class OnlineWorker:
    """A worker that is online, and its queues."""

    name: str
    queues: tuple[str, ...]
    can: Capabilities

    def takes(self, engine: str) -> bool:
        return str(QUEUES.get(engine, Queue.GPU)) in self.queues and "trl" in self.can.engines

    @property
    def trains(self) -> bool:
        return any(map(self.takes, QUEUES))


@dataclass(frozen=True, slots=True)
class Requirement:
    """Something that a job or a setting needs and that not every worker has."""

    words: str
    """Completes the phrase "a worker with"."""
    is_met: Callable[[OnlineWorker], bool]
    is_waited_for: bool = False
    """The job waits for such a worker without a time limit, because only it can read the job's artifacts."""


NEEDS: Mapping[tuple[str, str], Requirement] = {
    ("engine", "vllm"): Requirement(
        "vLLM on the queue gpu-vllm", lambda offer: offer.takes("vllm") and "vllm" in offer.can.engines
    ),
    ("engine", "unsloth"): Requirement(
        "Unsloth on the queue gpu-unsloth", lambda offer: offer.takes("unsloth") and "unsloth" in offer.can.engines
    ),
    ("adapter.kind", "lora"): Requirement("peft", lambda offer: offer.trains and "peft" in offer.can.engines),
    ("adapter.kind", "qlora"): Requirement(  # bitsandbytes works on a CPU too, slowly
        "peft and bitsandbytes", lambda offer: offer.trains and {"peft", "bitsandbytes"} <= offer.can.engines.keys()
    ),
    ("hardware.device", "cuda"): Requirement("a GPU for torch", lambda offer: offer.trains and offer.can.has_cuda),
    ("hardware.precision", "bf16"): Requirement(  # a CPU computes it too, slowly
        "bf16 on its GPU", lambda offer: offer.trains and (not offer.can.has_cuda or offer.can.bf16 is not False)
    ),
}
"""Requirements of training settings by field and value."""
ALWAYS = frozenset({("adapter.kind", "lora"), ("hardware.precision", "bf16")})
"""Offered even if no worker is online: nearly every training worker supports it."""


def not_offered(offers: Sequence[OnlineWorker]) -> dict[tuple[str, str], str]:
    """Return the settings that no worker supports, by field and value, with the reason."""
    return {
        choice: f"needs a worker with {need.words}; none answers"
        for choice, need in NEEDS.items()
        if not any(map(need.is_met, offers)) and (offers or choice not in ALWAYS)
    }
