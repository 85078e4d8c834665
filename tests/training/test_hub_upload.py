"""Uploads to the Hub, against a stand-in of its endpoints: what arrives is what was proven, under the given token."""

import hashlib
import json
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from backend.checkpoints.hub import sealed_token
from backend.checkpoints.tables import Export
from backend.core.artifacts import put_file
from backend.core.session import transaction
from backend.domain.checkpoints.exports import ExportOptions, HubUpload
from backend.domain.ids import new_id
from backend.domain.vocabulary import ExportStatus, PolicyKind, RunKind
from tests.factories import make_checkpoint, make_policy, make_run
from tests.training.hub_stand_in import COMMIT, Hub, running_hub
from workers.tasks import exports as job
from workers.tasks.registry import BODIES, JobContext

FILES = {"model.safetensors": b"weights" * 100, "README.md": b"# Tiny", "inference.py": b"pass"}
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running_hub() as running:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", running.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr("huggingface_hub.utils._headers.get_token", lambda: None)
        yield running


@pytest.fixture
def export(installation: None, tmp_path: Path) -> Export:
    """A proven one whose zip is stored."""
    manifest = {"files": {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}}
    packed = tmp_path / "export.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in {**FILES, "manifest.json": json.dumps(manifest).encode()}.items():
            archive.writestr(name, content)
    put_file(packed, "exports/one.zip")
    with transaction() as session:
        policy = make_policy(session, kind=PolicyKind.LOCAL)
        run = make_run(session, policy=policy, kind=RunKind.TRAINING)
        checkpoint = make_checkpoint(session, policy, run)
        row = Export(checkpoint_id=checkpoint.id, run_id=run.id, status=ExportStatus.COMPLETED)
        row.artifact = "exports/one.zip"
        session.add(row)
        session.flush()
        return row


def upload(export: Export, token: str | None) -> HubUpload:
    """Ask for it, let the job do it, and what it says then."""
    asked = HubUpload(repository="me/tiny", is_private=True, asked_at=datetime.now(UTC))
    secret = sealed_token(token, "me/tiny") if token else None
    with transaction() as session:
        row = session.get_one(Export, export.id)
        row.options = ExportOptions(hub=asked, hub_secret=secret).model_dump(mode="json")
    job.upload(JobContext(new_id(), None, {"export_id": str(export.id)}, 1))
    with transaction() as session:
        options = ExportOptions.model_validate(session.get_one(Export, export.id).options)
    assert options.hub_secret is None
    assert options.hub is not None
    return options.hub


def test_the_job_is_known() -> None:
    assert BODIES["exports.upload"].path == "workers.tasks.exports:upload"


def test_all_files_arrive_in_one_commit_under_the_given_token(export: Export, hub: Hub) -> None:
    done = upload(export, "hf_writes")
    assert (done.status, done.reason) == ("completed", None)
    assert done.url == f"{hub.url}/me/tiny/commit/{COMMIT}"
    assert {name: hub.files[name] for name in FILES} == FILES
    assert "manifest.json" in hub.files
    assert hub.summaries == [f"Proctor export {export.id}: full, verified by its passport"]
    assert (hub.repositories[0]["name"], hub.repositories[0]["organization"]) == ("tiny", "me")
    assert hub.repositories[0].get("private") is True or hub.repositories[0].get("visibility") == "private"
    assert set(hub.seen_tokens) == {"hf_writes"}


def test_a_token_that_may_not_write_is_said_and_not_shown(export: Export, hub: Hub) -> None:
    done = upload(export, "hf_reads")
    assert done.status == "failed"
    assert "The Hub refused" in (done.reason or "")
    assert "hf_reads" not in (done.reason or "")
    assert hub.files == {}


def test_without_any_token_it_shows_where_one_is_wanted(export: Export, hub: Hub) -> None:
    done = upload(export, None)
    assert done.status == "failed"
    assert "HF_TOKEN" in (done.reason or "")


def test_a_hub_that_does_not_answer_is_said(export: Export, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert "cannot be reached" in (upload(export, "hf_writes").reason or "")


def test_a_stored_zip_that_changed_is_not_sent(export: Export, hub: Hub, tmp_path: Path) -> None:
    spoiled = tmp_path / "spoiled.zip"
    with zipfile.ZipFile(tmp_path / "export.zip") as old, zipfile.ZipFile(spoiled, "w") as new:
        for name in old.namelist():
            new.writestr(name, b"other" if name == "model.safetensors" else old.read(name))
    put_file(spoiled, "exports/one.zip")
    assert "differs from the verified files: model.safetensors" in (upload(export, "hf_writes").reason or "")
    assert hub.files == {}


def test_a_job_that_is_given_up_says_so(export: Export) -> None:
    asked = HubUpload(repository="me/tiny", asked_at=datetime.now(UTC))
    with transaction() as session:
        row = session.get_one(Export, export.id)
        row.options = ExportOptions(hub=asked, hub_secret="x").model_dump(mode="json")
        job.give_up_upload(session, JobContext(new_id(), None, {"export_id": str(export.id)}, 5), "the worker is gone")
        options = ExportOptions.model_validate(row.options)
    assert options.hub is not None
    assert (options.hub.status, options.hub.reason, options.hub_secret) == ("failed", "the worker is gone", None)
