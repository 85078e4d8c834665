"""The job `exports.upload`: sends a proven export to the Hugging Face Hub, in one commit."""

import json
import tempfile
import uuid
import zipfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from httpx2 import HTTPError
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError
from sqlalchemy.orm import Session

from backend.checkpoints.hub import message_of, token_of
from backend.checkpoints.tables import Export
from backend.core.artifacts import open_file
from backend.core.events import announce
from backend.core.sealing import SecretUnreadable
from backend.core.session import transaction
from backend.domain.checkpoints.exports import ExportOptions, HubUpload
from workers.storage.digests import digest_of
from workers.tasks.registry import JobContext

NO_TOKEN = "The Hub wants a token that may write: give one with the upload, or set HF_TOKEN where the worker runs."


class NotSent(RuntimeError):
    """The export is not on the Hub."""


def run(context: JobContext) -> None:
    """The job's body. What goes wrong is said on the export; a person tries again."""
    export_id = uuid.UUID(context.arguments["export_id"])
    with transaction() as session:
        export = session.get_one(Export, export_id, with_for_update=True)
        options = ExportOptions.model_validate(export.options)
        upload, artifact, message = options.hub, export.artifact, message_of(export)
        if upload is None or upload.is_over or artifact is None:
            return
        _keep(session, export, status="running")
    try:
        url = _send(artifact, upload, token_of(options), message)
    except (NotSent, SecretUnreadable) as error:
        _end(export_id, status="failed", reason=str(error))
    else:
        _end(export_id, status="completed", url=url)


def give_up(session: Session, context: JobContext, reason: str) -> None:
    """Called when the job will not be tried again."""
    export = session.get(Export, uuid.UUID(context.arguments["export_id"]))
    if export is not None:
        _keep(session, export, status="failed", reason=reason, ended_at=datetime.now(UTC))


def _send(artifact: str, upload: HubUpload, token: str | None, message: str) -> str:
    """The commit's address. Raises NotSent."""
    api = HfApi(token=token)
    with tempfile.TemporaryDirectory(prefix="proctor-hub-") as folder:
        _unpack(artifact, Path(folder))
        try:
            api.create_repo(upload.repository, repo_type="model", private=upload.is_private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=upload.repository, repo_type="model", folder_path=folder, commit_message=message
            )
        except LocalTokenNotFoundError as error:
            raise NotSent(NO_TOKEN) from error
        except HfHubHTTPError as error:
            status = error.response.status_code if error.response is not None else 0
            hint = f" {NO_TOKEN}" if status in {401, 403} else ""
            raise NotSent(f"The Hub refused: {error}{hint}"[:1000]) from error
        except (HTTPError, OSError) as error:
            raise NotSent(f"The Hub cannot be reached: {error}"[:1000]) from error
    return str(commit)


def _unpack(artifact: str, folder: Path) -> None:
    """The stored zip, once more against its manifest: what is sent is what was proven."""
    with open_file(artifact) as stream, zipfile.ZipFile(stream) as archive:
        archive.extractall(folder)
    files: Mapping[str, str] = json.loads((folder / "manifest.json").read_text())["files"]
    if changed := [name for name, digest in files.items() if digest_of(folder / name) != digest]:
        raise NotSent(f"The stored zip does not hold what was proven: {', '.join(changed)}")


def _end(export_id: uuid.UUID, **found: Any) -> None:
    with transaction() as session:
        _keep(session, session.get_one(Export, export_id), ended_at=datetime.now(UTC), **found)


def _keep(session: Session, export: Export, **found: Any) -> None:
    """The token is forgotten as soon as the upload is over."""
    options = ExportOptions.model_validate(export.options)
    if options.hub is None:
        return
    upload = options.hub.model_copy(update=found)
    secret = None if upload.is_over else options.hub_secret
    export.options = options.model_copy(update={"hub": upload, "hub_secret": secret}).model_dump(mode="json")
    announce(session, f"export:{export.id}")
