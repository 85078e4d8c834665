"""What a run's choices about the machine mean on this machine."""

import os
from dataclasses import dataclass

import torch

from backend.domain.training.hardware import HardwareChoice
from workers.models.load import ModelUnusable


@dataclass(frozen=True, slots=True)
class Hardware:
    """Settled for this process."""

    is_bf16: bool = False
    """Products are computed in bf16."""
    checkpoints_gradients: bool = False


FLOAT32 = Hardware()
"""As on a CPU."""


def take_device(choice: HardwareChoice) -> None:
    """Before anything is put on a device. Raises ModelUnusable where the wanted one is not there."""
    if choice.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # noqa: TID251 - torch asks for it when it first looks for a GPU
    elif choice.device == "cuda" and not torch.cuda.is_available():
        raise ModelUnusable("the run wants a GPU (hardware.device=cuda), and torch reaches none on this worker")
    elif torch.cuda.is_available() and choice.processes > torch.cuda.device_count():
        raise ModelUnusable(
            f"{choice.processes} processes want a GPU each (hardware.processes), and torch reaches "
            f"{torch.cuda.device_count()} on this worker"
        )


def settle(choice: HardwareChoice) -> Hardware:
    """float32 on a CPU unless bf16 is asked for by name; bf16 on a GPU that computes in it, unless float32 is."""
    has_bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    if choice.precision == "bf16" and torch.cuda.is_available() and not has_bf16:
        raise ModelUnusable("the GPU of this worker does not compute in bf16: choose hardware.precision=float32")
    is_bf16 = has_bf16 if choice.precision == "auto" else choice.precision == "bf16"
    return Hardware(is_bf16, choice.gradient_checkpointing)
