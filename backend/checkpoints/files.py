"""Downloads: the zip of an export, and the weights of a checkpoint."""

import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from sqlalchemy.orm import Session

from backend.checkpoints.tables import Checkpoint, Export
from backend.core import artifacts
from backend.domain.vocabulary import ExportStatus
from backend.errors import Conflict, NotFound
from backend.operations.schemas import Download
from backend.rollouts.formats.streams import outgoing

_CHUNK = 1 << 20


class NotExported(Conflict):
    """This export was not verified, so there is nothing to download."""


def export_zip(export: Export) -> Download:
    """The zip of a verified export: weights, tokenizer, model card, manifest, passport and inference.py."""
    if export.status is not ExportStatus.COMPLETED or export.artifact is None:
        raise NotExported
    try:
        stream = artifacts.open_file(export.artifact)
    except FileNotFoundError as error:
        raise NotFound("The files of this export are missing from the artifact store.") from error
    name = f"proctor-export-{export.id.hex[-8:]}.zip"
    return Download(name, "application/zip", lambda _: artifacts.read_parts(stream))


def weights_zip(checkpoint: Checkpoint) -> Download:
    """The folder of a checkpoint as a zip. Weights do not compress, so they are stored as they are."""
    if checkpoint.unusable:
        raise Conflict(checkpoint.unusable)
    artifact = checkpoint.artifact

    def content(_: Session) -> Iterator[bytes]:
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

    return Download(f"checkpoint-{checkpoint.id.hex[-8:]}.zip", "application/zip", content)
