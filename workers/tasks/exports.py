"""The jobs `exports.run`, which makes and verifies an export, and `exports.upload`, which sends it to the Hub."""

import json
import tempfile
import uuid
import zipfile
from datetime import UTC, datetime
from pathlib import Path

from httpx2 import HTTPError
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError
from sqlalchemy.orm import Session

from backend.checkpoints.hub import message_of, token_of
from backend.checkpoints.tables import Export
from backend.core.artifacts import open_file
from backend.core.events import announce, topic_of
from backend.core.sealing import SecretUnreadable
from backend.core.session import transaction
from backend.domain.checkpoints.exports import ExportOptions
from backend.domain.vocabulary import ExportStatus
from workers.storage.digests import digest_of
from workers.tasks.children import must_run_child
from workers.tasks.registry import JobContext

MODULE = "workers.training.export"
TOKEN_REQUIRED = "The Hub requires a token with write access. Pass one with the upload, or set HF_TOKEN on the worker."
_UNFINISHED = {ExportStatus.QUEUED, ExportStatus.RUNNING}


def run(context: JobContext) -> None:
    """Make the export in a separate process. Another attempt starts again; a finished export is not changed."""
    export_id = uuid.UUID(context.arguments["export_id"])
    with transaction() as session:
        export = session.get_one(Export, export_id, with_for_update=True)
        if export.status not in _UNFINISHED:
            return
        export.status = ExportStatus.RUNNING
        announce(session, topic_of("export", export.id))
    must_run_child(MODULE, [str(export_id)], run_id=None, has_children=True)


def give_up(session: Session, context: JobContext, reason: str) -> None:
    """Called when the export will not be tried again."""
    export = session.get(Export, uuid.UUID(context.arguments["export_id"]))
    if export is None or export.status not in _UNFINISHED:
        return
    export.status, export.reason, export.ended_at = ExportStatus.FAILED, reason, datetime.now(UTC)
    announce(session, topic_of("export", export.id))


def upload(context: JobContext) -> None:
    """Upload an export. A failure is recorded with the export; a team member can try again."""
    export_id = uuid.UUID(context.arguments["export_id"])
    with transaction() as session:
        export = session.get_one(Export, export_id, with_for_update=True)
        options = ExportOptions.model_validate(export.options)
        target, artifact, message = options.hub, export.artifact, message_of(export)
        if target is None or target.is_over or artifact is None:
            return
        _update_upload(session, export, status="running")
    url = reason = ""
    with tempfile.TemporaryDirectory(prefix="proctor-hub-") as folder:
        with open_file(artifact) as stream, zipfile.ZipFile(stream) as archive:
            archive.extractall(folder)
        files: dict[str, str] = json.loads((Path(folder) / "manifest.json").read_text())["files"]
        changed = [name for name, digest in files.items() if digest_of(Path(folder) / name) != digest]
        try:
            api = HfApi(token=token_of(options))
            if changed:
                reason = f"The stored zip differs from the verified files: {', '.join(changed)}"
            else:
                api.create_repo(target.repository, repo_type="model", private=target.is_private, exist_ok=True)
                # the files of the stored zip in one commit
                url = str(
                    api.upload_folder(
                        repo_id=target.repository, repo_type="model", folder_path=folder, commit_message=message
                    )
                )
        except SecretUnreadable as error:
            reason = str(error)
        except LocalTokenNotFoundError:
            reason = TOKEN_REQUIRED
        except HfHubHTTPError as error:
            status = error.response.status_code if error.response is not None else 0
            hint = f" {TOKEN_REQUIRED}" if status in {401, 403} else ""
            reason = f"The Hub refused: {error}{hint}"[:1000]
        except (HTTPError, OSError) as error:
            reason = f"The Hub cannot be reached: {error}"[:1000]
    result = {"status": "completed", "url": url} if url else {"status": "failed", "reason": reason}
    with transaction() as session:
        _update_upload(session, session.get_one(Export, export_id), ended_at=datetime.now(UTC), **result)


def give_up_upload(session: Session, context: JobContext, reason: str) -> None:
    """Called when the upload will not be tried again."""
    export = session.get(Export, uuid.UUID(context.arguments["export_id"]))
    if export is not None:
        _update_upload(session, export, status="failed", reason=reason, ended_at=datetime.now(UTC))


def _update_upload(session: Session, export: Export, **fields: object) -> None:
    """Record the state of the upload. Its token is deleted as soon as it has finished."""
    options = ExportOptions.model_validate(export.options)
    if options.hub is not None:
        target = options.hub.model_copy(update=fields)
        secret = None if target.is_over else options.hub_secret
        export.options = options.model_copy(update={"hub": target, "hub_secret": secret}).model_dump(mode="json")
        announce(session, topic_of("export", export.id))
