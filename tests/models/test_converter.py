"""llama.cpp's converter as a program: found, run, and believed only when it left a file."""

from pathlib import Path

import pytest

from tests.installation import forget_settings
from workers.models.machine import NotConverted, convert, find_converter

WRITES = "import sys; open(sys.argv[sys.argv.index('--outfile') + 1], 'w').write(' '.join(sys.argv[1:]))"
REFUSES = "import sys; sys.exit('BPE pre-tokenizer was not recognized')"


def program(folder: Path, text: str) -> Path:
    path = folder / "convert_hf_to_gguf.py"
    path.write_text(text)
    return path


def test_the_one_of_the_settings_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = program(tmp_path, WRITES)
    monkeypatch.setenv("PROCTOR_GGUF_CONVERTER", str(path))
    forget_settings()
    assert find_converter() == path
    path.unlink()
    assert find_converter() is None


def test_it_is_reported_folder_file_and_precision(tmp_path: Path) -> None:
    convert(program(tmp_path, WRITES), tmp_path / "model", tmp_path / "out.gguf", "bf16")
    told = (tmp_path / "out.gguf").read_text()
    assert told == f"{tmp_path}/model --outfile {tmp_path}/out.gguf --outtype bf16"


def test_what_it_refuses_is_reported_in_its_words(tmp_path: Path) -> None:
    with pytest.raises(NotConverted, match=r"ended with 1: BPE pre-tokenizer was not recognized"):
        convert(program(tmp_path, REFUSES), tmp_path, tmp_path / "out.gguf", "f16")


def test_an_end_without_a_file_is_no_success(tmp_path: Path) -> None:
    with pytest.raises(NotConverted, match="it printed nothing"):
        convert(program(tmp_path, "pass"), tmp_path, tmp_path / "out.gguf", "f16")


def test_a_program_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotConverted, match="did not run"):
        convert(tmp_path / "nothing", tmp_path, tmp_path / "out.gguf", "f16")
