"""A checkpoint's files on their way out."""

import tempfile
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint
from backend.core import artifacts
from backend.errors import Conflict, NotFound
from backend.rollouts.formats.streams import outgoing

_CHUNK = 1 << 20


def zip_of(session: Session, checkpoint_id: uuid.UUID) -> tuple[str, Iterator[bytes]]:
    """The zip's name and its bytes. Weights do not compress; they are stored as they are."""
    checkpoint = session.get(Checkpoint, checkpoint_id)
    if checkpoint is None:
        raise NotFound("There is no such checkpoint.")
    if checkpoint.unusable:
        raise Conflict(checkpoint.unusable)
    artifact = checkpoint.artifact

    def content() -> Iterator[bytes]:
        with tempfile.TemporaryDirectory(prefix="proctor-weights-") as folder:
            files = artifacts.get_folder(artifact, Path(folder) / "weights")
            yield from outgoing(lambda out: _write(out, files))

    return f"checkpoint-{checkpoint_id.hex[-8:]}.zip", content()


def _write(out: IO[bytes], folder: Path) -> Iterator[None]:
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            with path.open("rb") as file, archive.open(str(path.relative_to(folder)), "w", force_zip64=True) as entry:
                while part := file.read(_CHUNK):
                    entry.write(part)
                    yield
    yield
