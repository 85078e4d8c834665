"""What pages and scripts look at alike: the lessons that a request chooses, a file's first conversations, its text."""

from collections.abc import Iterator
from itertools import islice

from fastapi.responses import StreamingResponse
from sqlalchemy.orm import Session, joinedload

from backend.core import artifacts
from backend.domain.training.examples import EXAMPLES, Conversation
from backend.environments.tables import EnvironmentVersion
from backend.errors import InvalidInput, NotFound
from backend.training.examples.preview import LessonPreview, preview
from backend.training.examples.sources import conversations_in
from backend.training.schemas import TrainingRequest, resolve_configuration
from backend.training.tables import LessonFile

_CHUNK = 1 << 20
_BLOCKS = ("recipe", "seed", "model", "sft")
"""What of a configuration says what is learned; what is wrong elsewhere is told where the run is started."""


def preview_of(session: Session, request: TrainingRequest) -> LessonPreview:
    """Raises InvalidInput."""
    version = session.get(EnvironmentVersion, request.version_id, options=[joinedload(EnvironmentVersion.environment)])
    if version is None:
        raise InvalidInput(fields={"version_id": "There is no such environment version."})
    choices = {name: value for name, value in request.configuration.items() if name in _BLOCKS}
    return preview(session, version, resolve_configuration(request.preset, choices))


def examples_of(row: LessonFile) -> list[Conversation]:
    try:
        return list(islice(conversations_in(row), EXAMPLES))
    except FileNotFoundError as error:
        raise NotFound("The conversations of this file are gone from the artifact store.") from error


def download_of(row: LessonFile) -> StreamingResponse:
    def content() -> Iterator[bytes]:
        with artifacts.open_file(row.artifact) as file:
            while part := file.read(_CHUNK):
                yield part

    headers = {"Content-Disposition": f'attachment; filename="lessons-{row.id.hex[-8:]}.jsonl"'}
    return StreamingResponse(content(), media_type="application/x-ndjson", headers=headers)
