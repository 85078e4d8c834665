"""Downloads: the zip of an export, and the weights of a checkpoint."""

import tempfile
import uuid
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fastapi.responses import StreamingResponse
from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint, Export
from backend.core import artifacts
from backend.domain.vocabulary import ExportStatus
from backend.errors import Conflict, NotFound
from backend.rollouts.formats.streams import outgoing

_CHUNK = 1 << 20


class NotExported(Conflict):
    """This export was not verified, so there is nothing to download."""


def export_zip(export: Export) -> StreamingResponse:
    """Stream the zip of a verified export: weights, tokenizer, model card, manifest, passport and inference.py."""
    if export.status is not ExportStatus.COMPLETED or export.artifact is None:
        raise NotExported
    try:
        stream = artifacts.open_file(export.artifact)
    except FileNotFoundError as error:
        raise NotFound("The files of this export are missing from the artifact store.") from error

    def chunks() -> Iterator[bytes]:
        with stream:
            while chunk := stream.read(_CHUNK):
                yield chunk

    return _zip_response(f"proctor-export-{export.id.hex[-8:]}.zip", chunks())


def weights_zip(session: Session, checkpoint_id: uuid.UUID) -> StreamingResponse:
    """Stream the folder of a checkpoint as a zip. Weights do not compress, so they are stored as they are."""
    checkpoint = session.get(Checkpoint, checkpoint_id)
    if checkpoint is None:
        raise NotFound("There is no such checkpoint.")
    if checkpoint.unusable:
        raise Conflict(checkpoint.unusable)
    artifact = checkpoint.artifact

    def content() -> Iterator[bytes]:
        with tempfile.TemporaryDirectory(prefix="proctor-weights-") as temporary:
            folder = artifacts.get_folder(artifact, Path(temporary) / "weights")

            def write(out: IO[bytes]) -> Iterator[None]:
                with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
                    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                        name = str(path.relative_to(folder))
                        with path.open("rb") as file, archive.open(name, "w", force_zip64=True) as entry:
                            while part := file.read(_CHUNK):
                                entry.write(part)
                                yield
                yield

            yield from outgoing(write)

    return _zip_response(f"checkpoint-{checkpoint_id.hex[-8:]}.zip", content())


def _zip_response(name: str, content: Iterator[bytes]) -> StreamingResponse:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(content, media_type="application/zip", headers=headers)
