"""Sending a proven export to the Hugging Face Hub: what would be sent, and asking for it. A worker does it."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session

from backend.checkpoints.downloads import NotExported
from backend.checkpoints.export_schemas import HubQuery, HubRequest
from backend.checkpoints.hub_tokens import message_of, sealed_token
from backend.checkpoints.tables import Export
from backend.core.events import announce
from backend.core.queue import enqueue
from backend.domain.checkpoints.exports import ExportOptions, HubUpload
from backend.domain.vocabulary import ExportStatus, Queue
from backend.errors import Conflict
from backend.web.audit import audit
from backend.web.identity import Actor

UPLOAD_JOB = "exports.upload"


class UploadUnderWay(Conflict):
    """This export is being uploaded already; wait until that is over."""


@dataclass(frozen=True, slots=True)
class HubPlan:
    """What an upload would send."""

    repository: str
    is_private: bool
    message: str
    """Of the commit."""
    files: dict[str, int]
    """Bytes by name."""
    bytes: int
    is_sent: bool = False

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def plan_upload(export: Export, query: HubQuery) -> HubPlan:
    """Nothing is sent, and the Hub is not asked. Raises NotExported before the export is proven."""
    if export.status is not ExportStatus.COMPLETED:
        raise NotExported
    files = dict(export.passport.get("sizes", {}))
    return HubPlan(query.repository, query.is_private, message_of(export), files, sum(files.values()))


def start_upload(session: Session, actor: Actor, export: Export, request: HubRequest) -> HubUpload:
    """Queue the upload of a proven export."""
    plan_upload(export, request)
    session.refresh(export, with_for_update={"of": Export})
    options = ExportOptions.model_validate(export.options)
    if options.hub is not None and not options.hub.is_over:
        raise UploadUnderWay
    upload = HubUpload(repository=request.repository, is_private=request.is_private, asked_at=datetime.now(UTC))
    token = request.token.get_secret_value().strip() if request.token else ""
    secret = sealed_token(token, request.repository) if token else None
    export.options = options.model_copy(update={"hub": upload, "hub_secret": secret}).model_dump(mode="json")
    enqueue(session, UPLOAD_JOB, queue=Queue.GPU, arguments={"export_id": str(export.id)})
    audit(session, actor, "export.upload", "export", export.id, repository=request.repository)
    announce(session, f"export:{export.id}")
    return upload
