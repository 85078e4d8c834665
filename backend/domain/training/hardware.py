"""The choices of a training run about the machine: where the model computes, how exactly, and how vLLM samples."""

from typing import Literal

from pydantic import Field

from backend.domain.training.blocks import Block


class HardwareChoice(Block):
    """Where the model computes, and how exactly."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: the GPU where the worker has one. cpu: leave it alone, as for a tiny model beside other work. cuda: fail at
    once where there is none, rather than crawl."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """Of the products in training and sampling; weights and the optimiser's memory stay as they are. auto: bf16 on a
    GPU that computes in it, else float32. Choose float32 when a run must agree with one on a CPU."""
    gradient_checkpointing: bool = False
    """Compute activations again on the way back instead of keeping them: about a third slower, and much less memory.
    Turn on when a step runs out of it, after more `grpo.micro_batches`."""
    processes: int = Field(default=1, ge=1, le=64)
    """Processes that train together, one on each GPU of the worker: more where it has several. A step's groups and a
    warm-up's batch are divided evenly among them, so `grpo.tasks_per_step` and `sft.batch` must divide. Each keeps the
    whole model, plays at most `concurrency` episodes at a time, and has `servers` env servers of its own; examinations
    are played by the first alone. On a CPU it only serves to try this out."""


class VllmChoice(Block):
    """How vLLM samples training episodes; only for the engine vllm."""

    mode: Literal["colocate", "server"] = "colocate"
    """colocate: in the training process, on the same GPU. server: a `trl vllm-serve` that runs already, on GPUs of its
    own; weights are sent to it before each step. Choose server where there are several GPUs and playing takes most of
    the time."""
    memory: float = Field(default=0.3, gt=0, lt=1)
    """Only for colocate: share of the GPU's memory for vLLM's weights and cache. Raise it when vLLM cannot start or
    plays few episodes at a time; lower it when the training step runs out of memory."""
    server: str = Field(default="", max_length=300)
    """Only for server: its address, as `http://127.0.0.1:8000`. Give it when `trl vllm-serve` runs on GPUs that this
    run does not train on."""
