"""The files of an export: write a checkpoint in another form, read it back, and list it in `manifest.json`.

Everything starts from stored files, never from a model in memory, so that a model in training cannot be exported.
"""

import json
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

from peft import PeftModel
from safetensors import SafetensorError, safe_open
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from backend.checkpoints.tables import Checkpoint
from backend.domain.training.adapter import AdapterRecord, public_name
from backend.domain.vocabulary import ExportForm
from workers.models.load import (
    CONFIGURATION_FILE,
    RECORD_FILE,
    Loaded,
    LoadedModel,
    ModelSource,
    ModelUnusable,
    attach_adapter,
    base_of,
    best_device,
    check_weight_files,
    dtype_name,
    is_adapter,
    load_adapter,
    load_folder,
    read_model,
    read_record,
    read_tokenizer,
)
from workers.models.machine import NotConverted, convert, find_converter
from workers.storage.digests import digest_of
from workers.training.checkpoints import save_model

FORMAT = "proctor-export/2"
MANIFEST, SCRIPT = "manifest.json", "inference.py"
MERGED_FORMS = {ExportForm.MERGED, ExportForm.MERGED_DEQUANTISED}
_FULL_PRECISION = {"F64", "F32", "F16", "BF16"}
_COUNTERS = {"I64", "I32", "BOOL"}  # types of small buffers, such as position numbers; never of weights
_ROUNDED_LAYERS = {"Linear4bit", "Linear8bitLt"}


@dataclass(frozen=True, slots=True)
class WrittenExport:
    parameters: int
    dtype: str
    label: str | None = None  # what users must know about the weights


@dataclass(frozen=True, slots=True)
class ExportDescription:
    form: ExportForm
    written: WrittenExport
    system: str  # the system message that the policy was trained with
    licence: str = ""


def write_export(form: ExportForm, original: Path, target: Path, *, gguf_type: str = "f16") -> WrittenExport:
    """Write the checkpoint in the folder `original` to a new folder. Raises ModelUnusable if that is impossible."""
    check_precision(original)
    target.mkdir()
    if form is ExportForm.GGUF:
        program = find_converter()
        if program is None:
            raise ModelUnusable("this worker has no convert_hf_to_gguf.py of llama.cpp and lacks the package gguf")
        weights = target.with_name("before-gguf")
        written = write_export(ExportForm.MERGED if is_adapter(original) else ExportForm.FULL, original, weights)
        try:
            convert(program, weights, target / f"model-{gguf_type}.gguf", gguf_type)
        except NotConverted as error:
            raise ModelUnusable(f"the converter does not support this model: {error}") from error
        for path in weights.iterdir():  # configuration and tokenizer, for transformers
            if path.suffix != ".safetensors" and not path.name.endswith(".index.json"):
                shutil.copyfile(path, target / path.name)
        return WrittenExport(written.parameters, gguf_type, written.label)
    if form is ExportForm.FULL:
        if is_adapter(original):
            raise ModelUnusable("only an adapter was trained: choose another form")
        model, tokenizer = load_folder(original)
        save_model(model, tokenizer, target)
        check_precision(target)
        return WrittenExport(model.num_parameters(), dtype_name(model.dtype))
    if not is_adapter(original):
        raise ModelUnusable("all weights were trained: there is no adapter")
    record = read_record(original)
    if form is ExportForm.ADAPTER:
        shutil.copytree(original, target, dirs_exist_ok=True)
        # names of this worker's folders are replaced by a name that others know
        is_on_hub = record.artifact is None and not (record.revision or "").startswith("sha256:")
        public = {
            "base_model_name_or_path": public_name(record.base),
            "revision": record.revision if is_on_hub else None,
        }
        configuration = json.loads((target / CONFIGURATION_FILE).read_text()) | public
        (target / CONFIGURATION_FILE).write_text(json.dumps(configuration, indent=2))
        public_record = record.model_copy(update={"base": public_name(record.base)})
        (target / RECORD_FILE).write_text(public_record.model_dump_json(indent=2))
        count = 0
        for name in check_precision(target):
            with safe_open(target / name, framework="pt") as tensors:
                count += sum(tensors.get_tensor(key).numel() for key in tensors.keys())  # noqa: SIM118 (no mapping)
        return WrittenExport(count, record.dtype)
    is_rounded = form is ExportForm.MERGED_DEQUANTISED
    model = merge_adapter(original, is_rounded=is_rounded)
    model.save_pretrained(target, safe_serialization=True)
    read_tokenizer(ModelSource(str(original))).save_pretrained(target)
    check_precision(target)
    label = f"the base was quantized to 4 bits (NF4) and stored in {record.dtype}" if is_rounded else None
    return WrittenExport(model.num_parameters(), dtype_name(model.dtype), label)


def merge_adapter(original: Path, *, is_rounded: bool) -> PreTrainedModel:
    """Add the checkpoint's adapter to its base, or if `is_rounded`, to the base with the 4-bit values of training."""
    model = attach_adapter(plain_base(read_record(original), is_rounded=is_rounded), original)
    check_mergeable(model)
    merged = model.merge_and_unload(safe_merge=True)
    check_unrounded(merged)
    return merged


