"""Exports: the zip holds what was proven; what is not the checkpoint is refused."""

import hashlib
import json
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest
from safetensors.torch import load_file, save_file
from sqlalchemy import update

from backend.checkpoints.tables import Checkpoint, Export
from backend.core.artifacts import get_folder, open_file
from backend.core.session import transaction
from backend.domain.checkpoints.transfer import TransferReport
from backend.domain.ids import new_id
from backend.domain.vocabulary import ExportForm, ExportStatus, Phase, RunStatus
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from tests.checkpoints.transfer_worlds import finished_report
from tests.training.conftest import checkpoints_of, make_run, run_of
from workers.models.load import load_folder
from workers.tasks import exports
from workers.tasks.registry import JobContext
from workers.training.export import export, pack
from workers.training.exporting.files import ExportDescription, WrittenExport, digests, write_export, write_manifest
from workers.training.passport import PassportRequest, issue
from workers.training.run import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]


class Made(NamedTuple):
    """An export that was handed out, and its files."""

    row: Export
    folder: Path


TRANSFER = finished_report()


@pytest.fixture(scope="module")
def installation(shared_installation: None) -> None:
    """All tests export the same checkpoint."""


@pytest.fixture(scope="module")
def checkpoint(installation: None) -> Checkpoint:
    """The warm-up's checkpoint of a small run, with its held-out evaluation."""
    run_id = make_run(recipe="sft")
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    return checkpoints_of(run_id)["sft", 12]


