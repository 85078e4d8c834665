"""Pages of imports: the list, the form for a new one, and the report with the proposed block."""

import uuid
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Form, Request
from fastapi.responses import HTMLResponse, Response

from backend.domain.environments.import_report import ImportReport
from backend.environments import imports as importing
from backend.environments.import_sources import MAX_UPLOAD_BYTES
from backend.environments.imports import KINDS
from backend.environments.schemas import ImportForm, StartImport
from backend.errors import InvalidInput
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.field_messages import validate
from backend.web.form_data import read_form
from backend.web.page import page, see_other
from backend.web.streams import live_page

router = APIRouter()


@router.get("/imports", response_class=HTMLResponse)
def list_imports(request: Request, session: SessionDep, _: Viewer) -> HTMLResponse:
    return page(request, "environments/imports.html", {"imports": importing.recent_imports(session), "kinds": KINDS})


@router.get("/imports/new", response_class=HTMLResponse)
def new_import(request: Request, _: Author) -> HTMLResponse:
    return page(request, "environments/import_new.html", {})


@router.post("/imports", response_class=HTMLResponse, max_body_size=MAX_UPLOAD_BYTES + 2**20)
def start_import(
    session: SessionDep, actor: Author, form: Annotated[ImportForm, Depends(read_form(ImportForm))]
) -> Response:
    variables = {}
    for line in filter(None, map(str.strip, form.variables.splitlines())):
        name, has_value, value = line.partition("=")
        if not has_value or not name.strip():
            raise InvalidInput(fields={"variables": "Write one NAME=value per line."})
        variables[name.strip()] = value.strip()
    requires = [line.strip() for line in form.requires.splitlines() if line.strip()]
    values = form.model_dump(exclude={"package"}) | {"requires": requires, "variables": variables}
    if form.kind == "zip" and form.package is None:
        raise InvalidInput(fields={"package": "Choose the package's zip."})
    file_name, archive = "", b""
    if form.package is not None:
        file_name = form.package.filename or "package.zip"
        with form.package.file as file:
            archive = file.read()
    request = validate(StartImport, values | {"source": f"upload {file_name}"[:500]})
    row = importing.start_import(session, actor, request, archive, file_name)
    return see_other(f"/imports/{row.id}", "The package is being inspected.")


@live_page(
    *(router, "/imports/{import_id}", "environments/import.html", "import_report", "import_preview"),
    topics=["import:{import_id}"],
)
def show_import(session: SessionDep, _: Viewer, import_id: uuid.UUID) -> dict[str, object]:
    row = importing.get_import(session, import_id)
    return {
        "row": row,
        "report": ImportReport.model_validate(row.report),
        "preview": importing.preview(row),
        "kind": KINDS.get(row.kind, row.kind),
        "name": row.name,
        "is_over": row.status.is_over,
    }


@router.post("/imports/{import_id}/block", response_class=HTMLResponse)
def save_block(
    session: SessionDep,
    actor: Author,
    import_id: uuid.UUID,
    block: Annotated[str, Form(max_length=200_000)] = "",
    name: Annotated[str, Form(max_length=40)] = "",
    then: Annotated[Literal["preview", "create"], Form()] = "preview",
) -> Response:
    """Save the block and show its preview, or create the environment with it."""
    row = importing.get_import(session, import_id, with_files=True)
    importing.save_block(session, actor, row, block)
    if then == "preview":
        return see_other(f"/imports/{import_id}#import-preview", "The block is saved.")
    environment = importing.create_from_import(session, actor, row, name)
    return see_other(f"/environments/{environment.name}/edit", f"{environment.name} begins as a draft.")
