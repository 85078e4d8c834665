"""Imports for scripts and the command line: the same as the pages, in JSON."""

import base64
import binascii
import uuid

from fastapi import APIRouter

from backend.domain.environments.packages import PackageInvalid
from backend.environments import imports
from backend.environments.import_requests import BlockIn, ColumnsForm, CreateIn, ImportIn, ImportOut
from backend.environments.import_sources import MAX_UPLOAD_BYTES, read_zip
from backend.environments.imports import Preview
from backend.environments.tables import EnvironmentImport
from backend.errors import InvalidInput
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.paging import Page

router = APIRouter(prefix="/api/v1", tags=["environments"])


@router.get("/imports")
def list_imports(session: SessionDep, _: Viewer) -> Page[ImportOut]:
    """The newest imports, newest first, in one page."""
    return Page(items=[_shown(row) for row in imports.recent_imports(session)])


@router.post("/imports", status_code=201, max_body_size=MAX_UPLOAD_BYTES * 4 // 3 + 2**20)  # Base64
def start_import(request: ImportIn, session: SessionDep, actor: Author) -> ImportOut:
    """Take a foreign package in; a worker then starts it and writes its report."""
    wishes = request.wishes()
    if request.kind == "git":
        row = imports.import_repository(session, actor, request.url, request.reference.strip(), wishes)
    elif request.kind == "remote":
        row = imports.import_server(session, actor, request.url, wishes)
    elif request.archive is None:
        raise InvalidInput(fields={"archive": "Give the package as a zip in Base64."})
    else:
        try:
            files, folder = read_zip(base64.b64decode(request.archive, validate=True), request.source)
        except binascii.Error as error:
            raise InvalidInput(fields={"archive": "The archive is not Base64."}) from error
        except PackageInvalid as error:
            raise InvalidInput(fields={"archive": str(error)}) from error
        source = request.source or "upload"
        row = imports.import_files(session, actor, files, folder=folder, source=source, wishes=wishes)
    return _shown(imports.get_import(session, row.id))


@router.get("/imports/{import_id}")
def get_import(import_id: uuid.UUID, session: SessionDep, _: Viewer) -> ImportOut:
    return _shown(imports.get_import(session, import_id))


@router.get("/imports/{import_id}/log")
def get_build_log(import_id: uuid.UUID, session: SessionDep, _: Viewer) -> dict[str, str]:
    """What pip said while the package's virtual environment was built."""
    return {"log": imports.get_import(session, import_id).build_log}


@router.put("/imports/{import_id}/block")
def put_block(import_id: uuid.UUID, request: BlockIn, session: SessionDep, actor: Author) -> ImportOut:
    """Replace the proposed block."""
    row = imports.get_import(session, import_id, with_files=True)
    imports.save_block(session, actor, row, request.block)
    return _shown(row)


@router.put("/imports/{import_id}/columns")
def put_columns(import_id: uuid.UUID, request: ColumnsForm, session: SessionDep, actor: Author) -> ImportOut:
    """Take the reward columns from a dictionary that the report names; the block is proposed anew."""
    row = imports.get_import(session, import_id, with_files=True)
    imports.map_columns(session, actor, row, request.columns_from)
    return _shown(row)


@router.post("/imports/{import_id}/environment", status_code=201)
def create_environment(import_id: uuid.UUID, request: CreateIn, session: SessionDep, actor: Author) -> ImportOut:
    """Make an environment of it: a draft with all its files and the block as it stands."""
    row = imports.get_import(session, import_id, with_files=True)
    imports.create_from_import(session, actor, row, request.name or "")
    return _shown(row)


def _shown(row: EnvironmentImport) -> ImportOut:
    shown = imports.preview(row) if row.block else Preview([])
    problems = [f"line {found.line}: {found.path} {found.message}" for found in shown.problems]
    return ImportOut(
        id=row.id,
        name=row.name,
        kind=row.kind,
        source=row.source,
        status=row.status,
        phase=row.phase,
        report=row.report,
        block=row.block,
        columns_from=row.columns_from,
        problems=[*problems, *([shown.error] if shown.error else [])],
        prompt={"system": shown.system, "user": shown.user},
        environment=row.name if row.environment_id else None,
        created_at=row.created_at,
        ended_at=row.ended_at,
    )
