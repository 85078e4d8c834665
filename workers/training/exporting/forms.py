"""Writing a checkpoint anew in a form. Takes folders, never a model, so that nothing that trains can be handed out."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from backend.domain.vocabulary import ExportForm
from workers.models.adapter import CONFIGURATION_FILE, RECORD_FILE, dtype_name, is_adapter, read_record
from workers.models.build import parameter_count
from workers.models.converter import NotConverted, convert, find_converter
from workers.models.load import load_folder
from workers.models.read import ModelUnusable, read_tokenizer
from workers.training.checkpoints import save_model
from workers.training.exporting.merging import merged
from workers.training.weights import check_precision

GGUF_FILE = "model-{}.gguf"
_ROUNDED_LABEL = "the base was rounded to 4 bits (NF4) and written out in {} again"


@dataclass(frozen=True, slots=True)
class Written:
    """What was written."""

    parameters: int
    dtype: str
    label: str | None = None
    """What whoever uses it must know of its weights."""


def write_form(form: ExportForm, original: Path, made: Path, *, gguf_type: str = "f16") -> Written:
    """The checkpoint's folder as a new folder. Raises ModelUnusable where this form makes no sense or fails."""
    check_precision(original)
    made.mkdir()
    match form:
        case ExportForm.FULL:
            return _whole(original, made)
        case ExportForm.ADAPTER:
            return _adapter(original, made)
        case ExportForm.MERGED | ExportForm.MERGED_DEQUANTISED:
            return _merged(original, made, is_rounded=form is ExportForm.MERGED_DEQUANTISED)
        case ExportForm.GGUF:
            return _gguf(original, made, gguf_type)


def _whole(original: Path, made: Path) -> Written:
    if is_adapter(original):
        raise ModelUnusable("only an adapter was trained: choose another form")
    model, tokenizer = load_folder(original)
    save_model(model, tokenizer, made)
    check_precision(made)
    return Written(parameter_count(model), dtype_name(model.dtype))


def _adapter(original: Path, made: Path) -> Written:
    """The files as they are; where they say from which folder the base was read, its name."""
    record = _record(original)
    shutil.copytree(original, made, dirs_exist_ok=True)
    path = made / CONFIGURATION_FILE
    is_on_hub = record.artifact is None and not (record.revision or "").startswith("sha256:")
    named = {"base_model_name_or_path": record.public_base, "revision": record.revision if is_on_hub else None}
    path.write_text(json.dumps({**json.loads(path.read_text()), **named}, indent=2))
    told = record.model_copy(update={"base": record.public_base})
    (made / RECORD_FILE).write_text(told.model_dump_json(indent=2))
    count = 0
    for name in check_precision(made):
        with safe_open(made / name, framework="pt") as tensors:
            count += sum(tensors.get_tensor(key).numel() for key in tensors.keys())  # noqa: SIM118 (no mapping)
    return Written(count, record.dtype)


def _merged(original: Path, made: Path, *, is_rounded: bool) -> Written:
    record = _record(original)
    model = merged(original, is_rounded=is_rounded)
    model.save_pretrained(made, safe_serialization=True)
    read_tokenizer(str(original)).save_pretrained(made)
    check_precision(made)
    dtype = dtype_name(model.dtype)
    return Written(parameter_count(model), dtype, _ROUNDED_LABEL.format(record.dtype) if is_rounded else None)


def _gguf(original: Path, made: Path, precision: str) -> Written:
    """Through whole weights in a folder beside it; configuration and tokenizer come along for transformers."""
    program = find_converter()
    if program is None:
        raise ModelUnusable("this worker has no convert_hf_to_gguf.py of llama.cpp")
    beside = made.with_name("before-gguf")
    beside.mkdir()
    written = _merged(original, beside, is_rounded=False) if is_adapter(original) else _whole(original, beside)
    try:
        convert(program, beside, made / GGUF_FILE.format(precision), precision)
    except NotConverted as error:
        raise ModelUnusable(f"llama.cpp's converter does not take this model: {error}") from error
    for path in beside.iterdir():
        if path.suffix not in {".safetensors"} and not path.name.endswith(".index.json"):
            shutil.copyfile(path, made / path.name)
    return Written(written.parameters, precision, written.label)


def _record(original: Path) -> Any:
    if not is_adapter(original):
        raise ModelUnusable("all weights were trained: there is no adapter")
    return read_record(original)
