"""A run's hardware settings, resolved for this machine."""

import os
import platform
import resource
from dataclasses import dataclass

import torch

from backend.domain.training.configuration import HardwareChoice
from workers.models.load import ModelUnusable


@dataclass(frozen=True, slots=True)
class Hardware:
    is_bf16: bool = False
    checkpoints_gradients: bool = False
    is_sharded: bool = False


FLOAT32 = Hardware()


def select_device(choice: HardwareChoice) -> None:
    """Select the device before anything is placed on one. Raises ModelUnusable if it is missing."""
    if choice.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # noqa: TID251 - torch reads it when it first searches for a GPU
    elif choice.device == "cuda" and not torch.cuda.is_available():
        raise ModelUnusable("the run requires a GPU (hardware.device=cuda), and torch reaches none on this worker")
    elif torch.cuda.is_available() and choice.processes_per_node > torch.cuda.device_count():
        raise ModelUnusable(
            f"{choice.processes_per_node} processes need a GPU each (hardware.processes), and torch reaches "
            f"{torch.cuda.device_count()} on this worker"
        )


def resolve_hardware(choice: HardwareChoice) -> Hardware:
    """Resolve the precision: by default bf16 on a GPU that supports it and float32 elsewhere."""
    has_gpu = torch.cuda.is_available()
    has_bf16 = torch.cuda.is_bf16_supported() if has_gpu else _cpu_multiplies_bf16()
    if choice.precision == "bf16" and has_gpu and not has_bf16:
        raise ModelUnusable("the GPU of this worker does not support bf16: choose hardware.precision=float32")
    is_bf16 = has_bf16 and (has_gpu if choice.precision == "auto" else choice.precision == "bf16")
    return Hardware(is_bf16, choice.gradient_checkpointing, choice.sharding == "fsdp2")


def _cpu_multiplies_bf16() -> bool:
    """Return whether this processor has instructions for bf16. Without them, products in bf16 are emulated."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()) or (
        platform.machine() in {"arm64", "aarch64"}
    )


def peak_memory_mb() -> float:
    """Return the most memory that this process has used so far, in MB: tensors on its GPU, else resident memory."""
    if torch.cuda.is_available():
        return float(torch.cuda.max_memory_allocated() / 2**20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
