"""The one door to stored weights: whole models and adapters beside their base, from folders or by name."""

from pathlib import Path
from typing import Any

from workers.models.adapter import is_adapter, read_adapter
from workers.models.padding import give_padding
from workers.models.read import (
    TRAINED_WHOLE,
    ModelUnusable,
    best_device,
    check_weight_files,
    read_model,
    read_tokenizer,
)

__all__ = ["ModelUnusable", "best_device", "check_weight_files", "load_base", "load_folder"]


def load_folder(folder: Path) -> tuple[Any, Any]:
    """Model and tokenizer of a checkpoint's folder on this machine's best device: a whole model in fp32, or an adapter
    beside its base as it was trained. Either can be trained on."""
    check_weight_files(folder)
    if is_adapter(folder):
        return read_adapter(folder)
    return _load(str(folder), is_local=True)


def load_base(name: str) -> tuple[Any, Any]:
    """A Hugging Face model by name, or a folder of this worker."""
    folder = Path(name).expanduser()
    return load_folder(folder) if folder.is_dir() else _load(name, is_local=False)


def _load(source: str, *, is_local: bool) -> tuple[Any, Any]:
    model = read_model(source, TRAINED_WHOLE, is_local=is_local)
    tokenizer = read_tokenizer(source, is_local=is_local)
    give_padding(model, tokenizer)
    return model, tokenizer
