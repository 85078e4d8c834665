"""Operations on imports: foreign packages that become environments."""

import base64
import uuid

from sqlalchemy.orm import Session

from backend.domain.environments.import_report import ImportReport
from backend.domain.environments.proposals import propose
from backend.domain.vocabulary import Role
from backend.environments import imports, schemas
from backend.environments.import_sources import MAX_UPLOAD_BYTES
from backend.environments.tables import EnvironmentImport
from backend.errors import InvalidInput
from backend.operations.declaration import operation
from backend.web.audit import audit
from backend.web.identity import Actor
from backend.web.paging import Page


@operation("GET /imports", role=Role.VIEWER, noun="imports", command="env imports")
def list_imports(session: Session, actor: Actor) -> Page[schemas.ImportResponse]:
    """List the latest imports, newest first."""
    return Page(items=[_response(row) for row in imports.recent_imports(session)])


@operation(
    "POST /imports",
    role=Role.AUTHOR,
    noun="imports",
    status=201,
    tool=True,
    audited=False,
    max_body_size=MAX_UPLOAD_BYTES * 4 // 3 + 2**20,  # the archive is Base64
)
def start_import(session: Session, actor: Actor, request: schemas.StartImport) -> schemas.ImportResponse:
    """Import a package that others wrote. A worker starts it and writes a report."""
    if request.kind == "zip" and request.archive is None:
        raise InvalidInput(fields={"archive": "Give the package as a zip in Base64."})
    try:
        archive = base64.b64decode(request.archive or "", validate=True)
    except ValueError as error:  # also of text that is not ASCII
        raise InvalidInput(fields={"archive": "The archive is not valid Base64."}) from error
    row = imports.start_import(session, actor, request, archive, request.source)
    return get_import(session, actor, row.id)


@operation("GET /imports/{import_id}", role=Role.VIEWER, noun="imports", tool=True)
def get_import(session: Session, actor: Actor, import_id: uuid.UUID) -> schemas.ImportResponse:
    """Show an import with its report."""
    return _response(imports.get_import(session, import_id))


@operation("GET /imports/{import_id}/log", role=Role.VIEWER, noun="imports")
def get_import_log(session: Session, actor: Actor, import_id: uuid.UUID) -> schemas.ImportLog:
    """Show pip's output from building the package's virtual environment."""
    return schemas.ImportLog(log=imports.get_import(session, import_id).build_log)


@operation("PUT /imports/{import_id}/block", role=Role.AUTHOR, noun="imports", audited=False)
def put_block(
    session: Session, actor: Actor, import_id: uuid.UUID, request: schemas.ReplaceBlock
) -> schemas.ImportResponse:
    """Replace the proposed `proctor:` block."""
    row = imports.get_import(session, import_id, with_files=True)
    imports.save_block(session, actor, row, request.block)
    return _response(row)


@operation(
    "PUT /imports/{import_id}/columns",
    role=Role.AUTHOR,
    noun="imports",
    audited=False,
    page="/imports/{import_id}",
    notice="The reward columns are changed and the block is proposed again.",
)
def put_columns(
    session: Session, actor: Actor, import_id: uuid.UUID, request: schemas.MapColumns
) -> schemas.ImportResponse:
    """Take the reward columns from a dictionary of the observation. The block is proposed again."""
    row = imports.get_import(session, import_id, with_files=True)
    imports.require_open(row)
    report, path = ImportReport.model_validate(row.report), request.columns_from
    if path and path not in {found.path for found in report.breakdowns}:
        raise InvalidInput(fields={"columns_from": "The report has no such dictionary."})
    row.columns_from = path or None
    row.block = propose(report, row.columns_from)
    audit(session, actor, "import.edit", "import", row.id, columns_from=path)
    session.flush()
    return _response(row)


@operation(
    "POST /imports/{import_id}/environment", role=Role.AUTHOR, noun="imports", status=201, tool=True, audited=False
)
def create_environment(
    session: Session, actor: Actor, import_id: uuid.UUID, request: schemas.CreateFromImport
) -> schemas.ImportResponse:
    """Create an environment from an import: a draft with all its files and the current block."""
    row = imports.get_import(session, import_id, with_files=True)
    imports.create_from_import(session, actor, row, request.name or "")
    return _response(row)


def _response(row: EnvironmentImport) -> schemas.ImportResponse:
    preview = imports.preview(row)
    problems = [f"line {problem.line}: {problem.key} {problem.message}" for problem in preview["problems"]]
    return schemas.ImportResponse.from_row(
        row,
        problems=[*problems, *([preview["error"]] if preview["error"] else [])],
        prompt={"system": preview["system"], "user": preview["user"]},
        environment=row.name if row.environment_id else None,
    )
