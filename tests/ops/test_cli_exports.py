"""A checkpoint that was really trained leaves by the command line: as a zip, unpacked here, and kept in the store."""

import hashlib
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.ops.commands import Command
from tests.ops.living import Living
from workers.models.load import load_folder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

SMALL = {
    "recipe": "sft",
    "model.context": "192",
    "sft.episodes": "48",
    "sft.steps": "8",
    "sft.batch": "16",
    "heldout.tasks": "6",
}
NAME = "leaves"
PARTS = {"model.safetensors", "config.json", "tokenizer.json", "manifest.json", "passport.json", "inference.py"}


@pytest.fixture
def run_id(command: Command) -> str:
    """Of a small training run, the same for all tests."""
    known = [run["id"] for run in command("runs", "--kind", "training", "--json").json if run["name"] == NAME]
    if known:
        return str(known[0])
    choices = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    reason = ("--without-certificate", "Only its weights are wanted.")
    trained = command("train", "tictactoe", *choices, *reason, "--name", NAME, "--json")
    assert (trained.status, trained.json["status"]) == (0, "completed"), trained.err
    return str(trained.json["id"])


def check_files(folder: Path) -> None:
    """The complete export: each file matches its manifest, and the weights load."""
    assert {path.name for path in folder.iterdir()} >= PARTS
    files: dict[str, Any] = json.loads((folder / "manifest.json").read_text())["files"]
    for name, digest in files.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    passport = json.loads((folder / "passport.json").read_text())
    assert (passport["passed"], passport["heldout"]["tasks"]) == (True, 6)
    load_folder(folder)


def test_unpacked_it_is_a_folder_here_and_stored_it_is_one_there(
    command: Command, living: Living, run_id: str, tmp_path: Path
) -> None:
    made = command("export", run_id, "--to", str(tmp_path / "out"), "--unpack", "--store", "--json")
    assert made.status == 0, made.err
    folder = Path(made.json["file"])
    assert list((tmp_path / "out").iterdir()) == [folder], "no zip stays beside it"
    assert made.json["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    check_files(folder)
    kept = living.data / "artifacts" / "exports" / made.json["id"]
    check_files(kept)
    assert {path.name for path in kept.iterdir()} == {path.name for path in folder.iterdir()}


def test_otherwise_it_is_a_zip_and_the_store_has_no_folder(
    command: Command, living: Living, run_id: str, tmp_path: Path
) -> None:
    made = command("export", run_id, "--to", str(tmp_path), "--json")
    assert made.status == 0, made.err
    archive = Path(made.json["file"])
    assert (archive.suffix, archive.stat().st_size) == (".zip", made.json["bytes"])
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(tmp_path / "unpacked")
    check_files(tmp_path / "unpacked")
    assert not (living.data / "artifacts" / "exports" / made.json["id"]).exists()
