"""The job `exports.run`: lets a process of its own make the export and prove it."""

import uuid
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from backend.checkpoints.tables import Export
from backend.core.events import announce
from backend.core.session import transaction
from backend.domain.vocabulary import ExportStatus
from workers.tasks.children import must_run_child
from workers.tasks.registry import JobContext

MODULE = "workers.training.export"
_OPEN = {ExportStatus.QUEUED, ExportStatus.RUNNING}


def run(context: JobContext) -> None:
    """The job's body. A repeated attempt makes the export anew; one that is over stays as it is."""
    export_id = uuid.UUID(context.arguments["export_id"])
    with transaction() as session:
        export = session.get_one(Export, export_id, with_for_update=True)
        if export.status not in _OPEN:
            return
        export.status = ExportStatus.RUNNING
        announce(session, f"export:{export_id}")
    must_run_child(MODULE, [str(export_id)], run_id=None)


def give_up(session: Session, context: JobContext, reason: str) -> None:
    """Called when the job will not be tried again."""
    export = session.get(Export, uuid.UUID(context.arguments["export_id"]))
    if export is None or export.status not in _OPEN:
        return
    export.status = ExportStatus.FAILED
    export.reason = reason
    export.ended_at = datetime.now(UTC)
    announce(session, f"export:{export.id}")
