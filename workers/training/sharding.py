"""FSDP2: weights, gradients and optimizer state divided among the processes of a run.

Learning exchanges weights layer by layer, in step on all ranks. To sample, save or evaluate, each rank runs as many
forward passes as its own episodes need, and an exchange would wait for ranks that run none. All ranks therefore gather
the whole weights first and keep them until they learn again.
"""

from pathlib import Path
from typing import Any

import torch
from accelerate import DistributedType
from accelerate.utils import convert_outputs_to_fp32
from peft import PeftModel
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from transformers import TrainingArguments

from workers.models.load import ADAPTER


def shard(arguments: TrainingArguments) -> None:
    """Let the trainer of these arguments shard its model.

    Gathered weights stay in float32, because checkpoints are written from them; `autocast` rounds matrix products.
    """
    arguments.fsdp = True
    arguments.fsdp_config = {"version": 2, "state_dict_type": "FULL_STATE_DICT", "reshard_after_forward": True}
    arguments.fsdp_plugin_args = arguments._process_fsdp_args()
    arguments.fsdp_plugin_args["mixed_precision_policy"] = MixedPrecisionPolicy()
    if arguments.device.type == "cpu":
        # accelerate ignores these arguments on a CPU unless it takes its processes for those of GPUs
        arguments.distributed_state.distributed_type = DistributedType.MULTI_GPU


def sharded_modules(model: torch.nn.Module) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def gather_weights(model: torch.nn.Module) -> None:
    """Put the whole weights on every rank. All ranks call this at the same point; gathered weights stay as they are."""
    for module in sharded_modules(model):
        module.set_reshard_after_forward(False, recurse=False)
        module.unshard()


def shard_weights(model: torch.nn.Module) -> None:
    """Keep only this rank's part of gathered weights."""
    for module in sharded_modules(model):
        module.set_reshard_after_forward(True, recurse=False)
        module.reshard()


def gathered_state(model: torch.nn.Module) -> dict[str, torch.Tensor] | None:
    """Return gathered weights by name, or None if the model is not sharded. Its `state_dict` would shard it again."""
    if not sharded_modules(model):
        return None
    state = {name: weight.detach() for name, weight in model.named_parameters(remove_duplicate=False)}
    for path, module in model.named_modules():
        saved = module._buffers.keys() - module._non_persistent_buffers_set
        state |= {f"{path}.{name}".lstrip("."): module._buffers[name] for name in saved}
    return state


def load_weights(model: torch.nn.Module, folder: Path, *, reads: bool) -> None:
    """Distribute the safetensors in the folder of a state among all ranks. Only one rank `reads` them."""
    state: dict[str, Any] = {}
    if reads:
        for path in sorted(folder.glob("*.safetensors")):
            state |= load_file(path)
    if isinstance(model, PeftModel):  # its files do not name the adapter
        state = {name.removesuffix("weight") + f"{ADAPTER}.weight": weight for name, weight in state.items()}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
    set_model_state_dict(model, state, options=options)


def autocast(model: torch.nn.Module, device: str) -> None:
    """Compute matrix products in bf16, as accelerate does for models that are not sharded."""
    model._original_forward = model.forward  # type: ignore[assignment]
    model.forward = convert_outputs_to_fp32(torch.autocast(device, torch.bfloat16)(model.forward))