@pytest.fixture(scope="module")
def made(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Made:
    export_id = ask_for_export(checkpoint)
    with transaction() as session:
        session.get_one(Export, export_id).transfer = TRANSFER.model_dump(mode="json")
    exports.run(JobContext(new_id(), None, {"export_id": str(export_id)}, 1))
    row = export_of(export_id)
    assert (row.status, row.reason) == (ExportStatus.COMPLETED, None)
    assert row.artifact is not None
    folder = tmp_path_factory.mktemp("unpacked")
    with open_file(row.artifact) as stream, zipfile.ZipFile(stream) as archive:
        archive.extractall(folder)
    return Made(row, folder)


def ask_for_export(checkpoint: Checkpoint) -> uuid.UUID:
    with transaction() as session:
        row = Export(checkpoint_id=checkpoint.id, run_id=checkpoint.run_id)
        session.add(row)
        session.flush()
        return row.id


def export_of(export_id: uuid.UUID) -> Export:
    with transaction() as session:
        return session.get_one(Export, export_id)


def passport_request(checkpoint: Checkpoint, folder: Path) -> PassportRequest:
    original = get_folder(checkpoint.artifact, folder / "original")
    write_export(ExportForm.FULL, original, folder / "made")
    return PassportRequest(str(folder / "made"), str(original), str(checkpoint.id), digests(folder / "made"))


def test_the_zip_is_whole_proven_and_loads(made: Made) -> None:
    manifest = json.loads((made.folder / "manifest.json").read_text())
    assert set(manifest["files"]) >= {
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "README.md",
        "passport.json",
        "inference.py",
    }
    for name, digest in manifest["files"].items():
        assert hashlib.sha256((made.folder / name).read_bytes()).hexdigest() == digest
    _, tokenizer = load_folder(made.folder)
    assert tokenizer.chat_template


def test_the_passport_shows_what_was_compared(made: Made) -> None:
    passport = made.row.passport
    assert passport["passed"] is True
    assert passport["likeness"]["max_logit_difference"] == 0.0
    assert passport["likeness"]["tokens"] > 100
    assert passport["heldout"]["tasks"] == 9
    assert passport["heldout"]["difference"]["mean"] == pytest.approx(0, abs=1e-6)


def test_the_card_states_data_results_and_safeguards(made: Made) -> None:
    card = made.row.card
    assert card.startswith("---\nlibrary_name: transformers")
    for text in (
        "scripted policy `teacher`, 48 episodes",
        "On 9 held-out tasks",
        "untrained 0",
        "sft 12 (this checkpoint)",
    ):
        assert text in card
    assert "none: the environment's checks were never run" in card


def test_the_transfer_report_is_in_the_folder_and_on_the_card(made: Made) -> None:
    assert TransferReport.model_validate_json((made.folder / "transfer.json").read_text()) == TRANSFER
    assert "transfer.json" in json.loads((made.folder / "manifest.json").read_text())["files"]
    for text in (
        "## Transfer",
        "**The checkpoint got worse on game_0 v1: reward -0.200",
        "| `game_0` v1 (trained on it) | worse | 0.500 → 0.300, -0.200 (-0.300 to -0.100) |",
        "| 40 | 0.83 for 0.1 |",
        "| passed an impossible task | 0 of 16 | 3 of 16 | +18.8%",
        "| `game_1` v1 | not played | – | – | – | – | – |",
        "- game_1 v1: The budget of 80 rollouts leaves fewer than two tasks.",
    ):
        assert text in made.row.card


def test_a_file_that_changed_after_it_was_written_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    request = passport_request(checkpoint, tmp_path)
    weights = Path(request.export) / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 0x40
    weights.write_bytes(content)
    passport = issue(request)
    assert not passport.passed
    assert passport.reason == "files changed after they were written: model.safetensors"


def test_a_corrupted_weight_is_refused_even_with_a_fitting_hash(checkpoint: Checkpoint, tmp_path: Path) -> None:
    request = passport_request(checkpoint, tmp_path)
    made = Path(request.export)
    tensors = load_file(made / "model.safetensors")
    name = next(name for name in tensors if name.endswith("c_fc.weight"))
    tensors[name][0] *= -1
    save_file(tensors, made / "model.safetensors", metadata={"format": "pt"})
    passport = issue(PassportRequest(request.export, request.original, request.checkpoint_id, digests(made)))
    assert not passport.passed
    assert "its logits differ" in (passport.reason or "")


def test_another_tokenizer_is_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    request = passport_request(checkpoint, tmp_path)
    template = Path(request.export) / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    passport = issue(PassportRequest(request.export, request.original, request.checkpoint_id, digests(template.parent)))
    assert passport.reason == "the exported tokenizer is not the checkpoint's"


@contextmanager
def raised_rewards(run_id: uuid.UUID | None) -> Iterator[None]:
    """Meanwhile all stored held-out rewards of the run are higher by 0.3."""
    of_examination = update(Rollout).where(Rollout.run_id == run_id, Rollout.phase == Phase.HELDOUT)
    with transaction() as session:
        session.execute(of_examination.values(reward=Rollout.reward + 0.3))
    try:
        yield
    finally:
        with transaction() as session:
            session.execute(of_examination.values(reward=Rollout.reward - 0.3))


@pytest.fixture
def other_rewards(checkpoint: Checkpoint) -> Iterator[None]:
    """Files and model agree, but the stored held-out rewards are those of another policy."""
    with raised_rewards(checkpoint.run_id):
        yield


def test_a_checkpoint_that_plays_otherwise_than_its_heldout_evaluation_is_refused(
    checkpoint: Checkpoint, other_rewards: None
) -> None:
    export_id = ask_for_export(checkpoint)
    assert export(export_id) is ExportStatus.REFUSED
    row = export_of(export_id)
    assert "held-out reward of the reloaded model differs" in (row.reason or "")
    assert row.artifact is None
    assert row.passport["passed"] is False


def test_a_checkpoint_whose_rollouts_were_not_stored_is_held_against_its_own_play(
    installation: None, tmp_path: Path
) -> None:
    """One of several of the warm-up: only the held-out evaluations of the chosen one and the untrained policy are
    stored.
    """
    run_id = make_run(recipe="sft", sft={"examine_every": 6})
    assert train(run_id).status is RunStatus.COMPLETED, run_of(run_id).reason
    saved = checkpoints_of(run_id)
    (left,) = [saved["sft", step] for step in (6, 12) if saved["sft", step].heldout["training_step"] is None]
    with raised_rewards(run_id):
        passport = issue(passport_request(left, tmp_path))
    assert passport.passed, passport.reason
    heldout = passport.heldout
    assert heldout["before"]["reward"] == left.heldout["reward"] == heldout["after"]["reward"]
    assert (heldout["difference"]["mean"], heldout["difference"]["count"]) == (0.0, 9)
    assert passport.likeness["tokens"] > 100
    assert checkpoints_of(run_id)["sft", left.step].heldout == left.heldout


def test_a_checkpoint_of_a_stop_is_evaluated_when_it_is_exported(installation: None) -> None:
    run_id = make_run(recipe="grpo")
    with transaction() as session:
        session.get_one(Run, run_id).stop_requested_at = datetime.now(UTC)
    assert train(run_id).status is RunStatus.STOPPED
    saved = checkpoints_of(run_id)["grpo", 1]
    assert not saved.heldout, "a stop is quick"
    export_id = ask_for_export(saved)
    assert export(export_id) is ExportStatus.COMPLETED, export_of(export_id).reason
    row, saved = export_of(export_id), checkpoints_of(run_id)["grpo", 1]
    heldout = row.passport["heldout"]
    assert heldout["before"]["reward"] == heldout["after"]["reward"] == saved.heldout["reward"]
    assert heldout["before"]["reward"]["low"] <= heldout["before"]["reward"]["mean"] == saved.heldout_reward
    assert (heldout["tasks"], heldout["difference"]["mean"]) == (9, 0.0)
    assert "grpo 1 (this checkpoint)" in row.card
    assert sum(each.is_best for each in checkpoints_of(run_id).values()) == 1


def test_an_export_whose_job_is_given_up_failed(checkpoint: Checkpoint) -> None:
    export_id = ask_for_export(checkpoint)
    with transaction() as session:
        exports.give_up(session, JobContext(new_id(), None, {"export_id": str(export_id)}, 5), "out of memory")
    row = export_of(export_id)
    assert (row.status, row.reason) == (ExportStatus.FAILED, "out of memory")


def test_a_zip_is_the_same_for_the_same_files(checkpoint: Checkpoint, tmp_path: Path) -> None:
    request = passport_request(checkpoint, tmp_path)
    made = Path(request.export)
    files = write_manifest(made, checkpoint, ExportDescription(ExportForm.FULL, WrittenExport(1, "float32"), ""))
    for name in ("one.zip", "two.zip"):
        pack(made, tmp_path / name, files)
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
