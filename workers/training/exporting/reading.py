"""An export's files read as whoever is given them would read them."""

import struct
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM

from backend.domain.vocabulary import ExportForm
from workers.models.adapter import read_adapter, read_record
from workers.models.read import OWN, ModelUnusable, best_device, read_model, read_tokenizer
from workers.training.weights import check_precision


def read_export(folder: Path, form: ExportForm, original: Path) -> tuple[Any, Any]:
    """Model and tokenizer. The base of an adapter is found as its checkpoint, the original, says. Raises
    ModelUnusable, also when a tensor is quantised."""
    if form is ExportForm.GGUF:
        return _read_gguf(folder), read_tokenizer(str(folder))
    check_precision(folder)
    if form is ExportForm.ADAPTER:
        return read_adapter(folder, read_record(original))
    return read_model(str(folder), OWN), read_tokenizer(str(folder))


def _read_gguf(folder: Path) -> Any:
    """By transformers, which reads GGUF through the package `gguf`."""
    names = [path.name for path in folder.glob("*.gguf")]
    if len(names) != 1:
        raise ModelUnusable(f"the export has {len(names)} GGUF files, not one")
    try:
        model = AutoModelForCausalLM.from_pretrained(
            str(folder), gguf_file=names[0], trust_remote_code=False, local_files_only=True
        )
    except ImportError as error:
        raise ModelUnusable(f"a GGUF file cannot be read back here, so nothing proves it: {error}") from error
    except (OSError, ValueError, KeyError, IndexError, NotImplementedError, struct.error) as error:
        raise ModelUnusable(f"the GGUF file cannot be read back: {error}") from error
    return model.to(best_device())
