"""A whole training run with an adapter on a pretrained base, and its checkpoint in every form, used by a stranger."""

import json
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.checkpoints.tables import Checkpoint, Export
from backend.core.artifacts import open_file
from backend.core.session import transaction
from backend.domain.checkpoints.exports import ExportOptions
from backend.domain.training.adapter import AdapterChoice, AdapterKind
from backend.domain.training.configuration import ModelChoice
from backend.domain.training.presets import PRESETS
from backend.domain.vocabulary import ExportForm, ExportStatus, RunStatus
from backend.settings import get_settings
from tests.training.conftest import checkpoints_of, make_run, run_of
from workers.models.build import build_model, build_tokenizer
from workers.models.load import load_folder, start_from_checkpoint
from workers.training.checkpoints import save_model
from workers.training.export import export
from workers.training.run import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("default")]

NewRun = Callable[..., uuid.UUID]
WORDS = ["You play tic-tac-toe as X. Reply with <move>n</move>.", *(f"<move>{n}</move>" for n in range(1, 10))] * 8


@pytest.fixture(scope="module")
def installation(shared_installation: None) -> None:
    """Several tests share the run and the export."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stand-in for a Hugging Face model: a folder on the worker, in bf16."""
    folder = tmp_path_factory.mktemp("hub") / "pretrained"
    tokenizer = build_tokenizer(WORDS, context=256)
    model = build_model(tokenizer, ModelChoice(context=256, architecture="llama"), seed=5)
    save_model(model.to(torch.bfloat16), tokenizer, folder)
    return folder


def trained(base: Path, kind: str, **choices: Any) -> uuid.UUID:
    run_id = make_run(
        model={"source": "base", "base": str(base)},
        adapter={"kind": kind, "rank": 4, "alpha": 8},
        sft={"learning_rate": 1e-2, "steps": 8},
        grpo={"steps": 2, "beta": 0.05},
        heldout={"every": 2, "tasks": 6},
        **choices,
    )
    train(run_id)
    assert run_of(run_id).status is RunStatus.COMPLETED, run_of(run_id).error
    return run_id


def test_the_preset_for_an_instruct_model_trains_a_model_in_a_folder(installation: None, base: Path) -> None:
    preset = PRESETS["instruct-lora"].configuration.resolved()
    preset["model"]["base"] = str(base)
    preset["grpo"] |= {"steps": 2, "tasks_per_step": 2, "micro_batches": 8}
    preset["heldout"] |= {"every": 2, "tasks": 6}
    run_id = make_run(**preset)
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).error
    saved = checkpoints_of(run_id)
    assert list(saved) == [("untrained", 0), ("grpo", 2)]
    assert all(checkpoint.adapter and checkpoint.adapter["rank"] == 16 for checkpoint in saved.values())


def exported(checkpoint: Checkpoint, form: ExportForm, **options: Any) -> tuple[Export, Path]:
    """The export's row and its unpacked zip."""
    with transaction() as session:
        row = Export(checkpoint_id=checkpoint.id, run_id=checkpoint.run_id, form=form)
        row.options = ExportOptions(**options).model_dump(mode="json")
        session.add(row)
        session.flush()
        export_id = row.id
    export(export_id)
    with transaction() as session:
        row = session.get_one(Export, export_id)
    folder = get_settings().data / f"unpacked-{export_id}"
    if row.artifact:
        with open_file(row.artifact) as stream, zipfile.ZipFile(stream) as archive:
            archive.extractall(folder)
    return row, folder


@pytest.fixture(scope="module")
def beside_base(installation: None, base: Path) -> uuid.UUID:
    """A run that trained an adapter on the base."""
    return trained(base, "lora")


@pytest.fixture(scope="module")
def adapter(beside_base: uuid.UUID) -> tuple[Export, Path]:
    """Its last checkpoint as it is."""
    return exported(checkpoints_of(beside_base)["grpo", 2], ExportForm.ADAPTER, licence="apache-2.0", is_stored=True)


def said(folder: Path, *options: str, cwd: Path) -> str:
    """The replies of `inference.py` in a separate process; it imports nothing of Proctor."""
    script = (folder / "inference.py").read_text()
    assert "from backend" not in script
    assert "from workers" not in script
    command = [
        sys.executable,
        str(folder / "inference.py"),
        "O plays 5.",
        "--max-tokens",
        "6",
        "--json",
        *options,
    ]
    done = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["reply"])


