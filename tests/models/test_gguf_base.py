"""A GGUF file as a base model: refused with a reason before any weights are read.

Conversions that need the package gguf are in `tests/training/test_gguf.py`.
"""

import hashlib
import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from backend.domain.training.adapter import AdapterChoice, AdapterKind
from tests.models.gguf_files import LLAMA, Value, write_header
from workers.models import gguf_base, serve_gguf
from workers.models.gguf_base import CannotConvert, PackagedModel, convert_gguf
from workers.models.load import ModelUnusable, load_base, load_folder, start_from_base
from workers.training.checkpoints import save_model

LORA = AdapterChoice(kind=AdapterKind.LORA)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"general.architecture": "warp9"}, "the architecture 'warp9'. These can be converted: .*llama"),
        ({"tokenizer.ggml.tokens": []}, "no tokenizer"),
        ({"tokenizer.ggml.pre": "unheard-of"}, "splits text as unheard-of, which cannot be reproduced"),
        ({"tokenizer.ggml.pre": ""}, "splits text as an unnamed rule"),
    ],
)
def test_a_file_that_cannot_be_converted_is_refused(tmp_path: Path, changes: Mapping[str, Value], reason: str) -> None:
    file = write_header(tmp_path / "model.gguf", {**LLAMA, **changes})
    with pytest.raises(ModelUnusable, match=f"model.gguf (has|splits).*{reason.split(' ', 1)[1]}"):
        start_from_base(str(file), LORA, seed=0)


def test_a_file_without_weights_is_refused(tmp_path: Path) -> None:
    file = write_header(tmp_path / "model.gguf", LLAMA, tensors=())
    with pytest.raises(ModelUnusable, match=r"model\.gguf has no weights"):
        load_base(str(file))


@pytest.mark.parametrize("size", [0, 3, 20, 60])
def test_a_damaged_file_is_refused(tmp_path: Path, size: int) -> None:
    file = write_header(tmp_path / "model.gguf", LLAMA)
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(ModelUnusable, match=r"model\.gguf is not a readable GGUF file"):
        load_base(str(file))


def test_a_header_that_claims_endless_metadata_is_refused(tmp_path: Path) -> None:
    file = write_header(tmp_path / "model.gguf", LLAMA)
    content = bytearray(file.read_bytes())
    content[16:24] = b"\xff" * 8
    file.write_bytes(content)
    with pytest.raises(CannotConvert, match="not a readable GGUF file"):
        convert_gguf(file, tmp_path / "made", dtype=None)  # type: ignore[arg-type]  # refused before it is used


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelUnusable, match=r"there is no file gone\.gguf on this worker"):
        load_base(str(tmp_path / "gone.gguf"))


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a packaged model, whose package can be imported."""
    folder = tmp_path / "made_up_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('this code must not run')")
    file = write_header(folder / "model.gguf", {**LLAMA, "general.architecture": "warp9"})
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(gguf_base, "PACKAGED", {"made-up": PackagedModel("made-up", folder.name, file.name, digest)})
    return file


def test_a_packaged_model_is_found_without_running_its_package(packaged: Path) -> None:
    with pytest.raises(ModelUnusable, match="architecture 'warp9'"):
        load_base("made-up")


def test_a_changed_packaged_model_is_refused(packaged: Path) -> None:
    packaged.write_bytes(packaged.read_bytes() + b"\0")
    with pytest.raises(ModelUnusable, match=r"model\.gguf was changed: .* Install it again: `make instruct`"):
        load_base("made-up")


def test_a_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = PackagedModel("made-up", "no_such_package", "model.gguf", "0" * 64)
    monkeypatch.setattr(gguf_base, "PACKAGED", {"made-up": missing})
    with pytest.raises(ModelUnusable, match=r"package made-up with made-up is not on this worker.*`make instruct`"):
        start_from_base("made-up", LORA, seed=0)


def test_a_tokenizer_of_another_model_is_refused(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    save_model(model, tokenizer, tmp_path)
    described = json.loads((tmp_path / "tokenizer.json").read_text())
    described["added_tokens"].append(
        {**described["added_tokens"][0], "id": model.config.vocab_size + 7, "content": "<|foreign|>"}
    )
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    for load in (lambda: load_folder(tmp_path), lambda: start_from_base(str(tmp_path), LORA, seed=0)):
        with pytest.raises(ModelUnusable, match="the tokenizer belongs to another model"):
            load()


def test_without_llama_cpp_serving_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    request = {"folder": "model.gguf", "name": "m", "host": "127.0.0.1", "port": 0, "token": ""}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(request)))
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    assert serve_gguf.main() == 1
    assert "`make instruct`" in json.loads(capsys.readouterr().out)["error"]