def plain_base(record: AdapterRecord, *, is_rounded: bool) -> PreTrainedModel:
    """Load the base of an adapter with all weights in its own precision, rounded to 4-bit values if `is_rounded`."""
    if is_rounded and record.quantisation is None:
        raise ModelUnusable("the base of this adapter was not quantized")
    with base_of(record) as source:
        base = read_model(source, record.dtype)
        if is_rounded:
            from bitsandbytes.functional import dequantize_4bit  # only for a 4-bit base

            for name, module in read_model(source, record.dtype, record.quantisation).named_modules():
                state = getattr(getattr(module, "weight", None), "quant_state", None)
                if state is not None:
                    target = base.get_submodule(name)
                    weight = dequantize_4bit(module.weight.data, state)
                    weight = weight.T if isinstance(target, Conv1D) else weight
                    target.weight.data = weight.contiguous().to(target.weight)
    return base


def check_mergeable(model: PeftModel) -> None:
    """Refuse a model that is in training, was merged before, or has a quantized base.

    Its sum would be rounded again, and on some CPUs it would be computed from weights in another layout.
    """
    if model.training:
        raise ModelUnusable("a model in training cannot be merged: export its checkpoint")
    if any(getattr(module, "merged_adapters", None) for module in model.modules()):
        raise ModelUnusable("an adapter was already merged into this model")
    check_unrounded(model)


def check_unrounded(model: LoadedModel) -> None:
    """Refuse quantized layers and weights. A model's own flags stay set after it is dequantized, so do not use them."""
    layers = {type(module).__name__ for module in model.modules()} & _ROUNDED_LAYERS
    if layers or not all(weight.is_floating_point() for weight in model.parameters()):
        raise ModelUnusable("the base is quantized: an adapter can only be merged into full-precision weights")


def check_precision(folder: Path) -> list[str]:
    """Names of the weight files. Raises ModelUnusable if one is not safetensors or contains quantized tensors."""
    check_weight_files(folder)
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    for name in names:
        try:
            with safe_open(folder / name, framework="pt") as tensors:
                for key in tensors.keys():  # noqa: SIM118 (no mapping)
                    tensor = tensors.get_slice(key)
                    dtype, is_small = tensor.get_dtype(), len(tensor.get_shape()) <= 1
                    if "quant" in key or not (dtype in _FULL_PRECISION or (dtype in _COUNTERS and is_small)):
                        raise ModelUnusable(f"{name}: {key} is {dtype}: quantized weights cannot be exported")
        except SafetensorError as error:
            raise ModelUnusable(f"{name} cannot be read: {error}") from error
    return names


def read_export(folder: Path, form: ExportForm, original: Path) -> Loaded:
    """Load an export as its users would. The base of an adapter is found through the checkpoint in `original`.

    Raises ModelUnusable, also if a tensor is quantized.
    """
    tokenizer = read_tokenizer(ModelSource(str(folder)))
    if form is not ExportForm.GGUF:
        check_precision(folder)
        if form is ExportForm.ADAPTER:
            return load_adapter(folder, read_record(original))
        return read_model(ModelSource(str(folder)), "auto"), tokenizer
    names = [path.name for path in folder.glob("*.gguf")]
    if len(names) != 1:
        raise ModelUnusable(f"the export has {len(names)} GGUF files instead of one")
    try:  # transformers reads GGUF through the package `gguf`
        model = AutoModelForCausalLM.from_pretrained(
            str(folder), gguf_file=names[0], trust_remote_code=False, local_files_only=True
        )
    except ImportError as error:
        raise ModelUnusable(
            f"the GGUF file cannot be verified, because it cannot be read back here: {error}"
        ) from error
    except (OSError, ValueError, KeyError, IndexError, NotImplementedError, struct.error) as error:
        raise ModelUnusable(f"the GGUF file cannot be read back: {error}") from error
    return model.to(best_device()), tokenizer


def write_manifest(folder: Path, checkpoint: Checkpoint, description: ExportDescription) -> dict[str, str]:
    """Write `manifest.json`. Returns the SHA-256 of each other file."""
    files = digests(folder)
    base = None
    if checkpoint.adapter is not None:
        record = AdapterRecord.model_validate(checkpoint.adapter)
        named = {"dtype", "revision", "quantisation", "rank", "alpha", "targets"}
        base = {"name": public_name(record.base), **record.model_dump(include=named)}
    manifest = {
        "format": FORMAT,
        "form": str(description.form),
        "checkpoint": str(checkpoint.id),
        "run": str(checkpoint.run_id),
        "stage": checkpoint.stage,
        "step": checkpoint.step,
        "dtype": description.written.dtype,
        "parameters": description.written.parameters,
        "label": description.written.label,
        "base": base,
        "licence": description.licence or None,
        "system": description.system,
        "files": files,
        "bytes": {name: (folder / name).stat().st_size for name in files},
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2))
    return files


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of each file by name, without the manifest."""
    return {path.name: digest_of(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST}
