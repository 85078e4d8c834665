"""Operations on imports: foreign packages that become environments."""

import base64
import binascii
import uuid

from sqlalchemy.orm import Session

from backend.domain.environments.packages import PackageInvalid
from backend.domain.vocabulary import Role
from backend.environments import imports, schemas
from backend.environments.import_sources import MAX_UPLOAD_BYTES, read_zip
from backend.environments.imports import ImportOptions
from backend.environments.tables import EnvironmentImport
from backend.errors import InvalidInput
from backend.operations.declaration import operation
from backend.web.identity import Actor
from backend.web.paging import Page

MAX_BODY_BYTES = MAX_UPLOAD_BYTES * 4 // 3 + 2**20
"""The archive is Base64."""


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
    max_body_size=MAX_BODY_BYTES,
)
def start_import(session: Session, actor: Actor, request: schemas.StartImport) -> schemas.ImportResponse:
    """Import a package that others wrote. A worker starts it and writes a report."""
    options = ImportOptions(request.name.strip(), request.path.strip(), request.requires, request.variables)
    if request.kind == "git":
        row = imports.import_repository(session, actor, request.url, request.reference.strip(), options)
    elif request.kind == "remote":
        row = imports.import_server(session, actor, request.url, options)
    elif request.archive is None:
        raise InvalidInput(fields={"archive": "Give the package as a zip in Base64."})
    else:
        try:
            files, folder = read_zip(base64.b64decode(request.archive, validate=True), request.source)
        except binascii.Error as error:
            raise InvalidInput(fields={"archive": "The archive is not valid Base64."}) from error
        except PackageInvalid as error:
            raise InvalidInput(fields={"archive": str(error)}) from error
        source = request.source or "upload"
        row = imports.import_files(session, actor, files, folder=folder, source=source, options=options)
    return _response(imports.get_import(session, row.id))


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
    imports.map_columns(session, actor, row, request.columns_from)
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
    problems = [f"line {problem.line}: {problem.key} {problem.message}" for problem in preview.problems]
    return schemas.ImportResponse.from_row(
        row,
        problems=[*problems, *([preview.error] if preview.error else [])],
        prompt={"system": preview.system, "user": preview.user},
        environment=row.name if row.environment_id else None,
    )