def test_a_run_with_an_adapter_stores_the_base_once_and_goes_through_every_door(
    beside_base: uuid.UUID, adapter: tuple[Export, Path], base: Path, tmp_path: Path
) -> None:
    checkpoints = checkpoints_of(beside_base)
    assert list(checkpoints) == [("untrained", 0), ("sft", 8), ("grpo", 2)]
    for row in checkpoints.values():
        assert row.adapter is not None
        assert (row.adapter["base"], row.adapter["dtype"], row.adapter["rank"]) == (str(base), "bfloat16", 4)
        folder = get_settings().data / "artifacts" / row.artifact
        assert not (folder / "model.safetensors").exists()
        load_folder(folder)
    last = checkpoints["grpo", 2]
    replies = set()
    merged = exported(last, ExportForm.MERGED, licence="apache-2.0", is_stored=True)
    for form, (row, folder) in ((ExportForm.ADAPTER, adapter), (ExportForm.MERGED, merged)):
        assert (row.status, row.reason) == (ExportStatus.COMPLETED, None)
        manifest = json.loads((folder / "manifest.json").read_text())
        assert (manifest["form"], manifest["dtype"], manifest["base"]["name"]) == (form, "bfloat16", "pretrained")
        assert str(base) not in (folder / "manifest.json").read_text() + (folder / "README.md").read_text()
        assert row.card.startswith("---\nlibrary_name: ")
        assert "license: apache-2.0" in row.card
        stored = ExportOptions.model_validate(row.options).stored
        assert (get_settings().data / "artifacts" / str(stored) / "manifest.json").is_file()
        base_option = ("--base", str(base)) if form is ExportForm.ADAPTER else ()
        replies.add(said(folder, *base_option, cwd=tmp_path))
        assert row.passport["heldout"]["tasks"] == 6
        assert bool(row.passport["weights"]) is (form is ExportForm.MERGED)
    assert len(replies) == 1
    row, _ = exported(last, ExportForm.FULL)
    assert row.status is ExportStatus.REFUSED
    assert "only an adapter was trained" in (row.reason or "")


def test_the_script_refuses_another_base(adapter: tuple[Export, Path], base: Path, tmp_path: Path) -> None:
    _, folder = adapter
    other = tmp_path / "other"
    model, tokenizer = load_folder(base)
    save_model(model, tokenizer, other)
    command = [sys.executable, str(folder / "inference.py"), "Hi", "--base", str(other)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert "is not the base model that this adapter was trained on" in done.stderr


def test_whole_weights_become_the_base_of_an_adapter_where_they_lie(new_run: NewRun, base: Path) -> None:
    """From a checkpoint of ours: its artifact is referred to, and the next run trains the adapter on."""
    whole = checkpoints_of(trained(base, "full", recipe="sft"))["sft", 8]
    model, _ = start_from_checkpoint(whole, AdapterChoice(kind=AdapterKind.LORA, rank=4), seed=1)
    assert model.proctor_record.artifact == whole.artifact
    run_id = new_run(
        recipe="sft",
        model={"source": "checkpoint", "checkpoint": str(whole.id)},
        adapter={"kind": "lora", "rank": 4},
        sft={"steps": 4},
    )
    train(run_id)
    row = checkpoints_of(run_id)["sft", 4]
    assert row.adapter is not None
    assert (row.adapter["base"], row.adapter["artifact"]) == (f"checkpoint:{whole.id}", whole.artifact)
    made, _ = exported(row, ExportForm.MERGED)
    assert (made.status, made.reason) == (ExportStatus.COMPLETED, None)
    further = new_run(
        recipe="sft",
        model={"source": "checkpoint", "checkpoint": str(row.id)},
        adapter={"kind": "lora"},
        sft={"steps": 4},
    )
    train(further)
    again = checkpoints_of(further)["sft", 4]
    assert again.adapter is not None
    assert (again.adapter["artifact"], again.adapter["rank"]) == (whole.artifact, 4)


def test_a_run_with_a_4_bit_base_is_exported_in_both_ways(installation: None, base: Path, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    run_id = trained(base, "qlora")
    last = checkpoints_of(run_id)["grpo", 2]
    assert last.adapter is not None
    assert last.adapter["quantisation"] == {"method": "bitsandbytes", "type": "nf4", "is_double": True}
    for form in (ExportForm.MERGED, ExportForm.MERGED_DEQUANTISED, ExportForm.ADAPTER):
        row, folder = exported(last, form)
        assert (row.status, row.reason) == (ExportStatus.COMPLETED, None)
        manifest = json.loads((folder / "manifest.json").read_text())
        assert bool(manifest["label"]) is (form is ExportForm.MERGED_DEQUANTISED)
        said(folder, *(("--base", str(base)) if form is ExportForm.ADAPTER else ()), cwd=tmp_path)
