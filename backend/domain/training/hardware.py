"""The settings of a training run for device, precision and vLLM."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from backend.domain.training.blocks import Block, Setting


class HardwareChoice(Block):
    """Device and precision of the model."""

    title: ClassVar[str] = "Device and precision"

    device: Annotated[Literal["auto", "cpu", "cuda"], Setting(label="Device")] = "auto"
    """auto: the GPU if the worker has one. cpu: leave the GPU alone. cuda: fail at once if there is no GPU."""
    precision: Annotated[Literal["auto", "float32", "bf16"], Setting(label="Precision")] = "auto"
    """Precision of matrix products in training and sampling; weights and optimizer state are not affected. auto: bf16
    on a GPU that supports it, else float32. Use float32 to match a run on a CPU."""
    gradient_checkpointing: Annotated[bool, Setting(label="Gradient checkpointing")] = False
    """Recompute activations in the backward pass instead of storing them: about a third slower, with much less memory.
    Try more `grpo.micro_batches` first."""
    processes: Annotated[int, Setting(label="Processes")] = Field(default=1, ge=1, le=64)
    """Number of processes that train together, one per GPU of the worker. They share the groups of a step and the batch
    of the warm-up evenly, so `grpo.tasks_per_step` and `sft.batch` must be divisible by it. Each holds the whole model
    and has its own `concurrency` and `servers`. The first process runs the held-out evaluations. On a CPU only for
    testing. Raise it if the worker has several GPUs."""


class VllmChoice(Block):
    """How vLLM samples training episodes. Only for the engine vllm."""

    title: ClassVar[str] = "vLLM"
    only: ClassVar[str] = "engine=vllm"

    mode: Annotated[Literal["colocate", "server"], Setting(label="vLLM mode")] = "colocate"
    """colocate: in the training process, on the same GPU. server: a running `trl vllm-serve` on separate GPUs, which
    receives the weights before each step. Use it with several GPUs if sampling takes most of the time."""
    memory: Annotated[float, Setting(label="vLLM GPU memory", only="vllm.mode=colocate")] = Field(
        default=0.3, gt=0, lt=1
    )
    """Colocate only: share of GPU memory for vLLM. Raise it if vLLM cannot start or samples few episodes at a time;
    lower it if the training step runs out of memory."""
    server: Annotated[str, Setting(label="vLLM server", only="vllm.mode=server")] = Field(default="", max_length=300)
    """Server only: its URL, such as `http://127.0.0.1:8000`. Use it if `trl vllm-serve` runs on GPUs that this run does
    not train on."""
