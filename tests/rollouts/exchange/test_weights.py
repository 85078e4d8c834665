"""A checkpoint's files for `proctor serve`."""

import io
import zipfile
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.core.artifacts import put_folder
from backend.settings import get_settings
from tests.factories import make_checkpoint, make_policy


@pytest.fixture
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str) -> None:
    monkeypatch.setenv("PROCTOR_ARTIFACTS_URL", str(tmp_path / "artifacts"))
    get_settings.cache_clear()


def test_a_trainer_gets_the_folder_as_a_zip(
    trainer: TestClient, session: Session, tmp_path: Path, artifacts: None
) -> None:
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model.safetensors").write_bytes(b"w" * 1000)
    checkpoint = make_checkpoint(session, make_policy(session))
    put_folder(tmp_path / "weights", checkpoint.artifact)
    answer = trainer.get(f"/api/v1/checkpoints/{checkpoint.id}/weights")
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.read("model.safetensors") == b"w" * 1000


def test_a_checkpoint_that_is_not_there_is_reported(trainer: TestClient) -> None:
    assert trainer.get("/api/v1/checkpoints/01a20024-b2f3-751e-ad2d-b54811d71f0a/weights").status_code == 404
