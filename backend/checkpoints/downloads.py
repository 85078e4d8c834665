"""Handing out an export's zip."""

from collections.abc import Iterator
from typing import BinaryIO

from fastapi.responses import StreamingResponse

from backend.checkpoints.tables import Export
from backend.core import artifacts
from backend.domain.vocabulary import ExportStatus
from backend.errors import Conflict, NotFound

_CHUNK = 1 << 20


class NotExported(Conflict):
    """This export has not passed its re-examination; there is nothing to download."""


def export_zip(export: Export) -> StreamingResponse:
    """The zip as a download. Only a proven export is handed out."""
    if export.status is not ExportStatus.COMPLETED or export.artifact is None:
        raise NotExported
    try:
        stream = artifacts.open_file(export.artifact)
    except FileNotFoundError as error:
        raise NotFound("The files of this export are gone from the artifact store.") from error
    name = f"proctor-export-{export.id.hex[-8:]}.zip"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(_chunks(stream), media_type="application/zip", headers=headers)


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    with stream:
        while chunk := stream.read(_CHUNK):
            yield chunk
