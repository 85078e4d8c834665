"""Made-up GGUF files: a header with any metadata, and the names of tensors without data."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

Value = str | int | list[str]
LLAMA: Mapping[str, Value] = {
    "general.architecture": "llama",
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["a", "b"],
}


def write_header(file: Path, metadata: Mapping[str, Value], tensors: Sequence[str] = ("token_embd.weight",)) -> Path:
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts.append(_string(key))
        match value:
            case str():
                parts += [struct.pack("<I", 8), _string(value)]
            case int():
                parts.append(struct.pack("<II", 4, value))
            case list():
                parts += [struct.pack("<IIQ", 9, 8, len(value)), *map(_string, value)]
    for name in tensors:
        parts += [_string(name), struct.pack("<IQIQ", 1, 32, 0, 0)]
    file.write_bytes(b"".join(parts))
    return file


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()
