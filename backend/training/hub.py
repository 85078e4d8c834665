"""Sending a proven export to the Hugging Face Hub: what would be sent, and asking for it. A worker does it."""

import base64
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.orm import Session

from backend.db.models import Export
from backend.domain.exports import ExportOptions, HubUpload
from backend.domain.vocabulary import ExportStatus, Queue
from backend.errors import Conflict
from backend.evaluations.policies.secrets import seal, unseal
from backend.events import announce
from backend.queue import enqueue
from backend.training.downloads import NotExported
from backend.training.export_forms import HubQuery, HubRequest
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
    secret = base64.b64encode(seal(token, _bound_to(request.repository))).decode() if token else None
    export.options = options.model_copy(update={"hub": upload, "hub_secret": secret}).model_dump(mode="json")
    enqueue(session, UPLOAD_JOB, queue=Queue.GPU, arguments={"export_id": str(export.id)})
    audit(session, actor, "export.upload", "export", export.id, repository=request.repository)
    announce(session, f"export:{export.id}")
    return upload


def token_of(options: ExportOptions) -> str | None:
    """The upload's own token in the clear, for the worker that sends; None: the worker's."""
    if options.hub is None or options.hub_secret is None:
        return None
    return unseal(base64.b64decode(options.hub_secret), _bound_to(options.hub.repository))


def message_of(export: Export) -> str:
    return f"Proctor export {export.id}: {export.form}, proven by its passport"


def _bound_to(repository: str) -> str:
    """A token copied to another repository's upload cannot be opened there."""
    return f"hub:{repository}"
