"""Weights from disk: safetensors only, and never code that came with a model."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

_UNSAFE = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".h5", ".msgpack", ".gguf"}
"""Weight formats that run code when they are read, or that this product does not read."""


class ModelUnusable(ValueError):
    """The model cannot be used here."""


def load_folder(folder: Path) -> tuple[Any, Any]:
    """Model and tokenizer of a folder, in fp32 on this machine's best device."""
    check_weight_files(folder)
    return _load(str(folder), local=True)


def load_base(name: str) -> tuple[Any, Any]:
    """A Hugging Face model by name, or a folder of this worker."""
    folder = Path(name).expanduser()
    return load_folder(folder) if folder.is_dir() else _load(name, local=False)


def check_weight_files(folder: Path) -> None:
    """Raises ModelUnusable unless the folder's weights are safetensors and nothing else."""
    if not folder.is_dir():
        raise ModelUnusable(f"there is no folder {folder.name}")
    unsafe = sorted(path.name for path in folder.rglob("*") if path.suffix in _UNSAFE)
    if unsafe:
        raise ModelUnusable(f"only safetensors weights are read; found {', '.join(unsafe)}")
    if not any(folder.glob("*.safetensors")):
        raise ModelUnusable("the folder holds no safetensors weights")


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _load(source: str, *, local: bool) -> tuple[Any, Any]:
    try:
        configuration = AutoConfig.from_pretrained(source, trust_remote_code=False, local_files_only=local)
        if getattr(configuration, "quantization_config", None) is not None:
            raise ModelUnusable("quantised models are not supported: choose one in full precision")
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False, local_files_only=local)
        model = AutoModelForCausalLM.from_pretrained(
            source, trust_remote_code=False, use_safetensors=True, local_files_only=local, dtype=torch.float32
        )
    except ModelUnusable:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise ModelUnusable(f"{source} cannot be loaded: {error}") from error
    _give_padding(model, tokenizer)
    return model.to(best_device()), tokenizer


def _give_padding(model: Any, tokenizer: Any) -> None:
    """A padding token that is not the end: otherwise the end would never be learned."""
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id != tokenizer.eos_token_id:
        return
    tokenizer.add_special_tokens({"pad_token": "<|pad|>"})
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer))
    model.config.pad_token_id = tokenizer.pad_token_id
